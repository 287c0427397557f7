"""Short calls on a rank: they come by a socket of their own, and so do the values of those that print nothing.

All else is as with requests: a call runs on the main thread, between them. The end of a call that fails, prints, shows
something, or returns a large value, is told by `sky_end`, after its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Protocol

from tornado.ioloop import IOLoop

from ..protocol import short_call_frames as frames
from ..protocol.shared_bytes import AnyBytes
from ..protocol.short_call_frames import FrameSocket


class RequestKernel(Protocol):
    """Kernel of a rank, as its short calls use it."""

    iopub_socket: Any
    sky_streams: tuple[Any, ...]

    @property
    def is_ending(self) -> bool: ...

    def set_parent(self, ident: Any, parent: dict[str, Any], channel: str) -> None: ...

    async def run_request(self, content: dict[str, Any]) -> dict[str, Any]:
        """Run one request and return its end."""
        ...

    def drain_native_output(self) -> None: ...

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Send the agent a message that belongs to the current request."""
        ...

    def note_idle(self) -> None: ...


class ShortCallReceiver:
    """Short calls of a rank; made by its kernel.

    Parameters
    ----------
    kernel : RequestKernel
        The kernel that runs them.
    """

    def __init__(self, kernel: RequestKernel) -> None:
        self._kernel = kernel
        self._functions: dict[bytes, dict[str, Any]] = {}
        self._listener: socket.socket | None = None
        self._agent: FrameSocket | None = None
        self._task: asyncio.Task[None] | None = None

    def listen(self, path: str) -> None:
        """Listen for the agent on a socket in the node's folder."""
        listener = self._listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(1)
        listener.setblocking(False)
        IOLoop.current().add_handler(listener, self._accept, IOLoop.READ)

    def _accept(self, listener: socket.socket, _: int) -> None:
        with contextlib.suppress(OSError):
            self._agent = FrameSocket(listener.accept()[0], self._on_frame)

    def _on_frame(self, frame: list[Any]) -> None:
        kind, *rest = frame
        if kind == frames.CALL:
            # What a call sets of context variables ends with it.
            contextvars.copy_context().run(self._begin, self._call(*rest))
        elif kind == frames.FUNCTION:
            key, content = rest
            self._functions[key] = content
        elif kind == frames.FORGET:
            self._functions.pop(rest[0], None)

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call, at once: most await nothing, and need no task. Those that do go on as one."""
        try:
            call.send(None)
        except StopIteration:
            return
        self._task = asyncio.ensure_future(call)

    async def _call(self, run: str, key: bytes, arguments: AnyBytes, about: dict[str, Any]) -> None:
        """Run a call and answer, or tell its end as that of a request."""
        kernel = self._kernel
        if kernel.is_ending:
            return
        kernel.set_parent(b"", {"header": {"msg_id": run, "msg_type": "sky_request"}}, "shell")
        content = {**self._functions[key], **about, "kind": "call", "run": run, "pickled": arguments, "short": True}
        before = self._traffic()
        end = await kernel.run_request(content)
        pickled = end.pop("pickled", None)
        kernel.drain_native_output()
        if pickled is not None and not end.get("ended") and self._traffic() == before and self._agent is not None:
            self._agent.send(*frames.pack_shared(frames.DONE, run, end["elapsed"], pickled, end["type"], *_writes(end)))
        else:
            kernel.tell("sky_end", end if pickled is None else frames.long_end({**end, "pickled": pickled}))
        kernel.note_idle()

    def _traffic(self) -> tuple[Any, ...]:
        """Return what changes with each message of this process, and with what it prints."""
        thread = self._kernel.iopub_socket.io_thread
        marks = [getattr(stream, "mark", None) for stream in (sys.stdout, sys.stderr, *self._kernel.sky_streams)]
        return thread.scheduled, thread.sent, *marks


def _writes(end: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return what an end tells of names that the call has assigned, as the rest of a frame."""
    return ({name: end[name] for name in frames.WRITES},) if "writes" in end else ()
