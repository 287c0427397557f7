"""Which process is meant: its number and when it began, as a number alone is given out again."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

_LINUX = sys.platform == "linux"
_NEAR = 1.0
_MAX_NAME = 200


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    started: float


def this() -> Process:
    """This process."""
    return Process(os.getpid(), started(os.getpid()))


def here() -> str:
    """This machine's name: processes of another machine cannot be asked whether they live."""
    return socket.gethostname()[:_MAX_NAME]


def started(pid: int) -> float:
    """When a process began; 0.0 where none of this number lives.

    On Linux in seconds since the machine's start: dates of birth move when the machine's clock is set.
    """
    if _LINUX:
        return _ticks(pid) / os.sysconf("SC_CLK_TCK")
    return _born(pid)


def lives(pid: int, began: float) -> bool:
    """Whether the process of this number is there and is still the one that began then.

    A beginning is what `started` says, or psutil's ``create_time``. A process that has ended and was
    not collected yet does not live.
    """
    if pid <= 0 or began <= 0:
        return False
    if _LINUX and not _ticks(pid):
        return False
    return started(pid) == began or abs(_born(pid) - began) < _NEAR


def own_name() -> str:
    """Who this process is to a person: its notebook, script or program."""
    session = os.environ.get("JPY_SESSION_NAME")
    program = Path(sys.argv[0] if sys.argv else "").name
    if session:
        home = str(Path.home())
        text = "notebook " + (f"~{session[len(home) :]}" if session.startswith(home + os.sep) else session)
    elif program in ("ipykernel_launcher.py", "ipykernel"):
        text = "a notebook"
    elif program.endswith(".py"):
        text = f"script {program}"
    else:
        text = program if program not in ("", "-c", "-m", "-") else "python"
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _MAX_NAME else f"{shown[: _MAX_NAME - 1]}…"


def _ticks(pid: int) -> int:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    # The program's name stands in brackets and may hold anything.
    fields = line.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _born(pid: int) -> float:
    import psutil

    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return 0.0
