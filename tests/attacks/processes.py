"""A pool's processes by what they are, on this machine and on hosts made of its namespaces; to stop, continue and kill.

    found = of_pool(pool_id)
    with stopped(found["forkserver"]):
        ...

What they are is read from the logs that they write: "host", "scheduler", "forkserver", "n0/agent", "n1/rank1";
the link of a notebook is "link".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PROGRAMS = ("sky_jupyter.node.host", "sky_jupyter.machines.link")
_PATIENCE = 60.0


def of_pool(pool: str) -> dict[str, psutil.Process]:
    """The processes of the pool of this id that are there now; of several machines' hosts the first started."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if not any(program in words for program in _PROGRAMS) or f"sky-{pool}-" not in " ".join(words):
                continue
            name = "link" if _PROGRAMS[1] in words else _name(process)
            # A kernel that was just forked has its parent's name for a moment, and may have a smaller number.
            if name and (name not in found or found[name].ppid() == process.pid):
                found[name] = process
    return found


def _name(process: psutil.Process) -> str:
    """What a process below a host is, and the host itself, by its log."""
    names = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):
            target = str(descriptor.readlink())
            if target.endswith(".log") and "/sky-" in target:
                names.add(target.split("/sky-", 1)[1].partition("/")[2].removesuffix(".log"))
    # A kernel has the forkserver's log as well, until it is one.
    return min(names, key=lambda name: ("rank" not in name, "agent" not in name, name), default="")


def awaited(pool: str, who: str, seconds: float = _PATIENCE) -> psutil.Process:
    """A process of a pool, as soon as it is there."""
    return eventually(lambda: of_pool(pool).get(who), f"no {who} of pool {pool} came up", seconds)


def eventually(find: Callable[[], object], lacking: str, seconds: float = _PATIENCE):  # type: ignore[no-untyped-def]
    """What ``find`` gives once that is something; an AssertionError with ``lacking`` where it never does."""
    end = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < end, lacking
        time.sleep(0.02)
    return found


@contextmanager
def stopped(process: psutil.Process) -> Iterator[psutil.Process]:
    """The process stands still meanwhile, and goes on then, if it is still there."""
    process.suspend()
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def left_of(pool: str) -> list[tuple[int, str, str]]:
    """What is left of a pool: each process with its state and its name, for a message."""
    return [(process.pid, process.status(), name) for name, process in of_pool(pool).items() if process.is_running()]
