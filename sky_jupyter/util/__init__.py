"""Leaf helpers that know nothing of pools."""
