"""Output of one rank as a terminal has it: lines that can change, and rich items.

`Transcript` is the text alone. `RankOutput` keeps several of them in order, and the rich items between them; the
display makes one for each rank of a run, and drops it with the run's view.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import ansi

Cell = tuple[ansi.Style, str]

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TOKEN = re.compile(rf"(?P<text>[^\x00-\x08\x0a-\x1f\x7f-\x9f]+)|(?P<move>[\n\r\b])|{ansi.ESCAPE.pattern}|.", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]+)?\Z")
_NEWLINE = re.compile(r"\r?\n")
# Most characters of an unfinished escape that are held back; a longer one is shown as text.
_MAX_HELD = 4096
# Highest column that a cursor can be moved to beyond the end of its line.
_WIDTH = 1000


class Transcript:
    """Text of one rank, fed in the pieces that the rank has printed.

    It supports line feed, carriage return and backspace, the cursor movements and erasures that progress bars use, and
    colours; other escapes are dropped. Each line sets the colours that it needs and ends without any.

    Parameters
    ----------
    max_lines : int
        Number of last lines to keep; `dropped` counts the others.
    max_columns : int
        How long a line can grow; the rest of it is left out.
    max_chars : int
        About how much text is kept in all.
    """

    def __init__(self, max_lines: int = 10_000, max_columns: int = 100_000, max_chars: int = 16_000_000) -> None:
        self.max_lines, self.max_columns, self.max_chars = max_lines, max_columns, max_chars
        self.clear()

    def clear(self) -> None:
        """Forget everything, as ``clear_output`` asks."""
        # A row is text while it only grows, and cells once the cursor has gone back into it.
        self._rows: list[str | list[Cell]] = [""]
        self._row = 0
        self._column: int | None = None  # None is the end of a row that is text
        self._style = ansi.PLAIN
        self._stderr = False
        self._held = ""
        self._size = 0
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Number of lines dropped from the beginning."""
        return self._dropped + max(0, len(self) - self.max_lines)

    @property
    def lines(self) -> list[str]:
        """Kept lines, the unfinished one included."""
        return self.tail(self.max_lines)

    def __len__(self) -> int:
        return len(self._rows) - (not self._rows[-1])

    def tail(self, count: int) -> list[str]:
        """Return the last `count` lines at most."""
        end = len(self)
        return [self._text(row) for row in self._rows[max(0, end - min(count, self.max_lines)) : end]]

    def text(self) -> str:
        """Return all that is kept as one text."""
        return "\n".join(self.lines) + "\n" * (len(self) < len(self._rows) and len(self) > 0)

    def replay(self, count: int) -> str:
        """Return text that rebuilds the last `count` lines in an empty transcript."""
        lines = self.tail(count)
        if not lines:
            return self._held
        text = "\n".join(lines) + "\n" * (not self.open)
        end = len(self._rows) - 1
        if self._row < end:
            text += f"\x1b[{min(end - self._row, len(lines))}A"
        if self._column is not None or self._row < end:
            row = self._rows[self._row]
            column = self._column if self._column is not None else len(ansi.strip(self._text(row)))
            text += "\r" + f"\x1b[{column}C" * (column > 0)
        return text + (f"\x1b[{ansi.codes_of(self._style)}m" if self._style != ansi.PLAIN else "") + self._held

    def feed(self, text: str, *, stderr: bool = False) -> None:
        """Take further output of the rank, to stdout or stderr."""
        self._stderr = stderr
        text = self._held + text
        self._held = ""
        if self._at_end() and self._style == ansi.PLAIN and not CONTROL.search(text):
            self._feed_plain(text)
        else:
            unfinished = _UNFINISHED.search(text, max(0, len(text) - _MAX_HELD))
            if unfinished:
                self._held, text = text[unfinished.start() :], text[: unfinished.start()]
            for token in _TOKEN.finditer(text):
                self._take(token)
        self._size += len(text)
        self._trim()

    def drop_blank(self) -> None:
        """Remove an unfinished blank last line, which a removed progress bar leaves."""
        if self.open and self._row == len(self._rows) - 1 and not ansi.strip(self._text(self._rows[-1])).strip():
            self._rows[-1], self._column = "", None

    def end_line(self) -> None:
        """Begin a new line below all others, unless there is one."""
        if self.open:
            self.feed("\n" * (len(self._rows) - self._row), stderr=self._stderr)

    @property
    def size(self) -> int:
        """About how much memory the text takes, in characters."""
        return 500 + self._size

    @property
    def open(self) -> bool:
        """True if the last line is not finished."""
        return len(self) == len(self._rows)

    def _at_end(self) -> bool:
        return self._column is None and self._row == len(self._rows) - 1

    def _feed_plain(self, text: str) -> None:
        first, *others = text.split("\n")
        if first:
            self._append(first)
        if others and max(map(len, others)) > self.max_columns:
            others = [self._cut(line) for line in others]
        if self._stderr:
            others = [ansi.wrapped(self._look, line) for line in others]
        self._rows += others
        self._row += len(others)

    def _take(self, token: re.Match[str]) -> None:
        if token["text"]:
            self._write(token["text"])
        elif token["move"] == "\n":
            self._newline()
        elif token["move"] == "\r":
            self._column = 0 if self._rows[self._row] else None
        elif token["move"] == "\b":
            self._column = max(0, self._at() - 1)
        elif token[4] == "m":
            self._style = ansi.restyled(self._style, token[3])
        elif token[4]:
            self._control(token[4], token[3])

    @property
    def _look(self) -> ansi.Style:
        """Style of what is written next; a reset does not take it off stderr."""
        return self._style._replace(stderr=True) if self._stderr else self._style

    def _write(self, text: str) -> None:
        if self._column is None:
            self._append(text)
            return
        cells, start = self._cells(), self._column
        text = text[: max(0, self.max_columns - start)]
        if start > len(cells):
            cells += [(ansi.PLAIN, " ")] * (start - len(cells))
        style = self._look
        cells[start : start + len(text)] = [(style, letter) for letter in text]
        self._column = start + len(text)

    def _append(self, text: str) -> None:
        row = self._text(self._rows[self._row])
        if len(row) <= self.max_columns:
            text = self._cut(text, self.max_columns - len(row))
            self._rows[self._row] = ansi.joined(row, self._look, text)

    def _cut(self, line: str, room: int | None = None) -> str:
        room = self.max_columns if room is None else room
        return line if len(line) <= room else line[:room] + "…"

    def _newline(self) -> None:
        row = self._rows[self._row]
        if isinstance(row, list):
            self._rows[self._row] = done = self._text(row)
            self._size += len(done)
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
        self._column = 0 if self._rows[self._row] else None

    def _control(self, kind: str, codes: str) -> None:
        """Execute ``ESC [ codes kind``; an unknown one has no effect."""
        digits = codes.partition(";")[0]
        number = int(digits[:6]) if digits.isdecimal() else 0
        steps = max(1, number)
        if kind in "ABEF":
            column = self._at()
            up = kind in "AF"
            self._row = max(0, self._row - steps) if up else min(len(self._rows) - 1, self._row + steps)
            self._column = column if kind in "AB" else 0
        elif kind in "CDG":
            column = {"C": self._at() + steps, "D": self._at() - steps, "G": steps - 1}[kind]
            self._column = max(0, min(column, max(_WIDTH, len(self._cells()))))
        elif kind == "K":
            self._erase(number)
        elif kind == "J" and number == 0:
            self._erase(0)
            del self._rows[self._row + 1 :]

    def _erase(self, what: int) -> None:
        """Erase in the cursor's row: from the cursor (0), up to it (1), or all (2)."""
        column = self._at()
        cells = self._cells()
        if what == 1:
            count = min(column + 1, len(cells))
            cells[:count] = [(ansi.PLAIN, " ")] * count
        else:
            del cells[column if what == 0 else 0 :]
        if not cells:
            # An empty row grows as text again, which is quicker.
            self._rows[self._row] = ""
            self._column = column or None

    def _at(self) -> int:
        return len(self._cells()) if self._column is None else self._column

    def _cells(self) -> list[Cell]:
        row = self._rows[self._row]
        if isinstance(row, str):
            row = [(style, letter) for style, piece in ansi.runs(row) for letter in piece]
            self._rows[self._row] = row
            if self._column is None:
                self._column = len(row)
        return row

    @staticmethod
    def _text(row: str | list[Cell]) -> str:
        if isinstance(row, str):
            return row
        pieces, start = [], 0
        for index in range(1, len(row) + 1):
            if index == len(row) or row[index][0] != row[start][0]:
                pieces.append(ansi.wrapped(row[start][0], "".join(letter for _, letter in row[start:index])))
                start = index
        return "".join(pieces)

    def _trim(self) -> None:
        # Only at twice the limit, so that a line costs the same however many there are.
        if self._size > 2 * self.max_chars or len(self._rows) > 2 * self.max_lines + 1:
            keep = min(len(self._rows), self.max_lines + 1)
            sizes = [len(row) for row in self._rows]
            while keep > 1 and sum(sizes[-keep:]) > self.max_chars:
                keep = (keep + 1) // 2
            gone = len(self._rows) - keep
            del self._rows[:gone]
            self._dropped += gone
            self._row = max(0, self._row - gone)
            self._size = sum(sizes[-keep:])


