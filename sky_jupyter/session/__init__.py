"""Use cases that magics and the API share: pools by name, and one view for calls."""
