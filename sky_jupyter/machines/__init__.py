"""Machines, on which commands run and files are stored."""