class Streams:
    """Separator of a rank's stdout and stderr: neither continues the other's line.

    Output comes from one stream at a time: the newline that ends a progress bar on stderr may come after later output
    on stdout.
    """

    def __init__(self) -> None:
        self.last = ""
        self._ended: set[str] = set()

    def next(self, name: str, text: str, *, open: bool) -> tuple[bool, str]:
        """Return whether a stream's text needs a new line, and the part to show.

        ``open`` is True if the last line is not finished.
        """
        late = _NEWLINE.match(text) if name in self._ended else None
        if text:
            self._ended.discard(name)
        if late:
            # A new line was begun for it already.
            text = text[late.end() :]
        if not text or name == self.last:
            return False, text
        last, self.last = self.last, name
        if not open or _NEWLINE.match(text):
            return False, text
        self._ended.add(last)
        return True, text


@dataclass(frozen=True)
class Text:
    """Lines that a rank printed between two rich items."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Rich:
    """Plot, table or other rich item: data by media type, as in Jupyter's messages."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)


Segment = Text | Rich


class OutputPart(NamedTuple):
    """Stretch of output for a page: text, or an item with its display ids."""

    text: str = ""
    rich: Rich | None = None
    ids: tuple[str, ...] = ()


class RankOutput:
    """All output of one rank in order; fed with the contents of Jupyter's messages.

    Parameters
    ----------
    max_lines : int
        Lines to keep of each stretch of text, and the minimum number of stretches and items to keep.
    max_chars : int
        About how much text is kept in all, that of items included.
    """

    def __init__(self, max_lines: int = 10_000, max_chars: int = 16_000_000) -> None:
        self.max_lines, self.max_chars = max_lines, max_chars
        self._parts: list[Transcript | Rich] = []
        # Index of the first part that is kept, among all parts; size of the kept parts.
        self._first = self._size = 0
        # Items and lines that were dropped.
        self._gone_items = self._gone_lines = 0
        self._by_id: dict[str, list[int]] = {}
        self._clear_next = False
        self._streams = Streams()

    def feed(self, text: str, name: str = "stdout") -> None:
        """Take text of stdout or stderr; neither continues the other's line."""
        self._cleared()
        if not self._parts or not isinstance(self._parts[-1], Transcript):
            self._parts.append(Transcript(self.max_lines))
        part = self._parts[-1]
        assert isinstance(part, Transcript)
        if name != self._streams.last:
            part.drop_blank()
        fresh, text = self._streams.next(name, text, open=part.open)
        if fresh:
            part.end_line()
        part.feed(text, stderr=name == "stderr")
        self._note(len(text))

    def show(
        self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, display_id: str | None = None
    ) -> None:
        """Take a ``display_data``; `display_id` lets `update` find it."""
        self._cleared()
        if display_id is not None:
            self._by_id.setdefault(display_id, []).append(self._first + len(self._parts))
        self._parts.append(Rich(data, metadata or {}))
        self._note(_size(self._parts[-1]))

    def _note(self, size: int) -> None:
        """Note that so much more is kept; drop the oldest parts if that is too much."""
        self._size += size
        # Only at twice the limit, so that an item costs the same however many there are.
        if self._size <= 2 * self.max_chars and len(self._parts) <= 2 * self.max_lines:
            return
        sizes = [_size(part) for part in self._parts]
        self._size, gone = sum(sizes), 0
        while gone < len(sizes) - 1 and (self._size > self.max_chars or len(sizes) - gone > self.max_lines):
            part = self._parts[gone]
            self._size -= sizes[gone]
            self._gone_items += isinstance(part, Rich)
            self._gone_lines += 0 if isinstance(part, Rich) else part.dropped + len(part)
            gone += 1
        del self._parts[:gone]
        self._first += gone
        kept = {name: [at for at in positions if at >= self._first] for name, positions in self._by_id.items()}
        self._by_id = {name: positions for name, positions in kept.items() if positions}

    @property
    def _left_out(self) -> str:
        """Note in place of the items that were dropped."""
        count = self._gone_items
        return f"… {count:,} earlier item{'s' * (count != 1)} left out …" if count else ""

    def update(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Take an ``update_display_data``: replace what `display_id` shows, if anything."""
        for position in self._by_id.get(display_id, ()):
            self._parts[position - self._first] = Rich(data, metadata or {})

    def clear(self, wait: bool = False) -> None:
        """Take a ``clear_output``; with `wait`, when the next output comes."""
        self._clear_next = True
        if not wait:
            self._cleared()

    def _cleared(self) -> None:
        if self._clear_next:
            self._clear_next = False
            self._parts.clear()
            self._by_id.clear()
            self._first = self._size = self._gone_items = self._gone_lines = 0

    @property
    def stream(self) -> str:
        """Name of the last stream; empty before the first."""
        return self._streams.last

    def parts(self, max_lines: int) -> tuple[list[OutputPart], int]:
        """Return `segments` with cursor and display ids, so that output can be appended."""
        ids: dict[int, list[str]] = {}
        for name, positions in self._by_id.items():
            for position in positions:
                ids.setdefault(position - self._first, []).append(name)
        done: list[OutputPart] = []
        left, out = max_lines, self._gone_lines
        for position in range(len(self._parts) - 1, -1, -1):
            part = self._parts[position]
            if isinstance(part, Rich):
                done.append(OutputPart(rich=part, ids=tuple(ids.get(position, ()))))
                continue
            shown = min(left, len(part), part.max_lines)
            left -= shown
            out += part.dropped + min(len(part), part.max_lines) - shown
            if shown:
                done.append(OutputPart(part.replay(shown)))
        if self._left_out:
            done.append(OutputPart(f"{self._left_out}\n"))
        return done[::-1], out

    def segments(self, max_lines: int) -> tuple[tuple[Segment, ...], int]:
        """Return the last `max_lines` lines and all rich items.

        The second value is the number of lines that are left out.
        """
        shown: list[Segment] = []
        left, out = max_lines, self._gone_lines
        for part in reversed(self._parts):
            if isinstance(part, Rich):
                shown.append(part)
                continue
            lines = part.tail(left) if left else []
            left -= len(lines)
            out += part.dropped + min(len(part), part.max_lines) - len(lines)
            if lines:
                shown.append(Text(tuple(lines)))
        if self._left_out:
            shown.append(Text((self._left_out,)))
        return tuple(reversed(shown)), out


def _size(part: Transcript | Rich) -> int:
    """Return about how much memory a part takes."""
    if isinstance(part, Transcript):
        return part.size
    return 500 + sum(len(value) if isinstance(value, str) else 500 for value in part.data.values())
