"""Widgets of ranks: their comms, on the node."""
