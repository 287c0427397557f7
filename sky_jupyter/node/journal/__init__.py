"""Journals of runs' output and results, on the node's disk."""
