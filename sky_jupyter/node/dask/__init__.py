"""Dask processes: the control plane's scheduler and the user's cluster."""
