"""A pool's start, changes and end."""
