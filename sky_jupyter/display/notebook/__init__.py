"""Views of a notebook's page."""
