"""Dask on the head: the control plane's scheduler, and the user's own cluster."""
