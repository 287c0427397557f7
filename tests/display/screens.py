"""A terminal that tests look at: a real pseudo-terminal, and an emulator that shows what a person would see."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from typing import Any, TextIO

import pyte


class Emulator:
    """What a terminal of this size shows of the bytes that it is fed, and what has scrolled away at its top."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=100_000, ratio=0.001)
        self._stream = pyte.ByteStream(self.screen)

    def feed(self, data: bytes) -> None:
        self._stream.feed(data)

    def resize(self, columns: int, lines: int) -> None:
        """As xterm does: rows are cut off at the right and below, and go up only where the cursor would be lost."""
        screen = self.screen
        up = max(0, screen.cursor.y - lines + 1)
        rows = [screen.buffer[y] for y in range(screen.lines)]
        kept, cursor = rows[up : up + lines], (screen.cursor.x, screen.cursor.y - up)
        screen.history.top.extend(rows[:up])
        screen.resize(lines, columns)
        screen.buffer.clear()
        screen.buffer.update(enumerate(kept))
        screen.cursor.x, screen.cursor.y = cursor

    @property
    def shown(self) -> list[str]:
        """The rows that are on the screen, down to the last that is not empty."""
        rows = [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def all(self) -> list[str]:
        """The same with what has scrolled away."""
        return [self._text(row) for row in self.screen.history.top] + self.shown

    def colours(self, text: str) -> set[str]:
        """The colours of the row that has this text in it."""
        (row,) = [y for y, line in enumerate(self.screen.display) if text in line]
        return {self.screen.buffer[row][x].fg for x in range(self.screen.columns)} - {"default"}

    @staticmethod
    def _text(row: Any) -> str:
        return "".join(row[x].data for x in range(max(row, default=-1) + 1)).rstrip()


class Terminal(Emulator):
    """A pseudo-terminal of this process, with `stream` to write to it; `look` takes in what was written."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        super().__init__(columns, lines)
        self._master, slave = os.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.bytes = b""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        super().resize(columns, lines)

    def look(self) -> list[str]:
        """What is on the screen now."""
        self.stream.flush()
        while select.select([self._master], [], [], 0)[0]:
            data = os.read(self._master, 1 << 16)
            self.bytes += data
            self.feed(data)
        return self.shown

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)
