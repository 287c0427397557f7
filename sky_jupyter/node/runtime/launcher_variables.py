"""Environment variables of a cluster's launcher, corrected for a pool's ranks.

Kubeflow Trainer and torchrun set them for one process per machine, and for the first machines. But a machine may have
several ranks, and a pool may have grown or shrunk, or may consist of several jobs. Only existing variables are changed,
so that programs that read them see the pool as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .instance_info import InstanceInfo

_JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_TORCHRUN = ("PET_MASTER_ADDR", "PET_NNODES", "PET_NODE_RANK")
_PROCESSES = "PET_NPROC_PER_NODE"


def corrected(info: InstanceInfo, env: Mapping[str, str]) -> dict[str, str]:
    """Return a launcher's variables with the values that hold for a rank.

    Parameters
    ----------
    info : InstanceInfo
        The rank's instance info.
    env : mapping of str to str
        Environment of the rank as the launcher made it.

    Returns
    -------
    dict of str to str
        Variables to set. A group of variables that is incomplete in ``env`` is the user's own, and is left alone. The
        port stays the launcher's. The host becomes the head's address, as a node may not resolve the names of pods.
    """
    found: dict[str, str] = {}
    if all(env.get(name) for name in _JAX):
        _, colon, port = env[_JAX[0]].rpartition(":")
        address = f"[{info.head_addr}]" if ":" in info.head_addr else info.head_addr
        found |= dict(zip(_JAX, (f"{address}{colon}{port}", str(info.world_size), str(info.rank)), strict=True))
    if all(env.get(name) for name in _TORCHRUN):
        # For torchrun, each rank is a node that starts processes.
        found |= dict(zip(_TORCHRUN, (info.head_addr, str(info.world_size), str(info.rank)), strict=True))
        if info.ranks_per_node > 1 and _PROCESSES in env:
            found[_PROCESSES] = "1"
    return found


def correct(info: InstanceInfo) -> None:
    """Set the variables of `corrected` in this process."""
    os.environ.update(corrected(info, os.environ))
