"""Whether a remote pool without a manager has ended, as seen from here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...machines.link import socket_folder
from ..base.timeouts import TIMEOUTS
from .folder_removal import LINK

if TYPE_CHECKING:
    from .rows import PoolRow

# Providers whose pools have a link, on machines that existed before.
PROVIDERS = ("ssh",)
# How long after its lease a pool is presumed alive.
_MARGIN = TIMEOUTS.registry.lease_margin


def has_ended(row: PoolRow, *, running: bool) -> bool:
    """Return whether a remote pool without a manager has ended or is unusable.

    ``running`` says whether a run was active when the pool was last seen: that keeps the nodes alive.
    """
    if not row.folders or not Path(row.folders[0]).is_dir():
        # It was never ready, or its link has removed its folder: its keys are gone.
        return True
    folder = Path(row.folders[0]) / LINK
    if socket_folder.answers(folder):
        return False
    sign = socket_folder.last_sign(folder)
    if sign is None:
        # The link has ended in order, because no manager came within the lease.
        return not running
    when, lease = sign
    # Imported here: `%load_ext` reads the registry, and mostly no pool is remote.
    from ...spec.pool_spec import DEFAULT_REMOTE_IDLE_TIMEOUT

    return not running and time.time() - when > (lease or DEFAULT_REMOTE_IDLE_TIMEOUT) + _MARGIN
