"""A command that was started by somebody before: it can be ended and waited for, and not listened to."""

from __future__ import annotations

import time
from collections.abc import Iterator

_SLOWER = 1.5


class EarlierProcess:
    """What such commands of all machines share; each machine says how it looks at one and signals it.

    Parameters
    ----------
    pid, started
        What its starter's `Command.identity` was.
    """

    # How long it is not looked at, at first and at most: a look costs more the further the machine is away.
    pause, longest_pause = 0.1, 2.0

    def __init__(self, pid: int, started: float) -> None:
        self.identity = (pid, started)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """Where it runs, as an error's message names that."""
        return ""

    def lines(self) -> Iterator[str]:
        """Nothing: its output went to whoever started it."""
        return iter(())

    def wait(self, timeout: float | None = None) -> int:
        """0 once it has ended: its status is not ours to know. TimeoutError after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = self.pause
        while self.alive:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"process {self.identity[0]}{self.place} has not ended after {timeout} s")
            time.sleep(pause)
            pause = min(self.longest_pause, pause * _SLOWER)
        return 0
