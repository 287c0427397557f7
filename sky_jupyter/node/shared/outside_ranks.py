"""Shared state of the current pool, for code that runs on no rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Returns the `SharedStateChannel` of the current pool; the manager of the process's pools registers it here.
offered: list[Callable[[], Any]] = []
