"""Machines that have ended, as the provider that made them says."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import SkyError

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec


def why_ended(spec: PoolSpec, ids: Sequence[str]) -> str:
    """Ask the provider whether one of these machines has ended; return what it says, or ""."""
    with contextlib.suppress(SkyError, OSError, TimeoutError):
        for record in spec.provider.describe(ids) if ids else ():
            if not record.is_usable:
                return f"its machine has ended{f' ({record.reason})' if record.reason else ''}"
    return ""


__all__ = ["why_ended"]
