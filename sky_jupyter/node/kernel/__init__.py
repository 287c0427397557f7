"""A rank's kernel."""
