"""Dask settings of the pool's own processes, independent of the user's."""

from __future__ import annotations

from typing import Any

import dask.config


def forget_the_persons() -> None:
    """Ignore DASK_* variables and configuration files in this process.

    Call it before `distributed` is imported. Child processes still get the variables: a rank's code and `pool.dask`
    follow the user's settings.
    """
    dask.config.refresh(paths=[], env={})


def defaults() -> dict[str, Any]:
    """Return Dask's own default settings, for ``dask.config.set``.

    It is for a process that has loaded the user's settings.
    """
    merged = dask.config.merge(*dask.config.defaults)
    return {"distributed": merged["distributed"], "scheduler-address": None, "client-name": None}
