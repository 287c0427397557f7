"""Kernel process of a rank."""
