"""Processes that an earlier connection started: they can be ended and awaited."""

from __future__ import annotations

import time
from collections.abc import Iterator

_SLOWER = 1.5


class ProcessHandle:
    """Base class for the processes of all machines; subclasses poll and signal.

    Parameters
    ----------
    pid : int
        Process id.
    started : float
        Start time, as in `Command.identity`.
    """

    # First and longest pause between polls: a poll costs more the further away the machine is.
    pause, longest_pause = 0.1, 2.0

    def __init__(self, pid: int, started: float) -> None:
        self.identity = (pid, started)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The machine, as an error message names it."""
        return ""

    def lines(self) -> Iterator[str]:
        """Return nothing: the output went to the process's starter."""
        return iter(())

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Return 0: its status is unknown.

        Raise TimeoutError after ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = self.pause
        while self.alive:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"process {self.identity[0]}{self.place} has not ended after {timeout} s")
            time.sleep(pause)
            pause = min(self.longest_pause, pause * _SLOWER)
        return 0
