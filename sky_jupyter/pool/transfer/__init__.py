"""Transfers of files, values, code and packages to the nodes and back."""
