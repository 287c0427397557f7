"""Identity of processes: process id, start time, and place.

A process id alone may be reused. A process can be seen only by processes of its own PID namespace: a container does not
see those of another.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_LINUX = sys.platform == "linux"
_NEAR = 1.0
_MAX_NAME = 200
# Larger times are seconds since 1970, smaller ones seconds since the machine's boot.
_EPOCH = 5e8
# Inode of the initial PID namespace.
_FIRST_PIDS = 0xEFFFFFFC
# The clock that includes suspended time.
_SINCE_START = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Error of a boot time that is computed from the time of day.
_START_MARGIN = 5.0
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class ProcessIdentity(NamedTuple):
    """Process of this machine."""

    pid: int
    started: float


def this() -> ProcessIdentity:
    """Return this process."""
    return ProcessIdentity(os.getpid(), started(os.getpid()))


class PidNamespace(NamedTuple):
    """Scope in which processes see each other: a PID namespace of one boot.

    Attributes
    ----------
    host : str
        Host name; several machines may have the same.
    machine : str
        Machine id, the same after a reboot; empty if there is none.
    boot : str
        Boot id; empty if it was not recorded.
    pids : str
        The PID namespace, and the time namespace of processes' ages.
    """

    host: str
    machine: str = ""
    boot: str = ""
    pids: str = ""

    @property
    def text(self) -> str:
        """Everything but the host name, for `read`."""
        return "/".join(self[1:])

    @classmethod
    def read(cls, host: str, text: str) -> PidNamespace:
        """Return a place from its recorded text; only the host if that is incomplete."""
        parts = text.split("/")
        return cls(host, *parts) if len(parts) == 3 else cls(host)


def here() -> PidNamespace:
    """Return the place of this process."""
    return PidNamespace(socket.gethostname()[:_MAX_NAME], _machine(), _boot(), _pids())


def look(process: ProcessIdentity, place: PidNamespace, since: float) -> bool | None:
    """Return True if a process is alive; None if that cannot be seen from here.

    ``place`` is where it was started, ``since`` the time of day when it was last known to be alive.
    """
    mine = here()
    if place.boot and place.boot == mine.boot:
        return lives(*process) if place.pids == mine.pids else None
    if place.boot:
        # All processes from before a reboot have ended. Another machine may have the same name and even the same id:
        # then the process was known to be alive after this machine's boot.
        same = (place.host, place.machine) == (mine.host, mine.machine) and mine.machine != ""
        return False if same and since < time.time() - time.clock_gettime(_SINCE_START) - _START_MARGIN else None
    # An earlier version recorded only the host name.
    if place.host not in ("", mine.host):
        return None
    return lives(*process) or (False if _sees_all() else None)


def send(process: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal to a process, and never to another one with its process id.

    A process that has ended is ignored.
    """
    with contextlib.suppress(ProcessLookupError), contextlib.ExitStack() as stack:
        held = _held(process.pid)
        if held is not None:
            stack.callback(os.close, held)
        if not lives(*process):
            return
        if held is not None and sys.platform == "linux":
            signal.pidfd_send_signal(held, number)
        else:
            os.kill(process.pid, number)


def _held(pid: int) -> int | None:
    """Return a pidfd, which always means this process; None if there are none."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def started(pid: int) -> float:
    """Return a process's start time; 0.0 if there is no such process.

    On Linux it is in seconds since boot: dates would change whenever the machine's clock is set.
    """
    if _LINUX:
        return _ticks(pid) / os.sysconf("SC_CLK_TCK")
    return _born(pid)


def lives(pid: int, began: float) -> bool:
    """Return True if the process with this id is alive and has this start time.

    The time is that of `started`, or psutil's ``create_time``. A zombie is not alive.
    """
    if pid <= 0 or began <= 0:
        return False
    if _LINUX and began < _EPOCH:
        # Not psutil's time as well: it changes with the clock, and could match by chance.
        return started(pid) == began
    return started(pid) == began or abs(_born(pid) - began) < _NEAR


def own_name() -> str:
    """Return this process's name for a person: its notebook, script or program."""
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
        line = Path(f"/proc/{'self' if pid == os.getpid() else pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    # The program's name is in brackets and may contain anything.
    fields = line.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _born(pid: int) -> float:
    import psutil

    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return 0.0


def _pids() -> str:
    """Return the PID and time namespaces of this process; "-" if not on Linux."""
    if not _LINUX:
        return "-"
    try:
        found = "-".join(str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in _namespaces())
        # If /proc belongs to another namespace, so do the ids in it, and no process there can be identified from here.
        return found if os.readlink("/proc/self") == str(os.getpid()) else f"{found}-{os.getpid()}"
    except OSError:
        return f"unknown-{os.getpid()}"


@functools.cache
def _namespaces() -> tuple[str, ...]:
    return tuple(name for name in ("pid", "time") if os.path.exists(f"/proc/self/ns/{name}"))


def _sees_all() -> bool:
    """Return True if all processes of this machine are visible from here."""
    return not _LINUX or _pids().split("-")[0] == str(_FIRST_PIDS)


@functools.cache
def _boot() -> str:
    if _LINUX:
        with_boot = Path("/proc/sys/kernel/random/boot_id")
        try:
            return _word(with_boot.read_text())
        except (OSError, ValueError):
            return ""
    return _word(_darwin(_boot_session))


@functools.cache
def _machine() -> str:
    """Return the machine's id, hashed so that it is not disclosed."""
    found = ""
    if _LINUX:
        for path in _MACHINE_IDS:
            try:
                found = found or path.read_text(errors="replace").strip()
            except OSError:
                continue
    else:
        found = _darwin(_host_uuid)
    # Some images have this word instead of an id.
    known = found and found != "uninitialized"
    return hashlib.sha256(f"sky_jupyter {found}".encode()).hexdigest()[:16] if known else ""


def _word(text: str) -> str:
    return "".join(letter for letter in text if letter.isascii() and (letter.isalnum() or letter == "-"))[:64]


def _darwin(ask: Callable[[ctypes.CDLL], str]) -> str:
    """Return an answer of macOS's C library; empty elsewhere."""
    if sys.platform != "darwin":
        return ""
    try:
        return ask(ctypes.CDLL(None))
    except (OSError, AttributeError):
        return ""


def _boot_session(library: ctypes.CDLL) -> str:
    size = ctypes.c_size_t(64)
    text = ctypes.create_string_buffer(size.value)
    failed = library.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode("ascii", "replace")


def _host_uuid(library: ctypes.CDLL) -> str:
    found, patience = (ctypes.c_ubyte * 16)(), (ctypes.c_long * 2)(1, 0)
    return "" if library.gethostuuid(found, patience) else str(uuid.UUID(bytes=bytes(found)))
