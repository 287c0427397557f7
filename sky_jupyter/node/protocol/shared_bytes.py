"""Bytes in shared memory: an unnamed file, whose descriptor a socket carries.

They are written once and read once, whereas a socket transfers bytes in pieces, and its two ends wait for each other.
The memory is freed with the last descriptor, so that a killed process leaves nothing behind. A notebook keeps some
files that everybody has read, and writes into them again: to get new pages takes four times as long as to fill them.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from typing import Any

# Smaller values are cheaper in the socket.
_LEAST = 1 << 15
MOST = 64
"""Most descriptors in one message."""
IS_POSSIBLE = hasattr(os, "memfd_create")
"""Whether this system has such files; otherwise all bytes go through the socket."""
# Open descriptors. A process may have few, and user code needs some: above this number, no further bytes are shared.
_open: set[int] = set()
_MOST_OPEN = 64
# Most files that are kept for further bytes. Each stays as large as its largest content.
_MOST_SPARE = 8
_ROOM = socket.CMSG_SPACE(MOST * array.array("i").itemsize)


class SharedBytes:
    """Bytes in shared memory.

    Parameters
    ----------
    descriptor : int
        The file, which is closed with this object.
    size : int
        Number of its bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size
        _open.add(descriptor)

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        """Read the bytes; raise ValueError if the file has fewer."""
        data = os.pread(self.descriptor, self.size, 0)
        if len(data) != self.size:
            raise ValueError(f"{self.size} bytes of shared memory were announced, and there are {len(data)}")
        return data

    def detach(self) -> SharedBytes:
        """Return the file without content; this object does not own it any more."""
        spare, self.descriptor, self.size = SharedBytes(self.descriptor, 0), -1, 0
        return spare

    def __del__(self) -> None:
        if self.descriptor >= 0:
            _open.discard(self.descriptor)
            os.close(self.descriptor)


AnyBytes = bytes | SharedBytes


class SpareFiles:
    """Files without readers, to be written again; any thread uses them."""

    def __init__(self) -> None:
        self._spare: list[SharedBytes] = []

    def put(self, data: AnyBytes) -> None:
        """Keep the file of bytes that nobody needs; close it if enough are kept."""
        if isinstance(data, SharedBytes) and data.descriptor >= 0 and len(self._spare) < _MOST_SPARE:
            self._spare.append(data.detach())

    def take(self, most: int = 1) -> list[SharedBytes]:
        """Return so many files, or as many as there are."""
        taken: list[SharedBytes] = []
        with contextlib.suppress(IndexError):
            while len(taken) < most:
                taken.append(self._spare.pop())
        return taken


class TooLarge(Exception):
    """Raised when more bytes are written than allowed."""


class SharedWriter:
    """File for a pickler, whose bytes are shared if there are many.

    Large parts are written directly, without the copies of a pickle in memory.

    Parameters
    ----------
    most : int
        Most bytes; TooLarge is raised for more.
    shares : bool
        Whether bytes may be shared.
    spare : callable, optional
        Returns spare files to write to, if there are any.
    """

    def __init__(self, most: int, *, shares: bool = True, spare: Callable[[], list[SharedBytes]] = list) -> None:
        self._most, self._shares, self._spare = most, shares and IS_POSSIBLE, spare
        self._parts: list[bytes] = []
        self._size = 0
        self._shared: SharedBytes | None = None

    def write(self, data: Any) -> int:
        """Write bytes; return their number."""
        size = memoryview(data).nbytes
        self._size += size
        if self._size > self._most:
            raise TooLarge
        if self._shared is None and self._shares and self._size >= _LEAST and len(_open) < _MOST_OPEN:
            self._begin_sharing()
        if self._shared is None:
            # The pickler reuses its memory.
            self._parts.append(bytes(data))
        else:
            _write(self._shared, data)
        return size

    def _begin_sharing(self) -> None:
        try:
            (self._shared,) = self._spare() or [SharedBytes(os.memfd_create("sky-call", os.MFD_CLOEXEC), 0)]
        except OSError:
            # There are too many open files.
            self._shares = False
            return
        for part in self._parts:
            _write(self._shared, part)

    def written(self) -> AnyBytes:
        """Return the written bytes."""
        if self._shared is None:
            return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        return self._shared


def own(data: AnyBytes) -> AnyBytes:
    """Return bytes to be kept: a copy in this process if too many are shared."""
    return data if isinstance(data, SharedBytes) and len(_open) < _MOST_OPEN else bytes(data)


def _write(shared: SharedBytes, data: Any) -> None:
    left = memoryview(data).cast("B")
    while left:
        # All processes that have a descriptor share its position.
        written = os.pwrite(shared.descriptor, left, shared.size)
        shared.size += written
        left = left[written:]


class _Reader:
    """File for an unpickler that reads large parts directly into their buffers.

    A memory map of the file took twice as long.
    """

    def __init__(self, shared: SharedBytes) -> None:
        self._shared, self._at = shared, 0

    def read(self, size: int = -1) -> bytes:
        data = os.pread(self._shared.descriptor, self._most(size), self._at)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = os.preadv(self._shared.descriptor, [view[: self._most(len(view))]], self._at)
        self._at += size
        return size

    def readline(self) -> bytes:
        """Refuse pickles of other protocols, the only ones with lines."""
        raise pickle.UnpicklingError("shared bytes are no pickle of protocol 5")

    def _most(self, size: int) -> int:
        left = len(self._shared) - self._at
        return left if size < 0 else min(size, left)


def loads(data: AnyBytes) -> Any:
    """Unpickle bytes; raise EOFError or a pickle error if shared ones are incomplete."""
    if not isinstance(data, SharedBytes):
        return pickle.loads(data)
    return pickle.load(_Reader(data))


def send(connected: socket.socket, data: bytes | memoryview, shared: Sequence[SharedBytes]) -> int:
    """Send bytes with the descriptors of shared ones; return how many were sent."""
    if not shared:
        return connected.send(data)
    descriptors = array.array("i", [one.descriptor for one in shared])
    return connected.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def receive(connected: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Return at most so many bytes, and the descriptors that came with them."""
    data, ancillary, _, _ = connected.recvmsg(size, _ROOM, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, list(found)
