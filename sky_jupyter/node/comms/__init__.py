"""Comms of ranks, on the node: widgets above all."""
