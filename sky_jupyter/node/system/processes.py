"""What the operating system is asked for when a process of a node starts or ends.

On Linux a child asks to be killed with its parent, and the host adopts orphans, so that nothing
of a pool can outlive its host. Elsewhere those calls do nothing and the host's own sweep remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator

import psutil

from ...util.text import format_size

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Of malloc.h. Memory that is this large is the system's again as soon as it is freed.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE = 1 << 20
_TRACKER = "resource_tracker import main"
# How long trackers may take to clean up after those that were killed.
_TRACKER_PATIENCE = 1.5
_ROUNDS = 3


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, whose id is given, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent ended between the fork and the call.
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def give_memory_back() -> None:
    """Have this process and its children hold little memory that they do not use.

    glibc makes each thread a heap of its own, and keeps ever larger pieces for the next that is as
    large: over days, a process of many threads and some large messages grows by them (mallopt(3)).
    """
    if sys.platform != "linux":
        return
    # Other C libraries have no such call, and no need of it.
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def signal_group(pid: int, number: int) -> None:
    """Signal a process of our own forks and what is in its group; nothing where it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # Just forked, it has not made its group yet.
            os.kill(pid, number)


def kill_group(pid: int, *, ended: bool = False) -> None:
    """Kill a process of our own forks and what is in its group, but for multiprocessing's resource tracker.

    That one removes the shared memory and semaphores that the others have left, and ends by itself when
    they are gone.

    Parameters
    ----------
    ended : bool
        Whether the process itself has ended, and only what it left is meant.
    """
    for _ in range(_ROUNDS):
        members = [member for member in psutil.pids() if _group_of(member) == pid]
        trackers = [member for member in members if is_tracker(member)]
        if not trackers:
            if not ended:
                signal_group(pid, signal.SIGKILL)
            elif members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            return
        # One at a time: what one of them starts meanwhile is found in the next round.
        for member in set(members) - set(trackers):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)


def _group_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return 0


def is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker, the standard library's or joblib's."""
    with contextlib.suppress(psutil.Error):
        return _TRACKER in " ".join(psutil.Process(pid).cmdline())
    return False


def exit_text(status: int, used: int = 0, *, short: bool = False) -> str:
    """A wait status in words: ``"killed by SIGKILL (9)"`` or ``"exit status 3"``.

    Parameters
    ----------
    status : int
        The wait status.
    used : int
        The most bytes of memory that the process has used; told where it was killed by SIGKILL.
    short : bool
        Whether the kernel killed a process for want of memory just then.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "signal"
        text = f"killed by {name} ({number})"
        if number == signal.SIGKILL and short:
            text += " for want of memory: the kernel's OOM killer was at work"
        return text + (f"; it had used up to {format_size(used)}" if number == signal.SIGKILL and used else "")
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def kill_descendants(*, spare: frozenset[int] = frozenset(), patience: float = 3.0) -> list[int]:
    """Kill every descendant of this process and wait for their end; resource trackers have a moment before that.

    Returns
    -------
    list of int
        Processes that were still there after ``patience`` seconds.
    """
    began = time.monotonic()
    trackers: set[int] = set()
    while True:
        # Asked anew each time round: what a killed child had started is adopted meanwhile.
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in spare]
        trackers |= {p.pid for p in left if p.pid not in trackers and is_tracker(p.pid)}
        late = time.monotonic() - began > _TRACKER_PATIENCE
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if late or process.pid not in trackers:
                    process.kill()
        reap()
        if not left or time.monotonic() - began > patience:
            return [p.pid for p in left if p.is_running()]
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether a child has not been collected yet."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def reap() -> dict[int, int]:
    """Collect ended children: process id -> wait status."""
    return {pid: status for pid, status, _ in collect()}


def collect() -> Iterator[tuple[int, int, int]]:
    """Collect ended children: process id, wait status, and the most bytes of memory that each has used."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            yield pid, status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since the machine began; 0 where it does not tell."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
