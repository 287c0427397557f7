"""Bracket expressions of ``.gitignore``: ``[a-f]``, ``[!x]``, ``[[:digit:]_]``.

pathspec passes them to `re` nearly unchanged, but `re` has no classes such as ``[:alpha:]`` and no escapes of this
kind. So they are rewritten from the characters that they stand for.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

# Ranges of ASCII as git has them. No set matches a slash. A line break in a name is a null here.
_CLASSES = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\0\0\t\t\r\r  ",
    "upper": "AZ",
    "xdigit": "09AFaf",
}
# Their meaning in a set depends on their place.
_SPECIAL = "]^!-"
_Ranges = list[tuple[str, str]]


def plain_brackets(line: str) -> str | None:
    """Return a line with simple brackets only, or None if git lets it match nothing."""
    out, at = "", 0
    while at < len(line):
        if line[at] == "[":
            found = _read(line, at + 1)
            if found is None:
                return None
            negated, ranges, at = found
            text = _text(ranges, negated=negated)
            if text is None:
                return None
            out += text
        else:
            step = 2 if line[at] == "\\" else 1
            out += line[at : at + step]
            at += step
    return out


def _read(line: str, at: int) -> tuple[bool, _Ranges, int] | None:
    """Return an expression's negation, ranges and end; None if it is not one."""
    negated = line[at : at + 1] in ("!", "^")
    begin = at = at + negated
    ranges: _Ranges = []
    while at < len(line) and (line[at] != "]" or at == begin):
        end = line.find("]", at + 2) if line.startswith("[:", at) else -1
        if end > 0 and line[end - 1] == ":" and end > at + 2:
            if (members := _CLASSES.get(line[at + 2 : end - 1])) is None:
                return None
            ranges += zip(members[::2], members[1::2], strict=True)
            at = end + 1
            continue
        first, at = _character(line, at)
        # The first character matches even if the range is empty, as in ``[z-a]``.
        ranges.append((first, first))
        if line[at : at + 1] == "-" and line[at + 1 : at + 2] not in ("", "]"):
            last, at = _character(line, at + 1)
            ranges.append((first, last))
    return (negated, ranges, at + 1) if at < len(line) else None


def _character(line: str, at: int) -> tuple[str, int]:
    at += line[at] == "\\" and at + 1 < len(line)
    return line[at], at + 1


def _text(ranges: Iterable[tuple[str, str]], *, negated: bool) -> str | None:
    """Write a set so that pathspec and `re` read it alike; None if it is empty."""
    members = {code for first, last in ranges for code in range(ord(first), ord(last) + 1)} - {ord("/")}
    special = [one for one in _SPECIAL if (ord(one) in members) != negated]
    if negated:
        # In `re`, a negated set would match the slash: so the characters that match are written out instead.
        bounds = [-1, *sorted(members | {*map(ord, f"/{_SPECIAL}")}), sys.maxunicode + 1]
        runs = [(low + 1, high - 1) for low, high in itertools.pairwise(bounds)]
    else:
        runs = _runs(sorted(members - {*map(ord, _SPECIAL)}))
    if not (special or members or negated):
        return None
    rest = "".join(f"{chr(low)}-{chr(high)}" for low, high in runs if low <= high)
    # A circumflex or an exclamation mark at the beginning would negate the set. A line break is harmless there: no name
    # has one here.
    first = "]" if "]" in special else "\n"
    return f"[{first}{rest}{''.join(special).replace(']', '')}]"


def _runs(codes: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for code in codes:
        if runs and runs[-1][1] == code - 1:
            runs[-1] = runs[-1][0], code
        else:
            runs.append((code, code))
    return runs
