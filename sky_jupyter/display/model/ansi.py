"""Terminal colours: parse SGR codes and convert them to HTML.

The HTML suits light and dark pages.

Libraries for this have one fixed palette for one background, so this module has its own.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator
from typing import NamedTuple

# CSI, then OSC with its terminator, then any other escape; the first two groups are a CSI's parameters and end.
ESCAPE = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]?")

# Terminals have no such code: it marks text of stderr between the view's model and the drawing.
STDERR = 1002
_SET = {
    STDERR: "stderr",
    1: "bold",
    2: "faint",
    3: "italic",
    4: "underline",
    7: "inverse",
    9: "strike",
    21: "underline",
}
_UNSET = {22: ("bold", "faint"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("strike",)}
_CODE = {
    "stderr": str(STDERR),
    "bold": "1",
    "faint": "2",
    "italic": "3",
    "underline": "4",
    "inverse": "7",
    "strike": "9",
}

# Half-way bright, so that each is readable on white and on black. The sanitizer of untrusted
# notebooks drops `var()`, so the fixed colour always comes first.
_PALETTE = ("#7f7f7f", "#e03e3e", "#1a8f38", "#a87b00", "#2f7fe0", "#b455c4", "#128a98", "#7f7f7f")
_THEMED = {1: "--jp-error-color1", 2: "--jp-success-color1", 4: "--jp-brand-color1"}


class Style(NamedTuple):
    """Style of a piece of text, with colours as SGR codes such as ``"38;5;9"``."""

    stderr: bool = False
    bold: bool = False
    faint: bool = False
    italic: bool = False
    underline: bool = False
    inverse: bool = False
    strike: bool = False
    fg: str = ""
    bg: str = ""


PLAIN = Style()
_STDERR, _PLAINLY = f"\x1b[{STDERR}", "\x1b[0m"


@functools.lru_cache(maxsize=1024)
def restyled(style: Style, codes: str) -> Style:
    """Apply the SGR parameters `codes`, such as ``"1;31"``, to a style."""
    numbers = [int(code[:4]) if code.isdecimal() else 0 for code in re.split("[;:]", codes[:200])]
    position = 0
    while position < len(numbers):
        number = numbers[position]
        position += 1
        if number in (38, 48):
            size = {5: 2, 2: 4}.get(numbers[position] if position < len(numbers) else 0, 1)
            rest = numbers[position : position + size]
            position += size
            if len(rest) == size and size > 1 and max(rest) < 256:
                colour = "38;" + ";".join(map(str, rest))
                style = style._replace(fg=colour) if number == 38 else style._replace(bg=colour)
        else:
            style = _once(style, number)
    return style


def _once(style: Style, number: int) -> Style:
    if number == 0:
        return PLAIN
    if number in _SET:
        return Style(**{**style._asdict(), _SET[number]: True})
    if number in _UNSET:
        return Style(**{**style._asdict(), **dict.fromkeys(_UNSET[number], False)})
    if number in (39, 49):
        return style._replace(fg="") if number == 39 else style._replace(bg="")
    if 30 <= number <= 37 or 90 <= number <= 97:
        return style._replace(fg=str(number))
    if 40 <= number <= 47 or 100 <= number <= 107:
        return style._replace(bg=str(number - 10))
    return style


@functools.lru_cache(maxsize=1024)
def codes_of(style: Style) -> str:
    """Return the SGR parameters that turn plain text into `style`."""
    codes = [code for name, code in _CODE.items() if getattr(style, name)]
    if style.fg:
        codes.append(style.fg)
    if style.bg:
        kind, _, rest = style.bg.partition(";")
        codes.append(f"{int(kind) + 10}{';' + rest if rest else ''}")
    return ";".join(codes)


def is_stderr(line: str) -> bool:
    """Tell whether a line begins in the style of stderr."""
    return line.startswith(_STDERR)


def italic(line: str) -> str:
    """Return the line in italics, with its own colours; marks stderr in terminals."""
    return "".join(wrapped(style._replace(italic=True, stderr=False), piece) for style, piece in runs(line))


def joined(line: str, style: Style, text: str) -> str:
    """Append `text` to `line`, in one piece with text of the same style."""
    codes, at = codes_of(style), line.rfind("\x1b[", 0, -len(_PLAINLY))
    if codes and line.endswith(_PLAINLY) and line.startswith(f"\x1b[{codes}m", at):
        return f"{line[: -len(_PLAINLY)]}{text}{_PLAINLY}"
    return line + wrapped(style, text)


def wrapped(style: Style, text: str) -> str:
    """Return `text` in `style`, and plain again after it."""
    return text if style == PLAIN or not text else f"\x1b[{codes_of(style)}m{text}{_PLAINLY}"


def runs(text: str) -> Iterator[tuple[Style, str]]:
    """Split `text` into pieces of one style each; drop other escapes than SGR."""
    style, start = PLAIN, 0
    for match in ESCAPE.finditer(text):
        if match.start() > start:
            yield style, text[start : match.start()]
        start = match.end()
        if match[2] == "m":
            style = restyled(style, match[1])
    if start < len(text):
        yield style, text[start:]


def strip(text: str) -> str:
    """Return `text` without any escape."""
    return ESCAPE.sub("", text) if "\x1b" in text else text


def to_html(text: str) -> str:
    """Return `text` as HTML for a ``<pre>``: escaped, its colours as spans."""
    if "\x1b" not in text:
        return html.escape(text, quote=False)
    return "".join(_span(style, html.escape(piece, quote=False)) for style, piece in runs(text))


def css(colour: str) -> str:
    """Return the inline style of text in `colour`, an SGR code such as ``"31"``."""
    return _css(Style(fg=colour))


def _span(style: Style, escaped: str) -> str:
    look = _css(style)
    return f'<span style="{look}">{escaped}</span>' if look else escaped


@functools.lru_cache(maxsize=1024)
def _css(style: Style) -> str:
    fg, bg = style.fg, style.bg
    if style.inverse:
        fg, bg = bg, fg or "90"
    lines = ["underline"] * style.underline + ["line-through"] * style.strike
    parts = [
        _colour("color", fg, on_colour=bool(bg)),
        _colour("background-color", bg, on_colour=True),
        "font-weight:bold" * style.bold,
        "opacity:0.7" * style.faint,
        "font-style:italic" * style.italic,
        f"text-decoration:{' '.join(lines)}" if lines else "",
    ]
    return ";".join(filter(None, parts))


def _colour(name: str, code: str, on_colour: bool) -> str:
    if not code:
        return ""
    first, *rest = [int(number) for number in code.split(";")]
    if rest:
        if rest[0] == 2:
            return f"{name}:#{rest[1]:02x}{rest[2]:02x}{rest[3]:02x}"
        if rest[1] >= 16:
            return f"{name}:{_of_256(rest[1])}"
        first = rest[1] + (30 if rest[1] < 8 else 82)
    index = first % 10
    # Black and white are used only on a coloured background: alone, one of them would be invisible on the page.
    if on_colour and first in (30, 37, 97):
        return f"{name}:{'#000000' if first == 30 else '#ffffff'}"
    if first == 97:
        return ""
    fixed = f"{name}:{_PALETTE[index]}"
    return f"{fixed};{name}:var({_THEMED[index]},{_PALETTE[index]})" if index in _THEMED else fixed


def _of_256(number: int) -> str:
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    steps = (0, 95, 135, 175, 215, 255)
    cube = number - 16
    return "#" + "".join(f"{steps[part]:02x}" for part in (cube // 36, cube // 6 % 6, cube % 6))
