"""Specification of a pool: image, options, accelerators and size. Values only."""
