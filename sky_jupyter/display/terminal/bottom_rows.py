"""Rows at the bottom of a terminal; output scrolls above them.

The cursor rests in an empty row above them. From there they can be erased, however the terminal has wrapped them after
a change of its size; a count of rows to go back would be wrong then. And what others write there, such as the
terminal's ``^C``, does not go into them.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TextIO

_GONE = "\r\x1b[J"
_REST_OF_ROW, _REST = "\x1b[K", "\x1b[J"
# Smallest terminal in which rows are drawn.
_FEWEST_COLUMNS, _FEWEST_LINES = 20, 5
_NAMES = ("stdout", "stderr")


def can_draw(stream: TextIO | None) -> bool:
    """Tell whether a stream is a free terminal with a movable cursor."""
    if stream is None or Region.standing is not None or os.environ.get("SKY_VIEW") == "lines":
        return False
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8" and is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal that can do more than print lines."""
    if stream is None or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return False
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def make_room() -> None:
    """Remove the rows until they are drawn again, so that a question can be asked."""
    if Region.standing is not None:
        Region.standing.hide()


def writable(text: str, stream: Any) -> str:
    """Replace characters that a stream cannot encode by question marks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


class Region:
    """Rows of one view; one view has them at a time, others print above them.

    Parameters
    ----------
    stream : file
        A terminal for which `can_draw` is true.
    """

    standing: ClassVar[Region | None] = None

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows: Sequence[str] = ()
        self._size = self.size
        # Output of the process since the last drawing: complete lines, and the rest of each stream.
        self._above: list[str] = []
        self._stand_ins: dict[str, _StandIn] = {}
        self._lock = threading.RLock()

    @property
    def size(self) -> os.terminal_size:
        """Current size of the terminal."""
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(self._stream.fileno())
            if size.columns and size.lines:
                return size
        return shutil.get_terminal_size()

    @property
    def room(self) -> int:
        """Largest number of rows: at most half of the terminal, none in a tiny one."""
        size = self.size
        if size.columns < _FEWEST_COLUMNS or size.lines < _FEWEST_LINES:
            return 0
        return max(1, size.lines // 2 - 1)

    def show(self, rows: Sequence[str], above: str = "") -> None:
        """Print whole lines of text, and draw rows below them.

        No row is wider than the terminal less one.
        """
        with self._lock:
            if rows:
                self._stand()
            above = "".join(self._above) + above
            self._above.clear()
            size = self.size
            if not above and (rows, size) == (self._rows, self._size):
                return
            # If nothing is printed above, each row is overwritten in place, so that it does not flicker.
            text = (_GONE if self._rows else "") + above if above or not rows else ""
            if rows:
                text += f"\r{_REST_OF_ROW}\n" + "\n".join(row + _REST_OF_ROW for row in rows)
                text += f"{_REST}\x1b[{len(rows)}A\r"
            self._rows, self._size = rows, size
            self._stream.write(writable(text, self._stream))
            self._stream.flush()

    def hide(self) -> None:
        """Remove the rows, and free the terminal for others, until the next `show`."""
        with self._lock:
            rests = "".join(self._unstand())
            self.show((), rests and f"{rests}\n")

    def _stand(self) -> None:
        """Take the terminal; what others print goes above the rows."""
        if Region.standing is None:
            Region.standing = self
            for name in _NAMES:
                stream = getattr(sys, name)
                if stream is not None and _is_terminal(stream):
                    self._stand_ins[name] = _StandIn(stream, self._take)
                    setattr(sys, name, self._stand_ins[name])

    def _unstand(self) -> Iterator[str]:
        """Restore the streams; yield what is left of unfinished lines."""
        if Region.standing is self:
            Region.standing = None
        for name, stand_in in self._stand_ins.items():
            if getattr(sys, name) is stand_in:
                setattr(sys, name, stand_in.stream)
            yield stand_in.rest
        self._stand_ins = {}

    def _take(self, text: str) -> None:
        with self._lock:
            self._above.append(text)


class _StandIn(io.TextIOBase):
    """Standard stream while rows are drawn: its lines go above them."""

    def __init__(self, stream: TextIO, take: Any) -> None:
        self.stream, self._take = stream, take
        self.rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            whole, newline, self.rest = (self.rest + text).rpartition("\n")
            if newline:
                self._take(whole + newline)
        return len(text)

    def flush(self) -> None:
        """Do nothing: lines are shown with the next drawing, within a tenth of a second."""

    def isatty(self) -> bool:
        """Return False, so that nobody else draws there."""
        return False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.stream.errors


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
