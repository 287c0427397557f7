"""Views of a terminal."""
