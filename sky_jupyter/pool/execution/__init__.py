"""Runs of cells and functions."""
