"""Widgets of ranks in the notebook's pages: an optional part of agents and pools."""
