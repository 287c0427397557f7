"""Shell command that a rank runs for `%sky exec`; its status is the cell's."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys

import psutil

from ...errors import CommandError
from ..system.processes import exit_text
from .rank_environment import environment

# Seconds that an interrupted command has to end by itself.
_PATIENCE = 3.0


def shell() -> str:
    """Return the shell that reads commands here: bash, if it is installed."""
    return shutil.which("bash") or "/bin/sh"


def run(command: str) -> None:
    """Run a command in the rank's folder, with its environment, and wait for its end.

    Parameters
    ----------
    command : str
        The command line for the shell.

    Raises
    ------
    CommandError
        If its exit status is not 0.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # It is in the kernel's process group: an interrupt reaches it too, and it ends with the kernel.
    process = subprocess.Popen([shell(), "-c", command], stdin=subprocess.DEVNULL, env=environment())
    try:
        status = process.wait()
    except KeyboardInterrupt:
        _end(process)
        raise
    if status:
        wait_status = -status if status < 0 else status << 8
        raise CommandError(f"{exit_text(wait_status)}: {command}", status)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for an interrupted command; kill what is left, also at the next interrupt."""
    started = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    finally:
        for one in started:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.kill()


__all__ = ["run", "shell"]
