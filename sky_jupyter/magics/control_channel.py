"""Requests on the kernel's control channel, answered while a cell runs.

A comm's message waits until the cell has ended. See docs/actions.md for the messages.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ..display.notebook import control_channel
from ..pool import requests
from ..util.tasks import BackgroundTasks

REQUEST, REPLY = "sky_request", "sky_reply"
_log = logging.getLogger(__name__)
# So many are worked on at a time; who asks for more asks too often.
_MOST = 32
# Of those, so many are left to what must come through.
_LEFT = 8
_URGENT = ("interrupt", "down")


class Requests:
    """Handler of these requests; made by `install`, held by the kernel.

    Runs on the kernel's control thread.

    Parameters
    ----------
    kernel
        The ipykernel that this process is.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._tasks = BackgroundTasks()

    async def __call__(self, stream: Any, ident: Sequence[bytes], parent: dict[str, Any]) -> None:
        # The kernel has one control message handled at a time: what takes long must not keep the next one waiting.
        self._tasks.start(self._answer(stream, ident, parent))

    async def _answer(self, stream: Any, ident: Sequence[bytes], parent: dict[str, Any]) -> None:
        content = parent.get("content")
        urgent = isinstance(content, dict) and content.get("action") in _URGENT
        if len(self._tasks) > (_MOST if urgent else _MOST - _LEFT):
            reply = {"status": "error", "message": "too many requests at a time; wait for their answers"}
        else:
            reply = await _in_thread(content)
        try:
            self.kernel.session.send(stream, REPLY, reply, parent=parent, ident=ident)
        except Exception:
            # Nobody is there to be told, and the kernel goes on.
            _log.exception("an answer could not be sent")


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
        control_channel.register(kernel, REQUEST, Requests(kernel))


def remove(shell: Any) -> None:
    """Undo `install`."""
    control_channel.unregister(getattr(shell, "kernel", None), REQUEST)
