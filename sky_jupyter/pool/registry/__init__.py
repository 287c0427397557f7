"""Pools and runs that this user has, in a database of the notebook's machine."""
