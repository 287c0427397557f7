"""Views of a pool's events for people, in notebooks and terminals."""
