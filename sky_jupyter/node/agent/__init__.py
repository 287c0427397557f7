"""Agent of a node."""
