"""Frames of short calls: between notebook and agent, and between agent and rank.

A frame is a list in msgpack; its first element is its kind. For shared bytes (`SharedBytes`) it contains their size,
and their descriptor is sent beside it. docs/design-calls.md describes it all.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from . import shared_bytes
from .shared_bytes import AnyBytes, SharedBytes

# Notebook to agent, and agent to rank. A function with the values that it reads, by its key: [FUNCTION, key, content].
FUNCTION = 0
# A function that is not called any more: [FORGET, key].
FORGET = 1
# To an agent: [CALL, id, key, arguments, ranks, about]; to a rank: [CALL, run, key, arguments, about]. A cell has no
# key, and its request is in ``about``. ``about`` may also have room for values: shared bytes to write to, of the first
# ranks, or of the rank.
CALL = 2

# The value of a call that printed nothing. From a rank: [DONE, run, elapsed, value, type]; from an agent: [DONE, id,
# rank, elapsed, value, type]. If the call has assigned names, {field: value} follows, as in the ends of journals. For a
# cell that is the whole end, and there is no value.
DONE = 3
# Agent to notebook. The call was opened, and continues with a journal: [OPENED, id]. It was not begun here: [REFUSED,
# id].
OPENED = 4
REFUSED = 5
# The values of all ranks of a call whose agents share a process: [DONE_ALL, id, [[rank, elapsed, value, type], ...]],
# each followed by the names that the call has assigned there.
DONE_ALL = 6
# The first frame on the socket of an agents' process: [HELLO, manager]. The answer has the incarnations of its agents:
# [OPENED, {node: incarnation}].
HELLO = 7
# Calls on one rank that nobody wants any more: [WITHDRAW, ids]. The answer for each call that the rank had not begun:
# [WITHDRAWN, id]; the other calls end as usual.
WITHDRAW = 8
WITHDRAWN = 9

HANDSHAKE = "sky_short_calls"
"""Operation by which a notebook opens its channel to an agent."""
MOST_ARGUMENTS = 1 << 20
"""Most bytes of arguments in a frame; more go in files."""
MOST_VALUE = 1 << 20
"""Most bytes of a value in a frame."""
MOST_WRITES = 100
"""Most assigned names in a frame."""
WRITES = ("writes", "modules", "imports", "members", "sizes", "uses")
"""Fields of an end that describe the names which a call has assigned."""
_MOST = 1 << 28
_READ = 1 << 18
# Type of shared bytes in msgpack.
_SHARED = 1


def pack(*frame: Any) -> bytes:
    """Return a frame's bytes; the frame has no shared bytes."""
    return pack_value(frame)


def pack_value(value: Any) -> bytes:
    """Return the bytes of a frame that is not a list."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def pack_shared(*frame: Any) -> tuple[bytes, list[SharedBytes]]:
    """Return a frame's bytes, and the shared bytes to send with them."""
    shared: list[SharedBytes] = []

    def put(value: Any) -> msgpack.ExtType:
        if not isinstance(value, SharedBytes):
            raise TypeError(f"a {type(value).__name__} cannot be sent")
        shared.append(value)
        return msgpack.ExtType(_SHARED, len(value).to_bytes(8, "little"))

    packed: bytes = msgpack.packb(frame, use_bin_type=True, default=put)
    return packed, shared


def long_end(end: dict[str, Any]) -> dict[str, Any]:
    """Return a short call's end with its value in the form of journals."""
    pickled: AnyBytes = end.pop("pickled")
    return {**end, "value": base64.b64encode(bytes(pickled)).decode()}


class _Descriptors(deque[int]):
    """Descriptors that have arrived, and that no frame has named yet."""

    def take(self, kind: int, data: bytes) -> SharedBytes:
        """Return the next shared bytes of a frame."""
        if kind != _SHARED or not self:
            raise ValueError("a frame has shared bytes that did not come with it")
        return SharedBytes(self.popleft(), int.from_bytes(data, "little"))

    def __del__(self) -> None:
        for descriptor in self:
            os.close(descriptor)


class Frames:
    """Frames that arrive in pieces, as bytes."""

    def __init__(self) -> None:
        self._descriptors = _Descriptors()
        self._unpacker = msgpack.Unpacker(
            raw=False, use_list=True, max_buffer_size=_MOST, strict_map_key=False, ext_hook=self._descriptors.take
        )

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> Iterator[list[Any]]:
        """Yield the frames that these bytes complete, with their descriptors."""
        self._descriptors.extend(descriptors)
        self._unpacker.feed(data)
        yield from self._unpacker


def socket_of(connection_file: str | os.PathLike[str]) -> str:
    """Return the path of a kernel's short-call socket, beside its connection file."""
    return f"{Path(connection_file).with_suffix('')}-short"


def agents_socket_of(folder: str | os.PathLike[str], node: int) -> str:
    """Return the path of an agents' process's socket; ``node`` is its first node."""
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
        Called once it is closed, by either end.
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
        self._unsent: deque[tuple[memoryview, Sequence[SharedBytes]]] = deque()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        connected.setblocking(False)
        self._loop.add_reader(connected, self._on_readable)

    def send(self, data: bytes, shared: Sequence[SharedBytes] = ()) -> None:
        """Send a frame's bytes and shared ones, now or as soon as there is room."""
        if self.closed:
            return
        left = memoryview(data)
        if not self._unsent:
            try:
                sent = shared_bytes.send(self._socket, data, shared)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent == len(data):
                return
            if sent:
                left, shared = left[sent:], ()
            self._loop.add_writer(self._socket, self._on_writable)
        self._unsent.append((left, shared))

    def close(self) -> None:
        """Close the socket."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            # Later, as the sender is in the middle of its work.
            self._loop.call_soon(self._on_close)

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                data, shared = self._unsent[0]
                sent = shared_bytes.send(self._socket, data, shared)
                if sent < len(data):
                    self._unsent[0] = data[sent:], () if sent else shared
                    return
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        descriptors: list[int] = []
        try:
            data, descriptors = shared_bytes.receive(self._socket, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            arrived = list(self._frames.feed(data, descriptors))
        except ValueError:
            # The bytes are no frame, or this process had no descriptor left for shared ones.
            self.close()
            return
        for frame in arrived:
            self._on_frame(frame)
            if self.closed:
                return
