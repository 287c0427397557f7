"""Channels of short calls: to local agents, or to one agent elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...node.protocol import shared_bytes
from ...node.protocol import short_call_frames as frames
from ...node.protocol.shared_bytes import SharedBytes
from ...node.system import peer_user

_READ = 1 << 18
# Bytes a second of a slow network.
_SLOW = 1_000_000


class CallChannel(ABC):
    """Standing connection that the loop reads.

    Parameters
    ----------
    incarnations : dict of int to str
        The incarnations of the agents that it leads to, by node.
    """

    def __init__(self, incarnations: dict[int, str]) -> None:
        self.incarnations = incarnations
        # The functions that were sent on it.
        self.known: set[bytes] = set()

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether calls can be sent."""

    @property
    @abstractmethod
    def is_here(self) -> bool:
        """Whether it leads to a process on this machine, with which memory can be shared."""

    @abstractmethod
    def delay(self, size: int) -> float:
        """Return the seconds that ``size`` bytes of arguments and the value may travel."""

    @abstractmethod
    def write(self, data: bytes, shared: Sequence[SharedBytes] = ()) -> None:
        """Send frames, and the shared bytes in the last of them."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class RemoteCallChannel(CallChannel):
    """Dask connection to one agent, over TLS.

    Parameters
    ----------
    comm : Comm
        The connection.
    incarnations : dict of int to str
        The incarnation of the agent, by its node.
    latency : float
        Seconds from a small message to its answer.
    """

    def __init__(self, comm: Any, incarnations: dict[int, str], latency: float) -> None:
        super().__init__(incarnations)
        self._comm, self._latency = comm, latency

    @property
    def is_open(self) -> bool:
        return not self._comm.stream.closed()

    @property
    def is_here(self) -> bool:
        return False

    def delay(self, size: int) -> float:
        return self._latency + size / _SLOW

    def write(self, data: bytes, shared: Sequence[SharedBytes] = ()) -> None:
        self._comm.stream.write(data)

    def close(self) -> None:
        self._comm.abort()


class LocalCallChannel(CallChannel):
    """Unix socket to the agents of a process on this machine."""

    def __init__(
        self,
        connected: socket.socket,
        incarnations: dict[int, str],
        on_frame: Callable[[LocalCallChannel, list[Any]], None],
        on_close: Callable[[LocalCallChannel], None],
    ) -> None:
        super().__init__(incarnations)
        self._line = frames.FrameSocket(connected, lambda frame: on_frame(self, frame), lambda: on_close(self))

    @property
    def is_open(self) -> bool:
        return not self._line.closed

    @property
    def is_here(self) -> bool:
        return True

    def delay(self, size: int) -> float:
        return 0.0

    def write(self, data: bytes, shared: Sequence[SharedBytes] = ()) -> None:
        self._line.send(data, shared)

    def close(self) -> None:
        self._line.close()


class DirectLine:
    """Unix socket to the agents of a local process, for direct calls.

    One thread uses it at a time; any thread may close it. ``known`` are the functions that its agents have been sent,
    here or on the channel beside it.
    """

    def __init__(self, connected: socket.socket, incarnations: dict[int, str], known: set[bytes]) -> None:
        self.incarnations, self.known = incarnations, known
        self.is_open = True
        self._socket, self._frames, self._poll = connected, frames.Frames(), select.poll()
        self._poll.register(connected, select.POLLIN)

    def send(self, data: bytes, shared: Sequence[SharedBytes]) -> bool:
        """Send frames and shared bytes at once; return False if nobody received them."""
        try:
            if shared_bytes.send(self._socket, data, shared) == len(data):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        # The other end drops a frame that was sent only in part.
        self.close()
        return False

    def receive(self, seconds: float) -> Iterator[list[Any]]:
        """Wait for frames, and yield those that have come."""
        if not self._poll.poll(seconds * 1000):
            return
        descriptors: list[int] = []
        try:
            data, descriptors = shared_bytes.receive(self._socket, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            yield from self._frames.feed(data, descriptors)
        else:
            self.close()

    def close(self) -> None:
        """Close the line; a thread that waits on it sees that."""
        self.is_open = False
        # Only shut down: another file must not get its descriptor while a thread waits on it. `__del__` closes it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()


async def connect_here(path: str, manager: int, timeout: float) -> tuple[socket.socket, dict[int, str]]:
    """Connect to the agents of a local process; return the socket and incarnations.

    Raises OSError, ValueError or TypeError if there is no such process, or its answer is invalid; asyncio.TimeoutError
    if there is no answer in time.
    """
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.setblocking(False)
        connected.connect(path)
        if not peer_user.is_own(connected):
            raise OSError("the agents' process is another user's")
        connected.send(frames.pack(frames.HELLO, manager))
        read = frames.Frames()
        told = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connected, _READ), timeout)
        ((kind, incarnations),) = read.feed(told)
        if kind != frames.OPENED:
            raise ValueError("the agents' process gave another answer")
        return connected, {int(node): str(one) for node, one in incarnations.items()}
    except BaseException:
        connected.close()
        raise
