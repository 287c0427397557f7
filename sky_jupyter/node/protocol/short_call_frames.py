"""Frames of short calls: between notebook and agent, and between agent and rank.

A frame is a list in msgpack; its first element says what it is. docs/design-calls.md has the whole.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

# Notebook to agent, and agent to rank. A function with what it reads, by its key: [FUNCTION, key, content].
FUNCTION = 0
# A function that is not called any more: [FORGET, key].
FORGET = 1
# To an agent: [CALL, id, key, arguments, ranks, about]; to a rank: [CALL, run, key, arguments, about].
CALL = 2

# The value of a call that printed nothing. From a rank: [DONE, run, elapsed, value, type]; from an agent:
# [DONE, id, rank, elapsed, value, type].
DONE = 3
# Agent to notebook. It goes on the long way, with a journal: [OPENED, id]. It was not begun here: [REFUSED, id].
OPENED = 4
REFUSED = 5
# The values of all ranks of a call whose agents share a process: [DONE_ALL, id, [[rank, elapsed, value, type], ...]].
DONE_ALL = 6
# The first frame on the socket of an agents' process: [HELLO, manager]. Its answer has the incarnations of the agents
# there: [OPENED, {node: incarnation}].
HELLO = 7
# Calls of one rank that nobody wants any more: [WITHDRAW, ids]. Of each that the rank had not begun: [WITHDRAWN, id]; the
# others end as they would have.
WITHDRAW = 8
WITHDRAWN = 9

HANDSHAKE = "sky_short_calls"
"""Operation by which a notebook opens its channel to an agent."""
MOST_ARGUMENTS = 1 << 20
"""Bytes of arguments that go in a frame; more go in files."""
MOST_VALUE = 1 << 20
"""Bytes of a value that comes in a frame."""
_MOST = 1 << 28
_READ = 1 << 18


def pack(*frame: Any) -> bytes:
    """Return a frame's bytes."""
    packed: bytes = msgpack.packb(frame, use_bin_type=True)
    return packed


def long_end(end: dict[str, Any]) -> dict[str, Any]:
    """Return a short call's end with its value as the ends in journals have it."""
    pickled = end.pop("pickled")
    return {**end, "value": base64.b64encode(pickled).decode()}


class Frames:
    """Frames that arrive in pieces, as bytes."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(raw=False, use_list=True, max_buffer_size=_MOST, strict_map_key=False)

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Yield the frames that are whole with these bytes."""
        self._unpacker.feed(data)
        yield from self._unpacker


def socket_of(connection_file: str | os.PathLike[str]) -> str:
    """Return the path of a kernel's socket of short calls, beside its connection file."""
    return f"{Path(connection_file).with_suffix('')}-short"


def agents_socket_of(folder: str | os.PathLike[str], node: int) -> str:
    """Return the path of the socket of an agents' process, in a pool's folder; ``node`` is its first."""
    return str(Path(folder, f"n{node}", "calls"))


class FrameSocket:
    """Unix socket of frames; used on one loop.

    Parameters
    ----------
    connected : socket
        The connected socket; it is closed with this object.
    on_frame : callable
        Called with each frame.
    on_close : callable
        Called once it is closed, by whichever end.
    """

    def __init__(
        self,
        connected: socket.socket,
        on_frame: Callable[[list[Any]], None],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = connected
        self._on_frame, self._on_close = on_frame, on_close
        self._frames = Frames()
        self._unsent = bytearray()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        connected.setblocking(False)
        self._loop.add_reader(connected, self._on_readable)

    def send(self, data: bytes) -> None:
        """Send a frame's bytes, now or as soon as there is room."""
        if self.closed:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._socket, self._on_writable)
        self._unsent += data

    def close(self) -> None:
        """Close the socket."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            # Later: whoever sends is in the middle of something.
            self._loop.call_soon(self._on_close)

    def _on_writable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                self.close()
                return
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        for frame in self._frames.feed(data):
            self._on_frame(frame)
            if self.closed:
                return
