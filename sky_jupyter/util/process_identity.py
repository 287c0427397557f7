"""Which process is meant, and who can see whether it lives.

A process is its number and when it began, as a number alone is given out again. It is seen by the
processes of its own PID namespace, and by no others: a container does not see those beside it.
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
# Times after this many seconds are since 1970, and those before it since a machine's start.
_EPOCH = 5e8
# The kernel's own number of the namespace that holds all others.
_FIRST_PIDS = 0xEFFFFFFC
# The clock that counts on while a machine sleeps.
_SINCE_START = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# By so much a machine's start may be off, as the time of day is what it is told from.
_START_MARGIN = 5.0
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    started: float


def this() -> Process:
    """This process."""
    return Process(os.getpid(), started(os.getpid()))


class Place(NamedTuple):
    """Where processes see each other: a PID namespace of a boot of a machine.

    Attributes
    ----------
    host : str
        What the machine is called; several may have one name.
    machine : str
        Its own id, which it keeps when it starts again; empty where it has none.
    boot : str
        The id of its boot; empty where that was not recorded.
    pids : str
        The PID namespace, and the time namespace that processes' ages are counted in.
    """

    host: str
    machine: str = ""
    boot: str = ""
    pids: str = ""

    @property
    def text(self) -> str:
        """All but the host's name, as `read` takes it."""
        return "/".join(self[1:])

    @classmethod
    def read(cls, host: str, text: str) -> Place:
        """A place from what was recorded; one without a boot where that is nothing, or nothing known."""
        parts = text.split("/")
        return cls(host, *parts) if len(parts) == 3 else cls(host)


def here() -> Place:
    """Where this process is."""
    return Place(socket.gethostname()[:_MAX_NAME], _machine(), _boot(), _pids())


def look(process: Process, place: Place, since: float) -> bool | None:
    """Whether a process lives; None where that cannot be seen from here.

    Parameters
    ----------
    place : Place
        Where it was started.
    since : float
        When it was last heard of, by the time of day.
    """
    mine = here()
    if place.boot and place.boot == mine.boot:
        return lives(*process) if place.pids == mine.pids else None
    if place.boot:
        # What a machine ran before it started again has ended. Others may have its name, and even its id;
        # whoever was heard of after this start is another.
        same = (place.host, place.machine) == (mine.host, mine.machine) and mine.machine != ""
        return False if same and since < time.time() - time.clock_gettime(_SINCE_START) - _START_MARGIN else None
    # Recorded by a version that knew the host's name only.
    if place.host not in ("", mine.host):
        return None
    return lives(*process) or (False if _sees_all() else None)


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, and never to another that has got its number; nothing where it has ended."""
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
    """A descriptor that stays this process's, whoever has its number later; None where there are none."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


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
    if _LINUX and began < _EPOCH:
        # (Not psutil's time as well: it moves with the clock, and could happen to fit.)
        return started(pid) == began
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
        line = Path(f"/proc/{'self' if pid == os.getpid() else pid}/stat").read_text(errors="replace")
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


def _pids() -> str:
    """The namespaces by which this process counts others; on other systems than Linux there are none."""
    if not _LINUX:
        return "-"
    try:
        found = "-".join(str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in _namespaces())
        # Where /proc is another namespace's, the numbers in it are others' too: what is there is nobody's here.
        return found if os.readlink("/proc/self") == str(os.getpid()) else f"{found}-{os.getpid()}"
    except OSError:
        return f"unknown-{os.getpid()}"


@functools.cache
def _namespaces() -> tuple[str, ...]:
    return tuple(name for name in ("pid", "time") if os.path.exists(f"/proc/self/ns/{name}"))


def _sees_all() -> bool:
    """Whether all processes of this machine are seen from here."""
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
    """The machine's id, hashed: it is not for others to see."""
    found = ""
    if _LINUX:
        for path in _MACHINE_IDS:
            try:
                found = found or path.read_text(errors="replace").strip()
            except OSError:
                continue
    else:
        found = _darwin(_host_uuid)
    # (Some images say that they have none yet.)
    known = found and found != "uninitialized"
    return hashlib.sha256(f"sky_jupyter {found}".encode()).hexdigest()[:16] if known else ""


def _word(text: str) -> str:
    return "".join(letter for letter in text if letter.isascii() and (letter.isalnum() or letter == "-"))[:64]


def _darwin(ask: Callable[[ctypes.CDLL], str]) -> str:
    """What the C library of macOS says; nothing where it does not."""
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
