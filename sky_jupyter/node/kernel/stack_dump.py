"""Text format of a rank's stacks: the kernel writes them, the agent reads.

The interpreter's fault handler writes the stack from C and without the GIL, so that it works whatever the main thread
does. It writes only the main thread: to walk the frames of running threads could crash the process.
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# Not SIGUSR1, which batch systems and trainers use. Without real-time signals: SIGINFO, which is ignored by default.
LOOK: int = signal.SIGRTMIN + 7 if sys.platform == "linux" else getattr(signal, "SIGINFO", signal.SIGUSR1)
CELL = re.compile(r"sky-cells/In\[(?P<count>\d{1,9})\]-[0-9a-f]{8}\.py\Z")
MAX_FRAMES = 300
MAX_TEXT = 300
MAX_FILE = 1 << 18
_PR_SET_PTRACER = 0x59616D61
_HEADER = re.compile(r"[^\n]*\(most recent call first\):\Z")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)\Z')
# The fault handler writes this many frames, and this line for the rest; Python 3.13 omits the line.
_WRITTEN, _CUT = 100, "  ..."
_KERNEL = "sky_jupyter/node/kernel/kernel.py"
_SHELL = "IPython/core/interactiveshell.py"
_SCRIPTS = "sky_jupyter/node/kernel/script_run.py"

Frame = tuple[str, int, str]
"""A frame's file, line and function."""


# -- in the kernel ---------------------------------------------------------------------------------


def cell_file(code: str, number: int) -> str:
    """Return a file name for a cell's code: equal on all ranks, with its number.

    A hash of the code is included, since numbers restart with each notebook kernel.
    """
    check = binascii.crc32(code.encode(errors="surrogatepass"))
    return f"{tempfile.gettempdir()}/sky-cells/In[{number}]-{check:08x}.py"


def path_of(connection_file: str | Path) -> Path:
    """Return the file to which a connection file's kernel writes its stacks."""
    return Path(connection_file).with_suffix(".stacks")


def answer_looks(path: Path) -> None:
    """Make this process write its main stack to a file on signal LOOK.

    Call it on the main thread. The first stack in the file is the present one, as a reference: later stacks are
    complete if they have the same outermost frame.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    faulthandler.register(LOOK, file=file, all_threads=False, chain=False)
    signal.raise_signal(LOOK)
    _let_host_trace()


def _let_host_trace() -> None:
    """Allow our host's other children to trace this process (Linux, Yama)."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError, psutil.Error):
        # The forkserver's parent is the host, and the agent's too.
        host = psutil.Process(os.getppid()).ppid()
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(host), 0, 0, 0)


# -- in the agent ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dump:
    """Stack that a kernel wrote, innermost frame first.

    Parameters
    ----------
    whole : bool
        Whether it was written completely.
    cut : bool
        Whether the fault handler omitted the outermost frames.
    """

    frames: tuple[Frame, ...]
    whole: bool
    cut: bool


def read_dumps(text: str) -> list[Dump]:
    """Parse the stacks in a file, the reference first; skip other lines.

    A process that runs user code writes the file, so it may contain anything.
    """
    dumps: list[Dump] = []
    frames: list[Frame] = []
    cut = started = False
    bottom: Frame | None = None

    def close(*, last: bool) -> None:
        nonlocal bottom
        left_out = cut or len(frames) == _WRITTEN
        # A later stack proves that this one is complete.
        whole = not last or not dumps or left_out or (bool(frames) and frames[-1] == bottom)
        if not dumps and frames:
            bottom = frames[-1]
        dumps.append(Dump(tuple(frames), whole, left_out))

    # Text after the last line feed is still being written.
    for line in text.split("\n")[:-1]:
        if _HEADER.match(line):
            if started:
                close(last=False)
            started, frames, cut = True, [], False
        elif line == _CUT:
            cut = True
        elif started and len(frames) < MAX_FRAMES and (match := _FRAME.match(line)):
            number = int(match["line"]) if match["line"] != "???" else 0
            frames.append((clean(match["file"]), number, plain_name(clean(match["function"]))))
    if started:
        close(last=True)
    return dumps


def reference_end(data: bytes) -> int:
    """Return the size of the reference stack; the rest may be removed."""
    header = b"(most recent call first):\n"
    first = data.find(header)
    if first < 0:
        return len(data)
    second = data.find(header, first + len(header))
    return len(data) if second < 0 else data.rfind(b"\n", 0, second) + 1


def clean(text: Any) -> str:
    """Return text that is safe to show: printable and not too long."""
    text = str(text)
    if len(text) > MAX_TEXT:
        text = "…" + text[-MAX_TEXT:]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def plain_name(function: str) -> str:
    """Return a function's name without its class or enclosing function.

    Not all programs that write stacks know these.
    """
    return function.rpartition(".")[2] or function


def runs_script(frames: tuple[Frame, ...]) -> bool:
    """Return whether a kernel's stack is in the relay of a script's processes."""
    return any(file.endswith(_SCRIPTS) for file, _, _ in frames)


def scripts_part(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a script's stack without the frames of `python -m` below it."""
    outer = len(frames)
    while outer > 1 and frames[outer - 1][0].startswith("<frozen runpy"):
        outer -= 1
    return frames[:outer]


def users_part(frames: tuple[Frame, ...]) -> tuple[tuple[Frame, ...], str]:
    """Return a stack without the callers of user code, and the kernel's activity.

    The activity is ``"cell"`` or another kind of request, ``"loop"`` while the kernel is idle, or ``""`` if unknown.
    """
    kinds = [
        (index, function[4:])
        for index, (file, _, function) in enumerate(frames)
        if file.endswith(_KERNEL) and function.startswith("sky_")
    ]
    outermost = [kind for kind in kinds if kind[1] != "request"]
    if outermost:
        index, kind = outermost[-1]
        for position in range(index - 1, -1, -1):
            file, _, function = frames[position]
            if file.endswith(_SHELL) and function == "run_code":
                return frames[:position], kind
        return frames[:index], kind
    in_kernel = any(file.endswith(_KERNEL) for file, _, _ in frames)
    return frames, "loop" if in_kernel else ""
