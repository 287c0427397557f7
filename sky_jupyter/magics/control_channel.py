"""Requests on the kernel's control channel, answered while a cell runs.

A comm's message waits until the cell has ended. See docs/actions.md for the messages.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

from ..pool import requests
from ..util import control_requests
from ..util.control_requests import Reply, refusal

REQUEST = "sky_request"
# So many are worked on at a time; who asks for more asks too often.
_MOST = 32
# Of those, so many are left to what must come through.
_LEFT = 8
_URGENT = ("interrupt", "down")


class Requests:
    """Handler of these requests; made by `install`, held by the kernel.

    Runs on the kernel's control thread.
    """

    def __init__(self) -> None:
        self._worked_on = 0

    async def __call__(self, content: dict[str, Any], request: dict[str, Any]) -> Reply:
        self._worked_on += 1
        try:
            most = _MOST if content.get("action") in _URGENT else _MOST - _LEFT
            if self._worked_on > most:
                return refusal("too many requests at a time; wait for their answers")
            return await _in_thread(content), ()
        finally:
            self._worked_on -= 1


def _in_thread(content: Any) -> asyncio.Future[dict[str, Any]]:
    future: Future[dict[str, Any]] = Future()
    # A daemon: what hangs there does not keep the kernel from ending.
    work = threading.Thread(target=lambda: future.set_result(requests.answer(content)), name="sky-request", daemon=True)
    work.start()
    return asyncio.wrap_future(future)


def install(shell: Any) -> None:
    """Answer requests from now on, if the shell is a Jupyter kernel's."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        control_requests.register(kernel, REQUEST, Requests())


def remove(shell: Any) -> None:
    """Undo `install`."""
    control_requests.unregister(getattr(shell, "kernel", None), REQUEST)
