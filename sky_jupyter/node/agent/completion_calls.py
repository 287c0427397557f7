"""Completion and inspection of names by idle ranks; busy ones are not asked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Mapping
from typing import Any

from .kernel_client import RankKernel

# Seconds after which the rank's work on a question is interrupted, and interrupted again.
_PATIENCE = 1.0
# Seconds between checks whether the question must give way to a cell.
_POLL = 0.02


class NameInspection:
    """Service for pages' questions about names; lives as long as its agent.

    Parameters
    ----------
    ranks : mapping of int to RankKernel
        The node's ranks.
    """

    def __init__(self, ranks: Mapping[int, RankKernel]) -> None:
        self._ranks = ranks
        self._numbers = itertools.count(1)

    async def sky_inspect_names(
        self, rank: int, code: str, cursor: int, detail: int | None = None
    ) -> dict[str, Any] | None:
        """Return a rank's completions, or with a detail level its knowledge of a name.

        The rank inspects its objects, which may run their code. So it is interrupted if that takes long, or if another
        request waits.

        Parameters
        ----------
        rank : int
            The rank.
        code : str
            The cell, without its ``%%sky`` line.
        cursor : int
            Position of the cursor in it.
        detail : int, optional
            0 as for ``name?``, 1 as for ``name??``; None to complete.

        Returns
        -------
        dict or None
            See `kernel.completion`; None if the rank is busy, or does not know.
        """
        kernel = self._ranks.get(rank)
        if kernel is None or kernel.waiting or not kernel.entered or not kernel.pid:
            return None
        request = f"inspect-{rank}-{next(self._numbers)}"
        content = {"kind": "inspect", "code": code, "cursor": cursor, "detail": detail}
        asked = asyncio.create_task(kernel.request(request, content))
        # The rank is freed even if the caller has gone.
        end = await asyncio.shield(asyncio.create_task(_attended(kernel, request, asked)))
        return end if end["status"] == "ok" else None


async def _attended(kernel: RankKernel, request: str, asked: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    """Return the end of a request; interrupt it if it keeps the rank from others."""
    patience, pressed = _PATIENCE, False
    while not (await asyncio.wait([asked], timeout=_POLL))[0]:
        patience -= _POLL
        # The request itself counts as waiting. A second interrupt would hit the code that handles the first one.
        if (
            (patience <= 0 or (kernel.waiting > 1 and not pressed))
            and kernel.busy_with == request
            and (pid := kernel.pid)
        ):
            patience, pressed = _PATIENCE, True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
    return asked.result()
