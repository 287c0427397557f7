"""Short calls and cells on a rank: a socket brings them and returns quiet ends.

Otherwise, they are like requests: a call runs on the main thread, between requests. If a call fails, prints, shows
something, or returns a large value, `sky_end` reports its end, after its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Protocol

from tornado.ioloop import IOLoop

from ..protocol import short_call_frames as frames
from ..protocol.shared_bytes import AnyBytes
from ..protocol.short_call_frames import FrameSocket
from .request_context import RequestContext


class RequestKernel(Protocol):
    """Kernel of a rank, as its short calls use it."""

    iopub_socket: Any
    requests: RequestContext
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
            run, key, arguments, about = rest
            if "cell" in about:
                # Its first step may await something, which only a task can do.
                cell = self._cell(run, about.pop("cell"), about)
                self._task = asyncio.ensure_future(self._kernel.requests.attend(cell))
            else:
                self._kernel.requests.run_in_copy(self._begin, self._call(run, key, arguments, about))
        elif kind == frames.FUNCTION:
            key, content = rest
            self._functions[key] = content
        elif kind == frames.FORGET:
            self._functions.pop(rest[0], None)

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call at once; create a task only if it awaits something."""
        try:
            call.send(None)
        except StopIteration:
            return
        self._task = asyncio.ensure_future(call)

    async def _call(self, run: str, key: bytes, arguments: AnyBytes, about: dict[str, Any]) -> None:
        """Run a call; answer, or report its end like that of a request."""
        content = {**self._functions[key], **about, "kind": "call", "run": run, "pickled": arguments, "short": True}
        end, was_quiet = await self._run(run, content)
        pickled = end.pop("pickled", None)
        if pickled is not None and was_quiet and self._agent is not None:
            self._agent.send(*frames.pack_shared(frames.DONE, run, end["elapsed"], pickled, end["type"], *_writes(end)))
        elif end:
            self._kernel.tell("sky_end", end if pickled is None else frames.long_end({**end, "pickled": pickled}))
        self._kernel.note_idle()

    async def _cell(self, run: str, content: dict[str, Any], about: dict[str, Any]) -> None:
        """Run a cell; report its end here if it has shown nothing."""
        end, was_quiet = await self._run(run, {**content, **about, "run": run})
        packed = b""
        if was_quiet and end["status"] == "ok" and len(end["writes"]) <= frames.MOST_WRITES:
            # An end that cannot be packed is reported like any other.
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                packed = frames.pack(frames.DONE, run, end["elapsed"], None, "", end)
        if 0 < len(packed) <= frames.MOST_VALUE and self._agent is not None:
            self._agent.send(packed)
        elif end:
            self._kernel.tell("sky_end", end)
        self._kernel.note_idle()

    async def _run(self, run: str, content: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Run a request; return its end, empty if not begun, and whether it was quiet."""
        kernel = self._kernel
        if kernel.is_ending:
            # The agent notices the end of this process, which ends all requests.
            return {}, False
        kernel.set_parent(b"", {"header": {"msg_id": run, "msg_type": "sky_request"}}, "shell")
        before = self._traffic()
        end = await kernel.run_request(content)
        kernel.drain_native_output()
        return end, not end.get("ended") and self._traffic() == before

    def _traffic(self) -> tuple[Any, ...]:
        """Return marks that change with each message and each output of this process."""
        thread = self._kernel.iopub_socket.io_thread
        marks = [getattr(stream, "mark", None) for stream in (sys.stdout, sys.stderr, *self._kernel.sky_streams)]
        return thread.scheduled, thread.sent, *marks


def _writes(end: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the part of an end about assigned names, as the rest of a frame."""
    return ({name: end[name] for name in frames.WRITES},) if "writes" in end else ()
