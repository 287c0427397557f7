"""Requests to shared objects by the scheduler's socket, from its own machine.

The requesting thread itself writes to the socket and waits there: no other thread or process takes part. Each waiting
request has its own connection, which others reuse later. docs/design-calls.md describes it all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from ..protocol import shared_state_frames as frames
from ..protocol.short_call_frames import pack
from ..system import peer_user

Answer = tuple[dict[str, Any], list[bytes]]
_READ = 1 << 16
# Most connections of a process; further requests go through the agent.
_MOST = 64
# Most bytes of keys and values that a coroutine sends: a socket accepts them at once.
_MOST_AT_ONCE = 1 << 16
# User code may have changed the effect of a broken pipe.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class DirectRequests:
    """Connections of a process to the scheduler on its machine.

    Made once the scheduler has answered an indirect request.

    Parameters
    ----------
    path : str
        The scheduler's socket.
    who : str
        The requester's name, as the scheduler knows it.
    """

    def __init__(self, path: str, who: str) -> None:
        self._path, self._who, self._pid = path, who, os.getpid()
        # All connections, and the unused ones.
        self._lines: set[_Line] = set()
        self._idle: deque[_Line] = deque()
        self._is_closed = False

    def ask(self, id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str) -> Answer | None:
        """Send a request and wait for its answer; see `AgentChannel.ask`.

        Parameters
        ----------
        id : str
            The request's id.
        what : dict
            The request.
        data : sequence of bytes
            Keys and values.
        epoch : str or None
            Epoch of the scheduler that answered last; no other scheduler is asked.
        where : str
            What the request waits for.

        Returns
        -------
        tuple or None
            The answer and its keys and values; None if the request must go through the agent, under the same id.
        """
        frame = self._pack(id, what, data, frames.MOST)
        if frame is None or epoch is None or (line := self._take(epoch)) is None:
            return None
        try:
            answer = line.ask(frame)
            self._idle.append(line)
            return answer
        except BaseException as error:
            if self._is_interrupted(line, error, id, where):
                raise
            return None

    async def ask_async(
        self, id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str
    ) -> Answer | None:
        """Send a request and await its answer; see `ask`."""
        frame = self._pack(id, what, data, _MOST_AT_ONCE)
        if frame is None or epoch is None or (line := self._take(epoch)) is None:
            return None
        try:
            answer = await line.ask_async(frame)
            self._idle.append(line)
            return answer
        except BaseException as error:
            if self._is_interrupted(line, error, id, where):
                raise
            return None

    def close(self) -> None:
        """Close all connections; waiting requests go through the agent. From any thread."""
        if os.getpid() == self._pid:
            self._is_closed = True
            self._idle.clear()
            for line in list(self._lines):
                self._drop(line)

    def _pack(self, id: str, what: dict[str, Any], data: Sequence[bytes], most: int) -> bytes | None:
        """Return a request's frame; None if the request must go through the agent."""
        if os.getpid() != self._pid or sum(map(len, data)) > most:
            return None
        try:
            return pack(frames.REQUEST, id, what, data)
        except (ValueError, OverflowError):
            # Texts and numbers that only JSON can represent.
            return None

    def _is_interrupted(self, line: _Line, error: BaseException, id: str, where: str) -> bool:
        """End a failed request; return False if a broken connection calls for a resend."""
        with undisturbed():
            goes_on = isinstance(error, OSError) and line.is_broken
            with contextlib.suppress(ValueError):
                self._idle.remove(line)
            if where and not goes_on:
                # Cancel through another connection: part of the answer may have been read from this one.
                self._cancel(id, line.epoch)
                tell_where(error, where)
            self._drop(line)
        return not goes_on

    def _cancel(self, id: str, epoch: str) -> None:
        if (line := self._take(epoch)) is not None:
            with contextlib.suppress(OSError):
                line.send(pack(frames.CANCEL, id))
                self._idle.append(line)

    def _take(self, epoch: str) -> _Line | None:
        """Return an unused connection; None if there can be none."""
        with contextlib.suppress(IndexError):
            while True:
                # The last one, so that one thread gets the same connection again and again.
                line = self._idle.pop()
                if line.epoch == epoch:
                    return line
                self._drop(line)
        if len(self._lines) >= _MOST:
            return None
        try:
            line = _Line(socket.socket(socket.AF_UNIX), self._path, self._who, epoch)
        except OSError:
            return None
        self._lines.add(line)
        if self._is_closed:
            self._drop(line)
            return None
        return line

    def _drop(self, line: _Line) -> None:
        self._lines.discard(line)
        line.close()


class _Line:
    """Connection to the scheduler for one thread or coroutine; any may close it."""

    def __init__(self, unconnected: socket.socket, path: str, who: str, epoch: str) -> None:
        self._socket, self.epoch = unconnected, epoch
        self._unpacker = msgpack.Unpacker(max_buffer_size=0)
        self._socket.connect(path)
        if not peer_user.is_own(self._socket):
            raise OSError("the scheduler is another user's")
        self.send(pack(frames.HELLO, who, epoch))

    @property
    def is_broken(self) -> bool:
        """Whether either end has closed it.

        An error alone does not show it: a signal's handler may have raised the error.
        """
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame, _NO_SIGNAL)

    def ask(self, frame: bytes) -> Answer:
        """Send a request and wait for the answer; OSError if the connection is broken."""
        self.send(frame)
        while (answer := self._read(self._socket.recv(_READ))) is None:
            pass
        return answer

    async def ask_async(self, frame: bytes) -> Answer:
        """Send a request and await the answer; see `ask`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def on_readable() -> None:
            try:
                answer = self._read(self._socket.recv(_READ, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return
            except Exception as error:
                loop.remove_reader(self._socket)
                if not future.done():
                    future.set_exception(error)
                return
            if answer is not None and not future.done():
                future.set_result(answer)

        self.send(frame)
        loop.add_reader(self._socket, on_readable)
        try:
            return await future
        finally:
            loop.remove_reader(self._socket)

    def _read(self, received: bytes) -> Answer | None:
        """Handle received bytes; return the answer once it is complete."""
        if not received:
            raise ConnectionError("the scheduler has closed the connection")
        self._unpacker.feed(received)
        for answer in self._unpacker:
            return answer, answer.pop("data", [])
        return None

    def close(self) -> None:
        # A waiting thread's file descriptor must not be reused for another file, so it is freed only with this object.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()


def tell_where(error: BaseException, where: str) -> None:
    """Make an interrupt's message say what was waited for."""
    if isinstance(error, KeyboardInterrupt) and not error.args:
        error.args = (where,)
        interrupted[:] = [where]


# What this rank's code waited for when it was interrupted, until its request ends. A second interrupt, in code that the
# first one started, does not have that text.
interrupted: list[str] = []


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore interrupts during the block; no-op outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
