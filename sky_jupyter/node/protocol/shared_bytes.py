"""Bytes in memory that processes of one machine share: a file without a name, of which a socket brings the descriptor.

They are written once and read once, whereas a socket takes bytes in pieces and has both ends wait for each other. The
memory is freed with the last descriptor, so that a process that is killed leaves nothing.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import pickle
import socket
from collections.abc import Sequence
from typing import Any

# Fewer bytes are cheaper in the socket.
_LEAST = 1 << 15
MOST = 64
"""Descriptors of one message, at most."""
IS_POSSIBLE = hasattr(os, "memfd_create")
"""Whether there are such files here; otherwise all bytes go through the socket."""
# Descriptors that are open. A process has few, and user code needs some: with so many, no further bytes are shared.
_open: set[int] = set()
_MOST_OPEN = 64
# Of Linux, in all versions of Python.
_ADD_SEALS, _GET_SEALS, _SEAL_SHRINK = 1033, 1034, 2
_ROOM = socket.CMSG_SPACE(MOST * array.array("i").itemsize)


class SharedBytes:
    """Bytes in shared memory.

    Parameters
    ----------
    descriptor : int
        The file, which is closed with this object.
    size : int
        How many bytes it has.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size
        _open.add(descriptor)

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        """Read them; ValueError if the file has fewer."""
        data = os.pread(self.descriptor, self.size, 0)
        if len(data) != self.size:
            raise ValueError(f"{self.size} bytes of shared memory were announced, and there are {len(data)}")
        return data

    def __del__(self) -> None:
        _open.discard(self.descriptor)
        os.close(self.descriptor)


AnyBytes = bytes | SharedBytes


class TooLarge(Exception):
    """More bytes were written than may be."""


class SharedWriter:
    """File for a pickler, of which the bytes are shared if they are many.

    Large parts are written as they are, without the copies that a pickle in memory takes.

    Parameters
    ----------
    most : int
        So many bytes may be written; TooLarge is raised for more.
    shares : bool
        Whether bytes may be shared.
    """

    def __init__(self, most: int, *, shares: bool = True) -> None:
        self._most, self._shares = most, shares and IS_POSSIBLE
        self._parts: list[bytes] = []
        self._size = 0
        self._shared: SharedBytes | None = None

    def write(self, data: Any) -> int:
        """Write bytes; returns how many they are."""
        size = memoryview(data).nbytes
        self._size += size
        if self._size > self._most:
            raise TooLarge
        if self._shared is None and self._shares and self._size >= _LEAST and len(_open) < _MOST_OPEN:
            self._begin_sharing()
        if self._shared is None:
            # Its memory is the pickler's.
            self._parts.append(bytes(data))
        else:
            _write(self._shared.descriptor, data)
        return size

    def _begin_sharing(self) -> None:
        try:
            descriptor = os.memfd_create("sky-call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            # There are too many open files.
            self._shares = False
            return
        self._shared = SharedBytes(descriptor, 0)
        for part in self._parts:
            _write(descriptor, part)

    def written(self) -> AnyBytes:
        """Return what was written."""
        if self._shared is None:
            return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        # Who maps the file would crash if it became shorter.
        fcntl.fcntl(self._shared.descriptor, _ADD_SEALS, _SEAL_SHRINK)
        self._shared.size = self._size
        return self._shared


def own(data: AnyBytes) -> AnyBytes:
    """Return bytes that are to be kept: those of this process if too many are shared."""
    return data if isinstance(data, SharedBytes) and len(_open) < _MOST_OPEN else bytes(data)


def _write(descriptor: int, data: Any) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left) :]


def loads(data: AnyBytes) -> Any:
    """Unpickle bytes; ValueError if shared ones are not as many as they should be."""
    if not isinstance(data, SharedBytes):
        return pickle.loads(data)
    is_sealed = fcntl.fcntl(data.descriptor, _GET_SEALS) & _SEAL_SHRINK
    if not is_sealed or os.fstat(data.descriptor).st_size < len(data):
        raise ValueError("shared bytes are not sealed, or fewer than was said")
    with mmap.mmap(data.descriptor, len(data), prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        return pickle.loads(view)


def send(connected: socket.socket, data: bytes | memoryview, shared: Sequence[SharedBytes]) -> int:
    """Send bytes, and descriptors of shared ones with the first of them; return how many bytes were sent."""
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
