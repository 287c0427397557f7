"""Dask's settings in the pool's own processes: its defaults and ours, whatever the person's own Dask is set to."""

from __future__ import annotations

from typing import Any

import dask.config


def forget_the_persons() -> None:
    """Have this process know none of the DASK_* variables and configuration files; to be called ahead of distributed.

    Its children are started with the variables all the same: a rank's code, and `pool.dask`, are the person's.
    """
    dask.config.refresh(paths=[], env={})


def defaults() -> dict[str, Any]:
    """For ``dask.config.set``, where the process is the person's: what Dask's settings are where nobody has set any."""
    merged = dask.config.merge(*dask.config.defaults)
    return {"distributed": merged["distributed"], "scheduler-address": None, "client-name": None}
