"""Progress bars of tqdm and Keras in a rank's output.

``labextension/src/run/parse-progress.ts`` finds the same bars.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import ansi

# "train:  43%|████      | 43/100 [00:10<00:13,  4.20it/s, loss=0.1]"
_TQDM = re.compile(
    r"(.*?)\s*(\d{1,3})%\|[^|]*\|\s*([\d.]+)([kMGT]?)i?B?\s*/\s*([\d.]+)([kMGT]?)i?B?\s*(?:\[(.*?)\]?)?\s*"
)
# "43/100 ━━━━━━━━━━━━━━━━━━━━ 5s 20ms/step - loss: 0.12", and older "43/100 [=====>....] - ETA: 5s"
_KERAS = re.compile(r"\s*(\d+)/(\d+)\s+(?:[━╸╺─ ]*[━╸╺─][━╸╺─ ]*|\[[=>.]+\])\s*(?:-\s*)?(.*)")
_LONGEST = 2000


class Bar(NamedTuple):
    """State of a progress bar.

    Parameters
    ----------
    label : str
        Label, such as tqdm's description.
    done : str
        Progress in words.
    part : float
        Progress from 0 to 1.
    aside : str
        Further text of the bar, such as the remaining time.
    """

    label: str
    done: str
    part: float
    aside: str


def of_line(line: str) -> Bar | None:
    """Parse a line as a progress bar; None if it is none."""
    if len(line) > _LONGEST or "/" not in line:
        return None
    text = ansi.strip(line)
    if found := _TQDM.fullmatch(text):
        label, percent, there, there_unit, total, total_unit, aside = found.groups()
        return Bar(
            label.removesuffix(":"),
            f"{there}{there_unit}/{total}{total_unit}",
            min(1.0, int(percent) / 100),
            aside or "",
        )
    if found := _KERAS.fullmatch(text):
        there, total, aside = found.groups()
        return Bar("", f"{there}/{total}", min(1.0, int(there) / int(total)), aside) if int(total) else None
    return None
