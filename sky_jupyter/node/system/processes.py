"""Start and end of a node's processes: death signals, groups, reaping.

On Linux a child asks to be killed with its parent, and the host adopts orphans: nothing of a pool can outlive its host.
On other systems those calls do nothing, and only the host's own clean-up remains.
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
# From malloc.h. Allocations above the threshold are returned to the system once they are freed.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE = 1 << 20
_MOST_FILES = 65_536
_TRACKER = "resource_tracker import main"
# Seconds for resource trackers to clean up after killed processes.
_TRACKER_PATIENCE = 1.5
_ROUNDS = 3


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent ended between the fork and the call.
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def allow_many_files() -> None:
    """Raise the open-file limit: a scheduler has two sockets for each node."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _MOST_FILES) if most > 0 else _MOST_FILES, most))


def give_memory_back() -> None:
    """Configure malloc to return unused memory to the system.

    By default glibc has a heap per thread, and raises its threshold with each large allocation: a process with many
    threads and some large messages grows over days (mallopt(3)). Child processes inherit this.
    """
    if sys.platform != "linux":
        return
    # Other C libraries do not have this function, and do not need it.
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def signal_group(pid: int, number: int) -> None:
    """Signal a forked process and its group; no-op if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # Just forked: it has not created its group yet.
            os.kill(pid, number)


def kill_group(pid: int, *, ended: bool = False) -> None:
    """Kill a forked process with its group and session, except for resource trackers.

    A script that a rank runs is its own group in the rank's session. multiprocessing's tracker removes shared memory
    and semaphores that other processes have left, and ends by itself after them. With ``ended``, the process itself has
    ended, and only the others are killed.
    """
    for _ in range(_ROUNDS):
        members = [member for member in psutil.pids() if pid in _groups_of(member)]
        trackers = [member for member in members if is_tracker(member)]
        if not trackers and all(_groups_of(member)[:1] == [pid] for member in members):
            if not ended:
                signal_group(pid, signal.SIGKILL)
            elif members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            return
        # One by one: processes that they start meanwhile are found in the next round.
        for member in set(members) - set(trackers):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)


def _groups_of(pid: int) -> list[int]:
    """Return a process's group and session; none if it has ended."""
    with contextlib.suppress(OSError):
        return [os.getpgid(pid), os.getsid(pid)]
    return []


def is_tracker(pid: int) -> bool:
    """Return True for a resource tracker of multiprocessing or joblib."""
    with contextlib.suppress(psutil.Error):
        return _TRACKER in " ".join(psutil.Process(pid).cmdline())
    return False


def exit_text(status: int, used: int = 0, *, short: bool = False) -> str:
    """Describe a wait status: ``"killed by SIGKILL (9)"``, ``"exit status 3"``.

    Parameters
    ----------
    status : int
        The wait status.
    used : int
        Peak memory of the process in bytes; mentioned after SIGKILL.
    short : bool
        Whether the OOM killer was active at that time.

    Returns
    -------
    str
        The description.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "signal"
        text = f"killed by {name} ({number})"
        if number == signal.SIGKILL and short:
            text += " out of memory: the kernel's OOM killer ended it"
        return text + (f"; it had used up to {format_size(used)}" if number == signal.SIGKILL and used else "")
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def kill_descendants(*, spare: frozenset[int] = frozenset(), patience: float = 3.0) -> list[int]:
    """Kill all descendants and wait for their end; return those still there.

    Resource trackers get a moment to clean up. The wait ends after ``patience`` seconds. Processes in ``spare`` are
    not killed.
    """
    began = time.monotonic()
    trackers: set[int] = set()
    while True:
        # Listed again in each round: children of a killed process are adopted meanwhile.
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
    """Return True if a child has not been reaped yet."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def reap() -> dict[int, int]:
    """Reap ended children; return wait statuses by process id."""
    return {pid: status for pid, status, _ in collect()}


def collect() -> Iterator[tuple[int, int, int]]:
    """Reap ended children; yield process id, wait status and peak memory."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            yield pid, status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def oom_kills() -> int:
    """Return the number of OOM kills since the machine started; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
