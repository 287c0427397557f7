"""Whether a pool on other machines that nobody manages has ended, as far as this machine can tell by itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...machines.link import socket_folder
from ...spec.pool_spec import DEFAULT_REMOTE_IDLE_TIMEOUT
from ..base.timeouts import TIMEOUTS
from .folders import LINK

if TYPE_CHECKING:
    from .rows import PoolRow

# Those whose pools have a link, and machines that were there before.
PROVIDERS = ("ssh",)
# So much longer than its lease a pool is believed to live.
_MARGIN = TIMEOUTS.registry.lease_margin


def has_ended(row: PoolRow, *, running: bool) -> bool:
    """Whether a remote pool without a manager has ended for sure, or cannot be taken up by anybody.

    Parameters
    ----------
    running : bool
        Whether a run was on when it was last heard of: that one keeps the nodes, for as long as it takes.
    """
    if not row.folders or not Path(row.folders[0]).is_dir():
        # It never was ready, or its link has seen it end: nobody has its keys.
        return True
    folder = Path(row.folders[0]) / LINK
    if socket_folder.answers(folder):
        return False
    sign = socket_folder.last_sign(folder)
    if sign is None:
        # A link ends in order when nobody has been there for the lease.
        return not running
    when, lease = sign
    return not running and time.time() - when > (lease or DEFAULT_REMOTE_IDLE_TIMEOUT) + _MARGIN
