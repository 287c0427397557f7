"""Power file: the time until which a machine that was made for a pool stays on.

At that time, a watchdog that started with the machine (`machines.power_watchdog`) powers it off. The file has one
number: seconds since the machine's boot, as in ``/proc/uptime``, so that changes of the clock have no effect.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

# Seconds for which a machine stays on without a pool's writes: after its boot, and while a pool is recreated.
GRACE = 30 * 60.0
# Seconds for which a machine stays on after its host's lease, so that the host can end in order and report that.
MARGIN = 30.0
_PAUSE = 5.0


class PowerFile:
    """Writer of a power file; made by the host process.

    Parameters
    ----------
    path : str
        The file; if empty, nothing is written. Names of environment variables are replaced by their values.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.expandvars(path)) if path else None
        self._next = 0.0

    def keep(self, seconds: float, *, at_once: bool = False) -> None:
        """Let the machine stay on for this long; written every few seconds at most.

        Parameters
        ----------
        seconds : float
            Seconds from now, at least one.
        at_once : bool
            Whether it must be written now.
        """
        now = time.monotonic()
        if self._path is not None and (at_once or now >= self._next):
            self._next = now + _PAUSE
            self._write(self._path, int(uptime() + max(1.0, seconds)))

    def give_up(self) -> None:
        """Let the machine be powered off now: its pool has ended."""
        if self._path is not None:
            self._write(self._path, 0)

    @staticmethod
    def _write(path: Path, value: int) -> None:
        # Without the file, the machine has no watchdog.
        with contextlib.suppress(OSError, ValueError):
            if not path.exists():
                return
            new = path.with_name(f"{path.name}.{os.getpid()}")
            new.write_text(f"{value}\n")
            new.chmod(0o666)
            new.replace(path)


def uptime() -> float:
    """Return the seconds since the machine's boot."""
    return float(Path("/proc/uptime").read_text().split()[0])


__all__ = ["GRACE", "MARGIN", "PowerFile", "uptime"]
