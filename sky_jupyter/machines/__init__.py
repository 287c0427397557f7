"""Machines: places where commands run and files go."""
