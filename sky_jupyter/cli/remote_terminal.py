"""A terminal on a rank's node, in the terminal of the person who asks for it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

from ..access.terminal_client import TerminalLine
from ..errors import PoolError

# The status of ssh after its connection has broken.
BROKEN = 255
_SIGNALLED = 128
# Rows and columns if there is no terminal.
_SIZE = 24, 80
_PIECE = 16 << 10
# Most bytes of input that wait to be sent; the terminal keeps more.
_MOST_INPUT = 64 << 10
_PAUSE = 0.05
_LOOK = 5.0


class RemoteTerminal:
    """Terminal of a rank's node, shown in this process's own.

    Parameters
    ----------
    line : TerminalLine
        The sender of requests to the pool.
    rank : int
        The rank.
    command : str, optional
        What the node's shell runs; without it, the shell reads what is typed.
    idle : float, optional
        Seconds without a key after which it ends.
    """

    def __init__(self, line: TerminalLine, rank: int, command: str | None = None, idle: float | None = None) -> None:
        self._line, self._command, self._idle = line, command, idle
        self._to = {"rank": rank, "id": secrets.token_hex(16)}
        self._input = bytearray()
        self._typed, self._resized = asyncio.Event(), asyncio.Event()
        # How many bytes have been passed on.
        self._sent = 0
        self._touched = time.monotonic()
        self._why = ""
        self._tasks: list[asyncio.Task[Any]] = []

    async def open(self) -> None:
        """Start the program on the node."""
        size, term = _size(), os.environ.get("TERM") or "dumb"
        about = {"command": self._command} if self._command is not None else {}
        await self._ask("open", size=size, term=term, **about)

    async def run(self) -> int:
        """Show the terminal until its program ends; return the exit status."""
        try:
            with self._listening():
                reading = asyncio.ensure_future(self._show())
                others = self._send(), self._watch(), self._resize()
                self._tasks = [reading, *map(asyncio.ensure_future, others)]
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in self._tasks:
                    if task.done() and not task.cancelled():
                        # Raise what went wrong.
                        task.result()
                if self._why or not reading.done():
                    raise PoolError(self._why or "the terminal was closed")
                status = reading.result()
                return status if status >= 0 else _SIGNALLED - status
        finally:
            for task in self._tasks:
                task.cancel()
            with contextlib.suppress(PoolError, asyncio.TimeoutError):
                await asyncio.wait_for(self._ask("close"), _LOOK)

    async def _ask(self, action: str, **content: Any) -> dict[str, Any]:
        return await self._line.ask({"action": action, **self._to, **content})

    async def _show(self) -> int:
        """Write what the program prints; return its exit status."""
        read = 0
        while True:
            answer = await self._ask("read", after=read)
            data = base64.b64decode(answer["data"])
            read += len(data)
            if data:
                await _write(data)
            elif answer["exit"] is not None:
                return int(answer["exit"])

    async def _send(self) -> None:
        """Pass on what is typed, in order."""
        while True:
            await self._typed.wait()
            data = bytes(self._input[:_PIECE])
            if not data:
                self._typed.clear()
                continue
            taken = (await self._ask("write", at=self._sent, data=base64.b64encode(data).decode()))["taken"]
            if taken == self._sent:
                # The program does not read its input now.
                await asyncio.sleep(_PAUSE)
            del self._input[: taken - self._sent]
            self._sent = taken
            self._listen()

    async def _resize(self) -> None:
        """Send the window's sizes one at a time, and skip all but the latest."""
        while True:
            await self._resized.wait()
            self._resized.clear()
            # A size that did not arrive is no reason to end.
            with contextlib.suppress(PoolError):
                await self._ask("resize", size=_size())

    async def _watch(self) -> None:
        """Wait until nobody has typed for too long."""
        if self._idle is None:
            await asyncio.Event().wait()
        assert self._idle is not None
        while True:
            left = self._touched + self._idle - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(left)
        self._why = f"nobody has typed for {self._idle:.0f} s: the pool, which nobody else manages, is released"

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Take keys and signals inside the block; the terminal shows no key by itself."""
        loop = asyncio.get_running_loop()
        ends = (signal.SIGHUP, signal.SIGTERM)
        for number in ends:
            loop.add_signal_handler(number, self._stop, f"ended by {number.name}")
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        try:
            with _raw():
                self._listen()
                yield
        finally:
            self._deafen()
            for number in (*ends, signal.SIGWINCH):
                loop.remove_signal_handler(number)

    def _listen(self) -> None:
        if sys.stdin.isatty() and len(self._input) < _MOST_INPUT:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._take)

    def _deafen(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _take(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), _PIECE)
        except OSError:
            data = b""
        if not data:
            self._deafen()
            self._stop("the terminal was closed")
            return
        self._touched = time.monotonic()
        self._input += data
        self._typed.set()
        if len(self._input) >= _MOST_INPUT:
            self._deafen()

    def _stop(self, why: str) -> None:
        self._why = why
        for task in self._tasks:
            task.cancel()


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Pass keys on as they are typed inside the block, those that interrupt too."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    # What was typed already is for the program too.
    tty.setraw(sys.stdin, termios.TCSADRAIN)
    try:
        yield
    finally:
        # The terminal may be gone.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _size() -> list[int]:
    # shutil's function trusts COLUMNS and LINES, which do not follow the window.
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        if rows and columns:
            return [rows, columns]
    return list(_SIZE)


async def _write(data: bytes) -> None:
    """Write to the terminal, which may be slow."""
    left = memoryview(data)
    while left:
        left = left[await asyncio.to_thread(os.write, sys.stdout.fileno(), left) :]


__all__ = ["BROKEN", "RemoteTerminal"]
