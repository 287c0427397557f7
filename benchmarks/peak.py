"""The most memory that a process has, with all that it started: looked at all the time by another process.

``python -m benchmarks.peak PID`` is what `watching` starts. Shared memory is counted by the system's own sum:
what lies in a file there is in memory, whether or not somebody has it mapped. On a machine where others use
shared memory meanwhile, theirs is counted too.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from .fresh import ROOT

_PAUSE = 0.02
_OWN = re.compile(r"^Pss_(?:Anon|File):\s+(\d+) kB", re.MULTILINE)
_SHARED = re.compile(r"^Shmem:\s+(\d+) kB", re.MULTILINE)


class Watch:
    """What `watching` gives.

    Attributes
    ----------
    grown : float
        By how many MB the memory had grown when there was most of it; set at the end.
    """

    grown = 0.0


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Watch over this process and all that it has started and starts, while the block runs."""
    watch = Watch()
    command = [sys.executable, "-m", "benchmarks.peak", str(os.getpid())]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # It has seen how it was before.
        process.stdout.readline()
        yield watch
        said, _ = process.communicate("done\n", timeout=60)
    watch.grown = float(said)


def used(pid: int) -> float:
    """Megabytes that a process and its children have, without this one."""
    kilobytes = int(_SHARED.search(Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            if one.pid != os.getpid():
                with contextlib.suppress(OSError):
                    found = _OWN.findall(Path(f"/proc/{one.pid}/smaps_rollup").read_text())
                    kilobytes += sum(map(int, found))
    return kilobytes * 1024 / 1e6


def main() -> None:
    """Look until something comes on the standard input, and say what there was at most."""
    pid = int(sys.argv[1])
    before = most = used(pid)
    print("began", flush=True)
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        most = max(most, used(pid))
    print(most - before, flush=True)


if __name__ == "__main__":
    main()
