"""What a rank may print, raise or be called so that a terminal obeys it, or shows it as something else."""

from __future__ import annotations

import re

#: Each begins with ``seen`` and ends with ``end``: these are to be read, and nothing of what is between may be obeyed.
ESCAPES = {
    "clipboard": "seen\x1b]52;c;cm0gLXJmIH4K\x07end",
    "clipboard, ended by ST": "seen\x1b]52;c;cm0gLXJmIH4K\x1b\\end",
    "title": "seen\x1b]0;root@bank\x07end",
    "link": "seen\x1b]8;;https://evil.invalid\x1b\\text\x1b]8;;\x1b\\end",
    "device control string": "seen\x1bP+q544e\x1b\\end",
    "string that is not ended": "seen\x1b]0;end",
    "application command": "seen\x1b_Gi=1;AAAA\x1b\\end",
    "clear": "seen\x1b[2J\x1b[3J\x1b[Hend",
    "cursor up": "seen\x1b[9A\x1b[2Kend",
    "alternate screen": "seen\x1b[?1049hend",
    "mouse reports": "seen\x1b[?1003hend",
    "answer back": "seen\x1b[c\x1b[6n\x05end",
    "reset": "seen\x1bcend",
    "character set": "seen\x1b(0\x0eend",
    "C1 sequence": "seen\x9b2J\x9bHend",
    "C1 string": "seen\x9d52;c;cm0gLXJmIH4K\x9cend",
    "C1 device control": "seen\x90+q544e\x9cend",
    "bell and backspaces": "seen\x07\x08\x08end",
    "back to the line's start": "password: \rseen end",
    "zero and delete": "seen\x00\x7fend",
    "turned around": "seen\u202egnp.exe\u202cend",
    "isolated": "seen\u2066\u2067\u2068\u2069end",
    "embedded": "seen\u202a\u202b\u202c\u202dend",
}
#: What stays: colours, tabs, lines, and letters that are written from right to left.
HARMLESS = ("plain", "\x1b[1;31mred\x1b[0m", "\x1b[38;2;1;2;3mrgb\x1b[m", "a\tb\nc", "שלום عربي", "naïve ✓ 🎉")

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal would obey, colours and ends of lines aside."""
    return _OBEYED.findall(_COLOUR.sub("", text.replace("\r\n", "\n")))
