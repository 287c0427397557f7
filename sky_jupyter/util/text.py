"""Texts for people: sizes, ranks, near words, and terminal-safe messages."""

from __future__ import annotations

import re
from collections.abc import Iterable


def format_size(size: float) -> str:
    """Return bytes in decimal units: ``"12 bytes"``, ``"3.4 MB"``, ``"64 MB"``."""
    if size < 1000:
        return f"{size:.0f} bytes"
    units, value = ["TB", "GB", "MB", "kB"], size / 1000
    while value >= 999.5 and len(units) > 1:
        units.pop()
        value /= 1000
    number = f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
    return f"{number} {units[-1]}"


def format_ranks(ranks: Iterable[int], comma: str = ",") -> str:
    """Return ranks as ranges: ``"0-3,5"``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return comma.join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def node_label(nodes: Iterable[int]) -> str:
    """Return ``"node 2"`` or ``"nodes 0-3, 5"``."""
    text = format_ranks(nodes, ", ")
    return f"node{'' if text.isdecimal() else 's'} {text}"


def rank_label(ranks: Iterable[int]) -> str:
    """Return ``"rank 2"`` or ``"ranks 0-3, 5"``."""
    text = format_ranks(ranks, ", ")
    return f"rank{'' if text.isdecimal() else 's'} {text}"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a message; empty if no word is near."""
    import difflib

    near = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def shortened(message: str, given: str, limit: int = 80) -> str:
    """Shorten the parts of a message that repeat a person's long input.

    ``given`` is that input: only runs of letters that occur in it are cut, to ``limit`` letters each.
    """

    def cut(match: re.Match[str]) -> str:
        run = match[0]
        return f"{run[:limit]}…" if run[:limit] in given else run

    return re.sub(rf"[^\s'\"]{{{limit + 1},}}", cut, message)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if that is empty."""
    return str(error).partition("\n")[0] or type(error).__name__


def plain(text: str) -> str:
    """Return a text without colour sequences."""
    return _COLOUR.sub("", text)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Sequences that move the cursor, query the terminal or hide text: CSI except colours; OSC, DCS and similar with their
# content; other escapes; their C1 equivalents; and the rest of the control characters.
_UNSAFE = re.compile(
    r"\x1b\[[0-9;:]*m(?P<end>)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
    r"|\r(?!\n)(?P<line>)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# Characters that change the direction of the following text, so that it reads differently.
_TURNS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def cleaned(text: str) -> str:
    """Return a text that is safe for a terminal: only lines, tabs and colours stay."""
    if text.isprintable():
        return text
    return visible(_UNSAFE.sub(_kept, text))


def visible(text: str) -> str:
    """Return a text with its bidirectional control characters escaped."""
    return text if text.isascii() else text.translate(_TURNS)


def _kept(found: re.Match[str]) -> str:
    return found[0] if found["end"] is not None else "\n" if found["line"] is not None else ""
