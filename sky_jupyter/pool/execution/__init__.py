"""Execution of cells and functions."""
