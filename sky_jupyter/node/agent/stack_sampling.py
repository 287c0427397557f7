"""Inspection of a rank from outside: its main thread's stack, within a second.

There are two ways to read a stack. A kernel writes its own when it is signalled (see `stack_dump`), even while C code
holds the GIL; but the signal ends a wait in C that does not expect it. py-spy, if it is installed and permitted, reads
the memory of the process, which must not run meanwhile. So py-spy is tried first for a waiting thread, and the kernel
itself for a running one. Only py-spy can name C code.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ..kernel import script_run, stack_dump
from ..kernel.stack_dump import Frame

# Seconds over which CPU time is measured before the stack is read.
WINDOW = 0.15
# A kernel writes its stack within a millisecond once it has a core.
_PATIENCE = 0.4
_LATE = "py-spy did not name it in time"
_QUIET = 0.06
_POLL = 0.002
_MAX_NATIVE = 12
_MAX_REPORT = 4 << 20
_STOPPED = frozenset("Tt")
# A wait for a lock resumes after a signal; a sleep or a poll ends.
_GOES_ON = "futex"


@dataclass(frozen=True)
class ProcessState:
    """State of a process at one moment, from the operating system.

    Parameters
    ----------
    state : str
        State of the main thread, one letter as in /proc; empty if unknown.
    cpu, ran : float
        Seconds of CPU time of the process, and of its main thread alone.
    switches : int
        Number of voluntary context switches of the main thread.
    waits_in : str
        Kernel function (wchan) in which the main thread waits.
    catches, pending : bool
        Whether our signal is caught, and whether an earlier one is still pending.
    """

    state: str
    cpu: float
    ran: float
    switches: int = 0
    waits_in: str = ""
    catches: bool = True
    pending: bool = False


def process_state(pid: int) -> ProcessState | None:
    """Return the state of a process; None if it is gone."""
    if sys.platform != "linux":
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            times = process.cpu_times()
            state = "T" if process.status() == psutil.STATUS_STOPPED else ""
            return ProcessState(state, times.user + times.system, times.user + times.system)
        return None
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        status = dict(line.split(":\t", 1) for line in _read(f"/proc/{pid}/task/{pid}/status").splitlines())
        switches = int(status.get("voluntary_ctxt_switches", 0))
        ran = int(_read(f"/proc/{pid}/task/{pid}/schedstat").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    waits_in = ""
    with contextlib.suppress(OSError):
        waits_in = _read(f"/proc/{pid}/task/{pid}/wchan").strip("0")
    return ProcessState(fields[0], cpu, ran, switches, waits_in, *_signals(status))


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 14)


def _signals(status: dict[str, str]) -> tuple[bool, bool]:
    """Return whether our signal is caught and pending, from /proc/…/status."""
    bit = 1 << (stack_dump.LOOK - 1)
    masks = {name: int(status.get(name, "0"), 16) for name in ("SigCgt", "SigPnd", "ShdPnd")}
    return bool(masks["SigCgt"] & bit), bool((masks["SigPnd"] | masks["ShdPnd"]) & bit)


async def sample_stack(pid: int, path: Path, *, window: float = WINDOW, end: float = 0.0) -> dict[str, Any]:
    """Return a report on one process; see `inspect_ranks` for its form.

    Parameters
    ----------
    pid : int
        A kernel's process.
    path : Path
        File to which it writes its stacks.
    window : float
        Seconds over which its CPU time is measured.
    end : float
        Deadline for its stack on the monotonic clock; a short minimum applies.

    Returns
    -------
    dict
        The process's report.
    """
    before, began = process_state(pid), time.monotonic()
    await asyncio.sleep(window)
    now, took = process_state(pid), time.monotonic() - began
    if before is None or now is None:
        return {"note": "its kernel has ended", "frames": []}
    frames, note = await _stack(pid, path, now, end)
    own, at = stack_dump.users_part(frames)
    if own and stack_dump.runs_script(own) and (child := await asyncio.to_thread(script_run.process_of, pid)):
        return await _sample_script(child, window, end)
    after = process_state(pid) or now
    return {
        "frames": [list(frame) for frame in own],
        "at": at,
        "note": note,
        "state": now.state,
        "waits_in": now.waits_in,
        "cpu": (now.cpu - before.cpu) / took,
        "main_cpu": (now.ran - before.ran) / took,
        # These show whether the main thread did anything besides answering.
        "ran": [now.ran, after.ran],
        "switches": [now.switches, after.switches],
    }


async def _sample_script(pid: int, window: float, end: float) -> dict[str, Any]:
    """Return a report on the process of a script, which only py-spy can inspect."""
    before, began = process_state(pid), time.monotonic()
    await asyncio.sleep(window)
    now, took = process_state(pid), time.monotonic() - began
    if before is None or now is None:
        return {"note": "the script's process has ended", "frames": []}
    frames, _, why = await spy(pid, native=False, timeout=max(_PATIENCE, end - time.monotonic()))
    after = process_state(pid) or now
    return {
        "pid": pid,
        "frames": [list(frame) for frame in stack_dump.scripts_part(frames)],
        "at": "script",
        "note": "stopped (SIGSTOP)"
        if now.state in _STOPPED
        else ""
        if frames
        else why.replace("name it", "name its stack"),
        "state": now.state,
        "waits_in": now.waits_in,
        "cpu": (now.cpu - before.cpu) / took,
        "main_cpu": (now.ran - before.ran) / took,
        "ran": [now.ran, after.ran],
        "switches": [now.switches, after.switches],
    }


async def _stack(pid: int, path: Path, now: ProcessState, end: float) -> tuple[tuple[Frame, ...], str]:
    """Return a process's main stack, by itself or py-spy, and a note."""
    seen: tuple[Frame, ...] = ()
    runs, late = now.state in ("R", ""), False
    if not runs:
        seen, _, why = await spy(pid, native=False, timeout=max(_PATIENCE, end - time.monotonic()))
        late = why == _LATE
    if now.state in _STOPPED:
        return seen, "stopped (SIGSTOP)"
    if seen and stack_dump.users_part(seen)[1]:
        return seen, ""
    if late and not now.waits_in.startswith(_GOES_ON):
        # A busy machine is no reason to interrupt a sleep or a poll in C.
        return (), "py-spy did not read its stack in time"
    if not now.catches:
        # Without the handler, the signal would kill the process.
        note = "the handler that writes its stack was taken away in its process"
    else:
        dump = await _ask(pid, path, already=now.pending)
        if dump is not None and not dump.cut:
            return dump.frames, ""
        seen = seen or (dump.frames if dump is not None else ())
        note = "" if seen else _silence(process_state(pid))
    if runs:
        found, _, _ = await spy(pid, native=False)
        seen = found or seen
    return seen, "" if seen else note


def _silence(now: ProcessState | None) -> str:
    if now is None:
        return "its kernel has ended"
    if now.state == "D":
        return "it waits inside the operating system, as for a disk, and answers no signal"
    return "it did not write its stack: its signal handler was replaced, or it got no core"


async def _ask(pid: int, path: Path, *, already: bool) -> stack_dump.Dump | None:
    """Signal a process and wait for its stack in the file; None on timeout."""
    with contextlib.suppress(OSError):
        start = await asyncio.to_thread(_trim, path)
        if not already:
            _send(pid)
        end, size, grew = time.monotonic() + _PATIENCE, start, 0.0
        while time.monotonic() < end:
            if (found := os.stat(path).st_size) != size:
                size, grew = found, time.monotonic()
                dumps = stack_dump.read_dumps(_tail(path))[1:]
                if dumps and dumps[-1].whole:
                    return dumps[-1]
            elif grew and time.monotonic() - grew > _QUIET:
                # Greenlets have another outermost frame than the reference, which marks the end.
                break
            await asyncio.sleep(_POLL)
        dumps = stack_dump.read_dumps(_tail(path))[1:]
        return dumps[-1] if dumps and dumps[-1].frames else None
    return None


def _trim(path: Path) -> int:
    """Truncate the file after the reference stack; return its size."""
    with path.open("r+b") as file:
        end = stack_dump.reference_end(file.read(stack_dump.MAX_FILE))
        file.truncate(end)
    return end


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(stack_dump.MAX_FILE).decode(errors="replace")


def _send(pid: int) -> None:
    """Signal a process's main thread where the system can choose a thread."""
    tgkill = getattr(_libc(), "tgkill", None)
    if tgkill is None:
        os.kill(pid, stack_dump.LOOK)
    else:
        tgkill(pid, pid, stack_dump.LOOK)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)


# -- py-spy ----------------------------------------------------------------------------------------


@functools.cache
def spy_path() -> str | None:
    """Return py-spy's path; None if it is not installed.

    ``SKY_PY_SPY`` names the program (empty: none); otherwise it is searched beside this Python and on the path.
    """
    if (chosen := os.environ.get("SKY_PY_SPY")) is not None:
        return shutil.which(chosen)
    beside = os.pathsep.join((os.path.dirname(sys.executable), sysconfig.get_path("scripts")))
    return shutil.which("py-spy", path=beside) or shutil.which("py-spy")


async def spy(pid: int, *, native: bool, timeout: float = _PATIENCE) -> tuple[tuple[Frame, ...], list[list[str]], str]:
    """Return the main stack by py-spy: Python frames, inner C frames, the error."""
    program = spy_path()
    if program is None:
        return (), [], "py-spy, which would name it, is not installed"
    # For C frames py-spy pauses the process for a moment; for Python frames it does not.
    how = "--native" if native else "--nonblocking"
    try:
        process = await asyncio.create_subprocess_exec(
            *(program, "dump", "--json", how, "--pid", str(pid)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError:
        # It may be another platform's, or of a file system without execution.
        return (), [], "py-spy, which would name it, could not be run"
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    except asyncio.TimeoutError:
        return (), [], _LATE
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        denied = b"ermission" in err or b"not permitted" in err
        return (), [], f"py-spy could not name it{': this system does not permit it to look' if denied else ''}"
    return (*read_report(out[:_MAX_REPORT], pid), "")


def read_report(data: bytes, pid: int) -> tuple[tuple[Frame, ...], list[list[str]]]:
    """Return the main thread's Python frames and innermost C frames."""
    try:
        threads = [thread for thread in json.loads(data) if isinstance(thread, dict)]
    except (ValueError, TypeError, RecursionError):
        return (), []
    main = next((thread for thread in threads if thread.get("os_thread_id") == pid), None)
    main = main or next((thread for thread in threads if thread.get("thread_name") == "MainThread"), None)
    frames: list[Frame] = []
    inner: list[list[str]] = []
    given = main.get("frames") if main is not None else None
    for frame in given[: stack_dump.MAX_FRAMES] if isinstance(given, list) else ():
        if not isinstance(frame, dict):
            continue
        name, file = stack_dump.clean(frame.get("name")), stack_dump.clean(frame.get("filename"))
        if frame.get("module") is None:
            line = frame.get("line")
            frames.append((file, line if isinstance(line, int) else 0, stack_dump.plain_name(name)))
        elif not frames and len(inner) < _MAX_NATIVE and not name.startswith("0x"):
            inner.append([os.path.basename(file), name])
    return tuple(frames), inner


async def name_native(
    reports: dict[int, dict[str, Any]], pids: dict[int, int], known: Sequence[str], end: float
) -> None:
    """Add C frames to the reports, one rank per distinct stack, until ``end``.

    Parameters
    ----------
    reports : dict
        Reports by rank; changed in place.
    pids : dict
        Process ids by rank.
    known : sequence of str
        Regular expressions of frames (`file:function`) that need no C frames.
    end : float
        Deadline on the monotonic clock.
    """
    chosen: dict[Any, int] = {}
    for rank, report in sorted(reports.items()):
        frames = report["frames"]
        if frames and not report["note"] and report.get("at") not in ("loop", "") and not _matches(frames, known):
            chosen.setdefault(json.dumps(frames), rank)
    # py-spy uses a whole core while it reads a library's symbols: more at a time would delay all of them.
    cores = asyncio.Semaphore(max(1, os.cpu_count() or 1))

    async def name(rank: int) -> None:
        async with cores:
            left = end - time.monotonic()
            if left < _QUIET:
                reports[rank]["native_note"] = "py-spy had no time left to name it"
                return
            pid = reports[rank].get("pid", pids[rank])
            _, reports[rank]["native"], reports[rank]["native_note"] = await spy(pid, native=True, timeout=left)

    await asyncio.gather(*(name(rank) for rank in chosen.values()))


def _matches(frames: Iterable[Sequence[Any]], known: Sequence[str]) -> bool:
    places = [f"{file}:{function}" for file, _, function in frames]
    return any(re.search(expression, place) for expression in known for place in places)


async def inspect_ranks(
    kernels: dict[int, tuple[int, Path]], *, native: bool, known: Sequence[str], window: float, within: float
) -> dict[int, dict[str, Any]]:
    """Return a report on each rank of one machine, by rank.

    Parameters
    ----------
    kernels : dict
        Rank -> its process id and the file of its stacks.
    native : bool
        Whether to name C code, for which processes are paused briefly.
    known : sequence of str
        See `name_native`.
    window : float
        Seconds over which CPU time is measured.
    within : float
        Seconds for the whole call.

    Returns
    -------
    dict
        Rank -> ``frames`` ([file, line, function], innermost first, without the callers of the user's
        code), ``at`` (see `stack_dump.users_part`), ``note`` (why there is no stack), ``state`` and
        ``waits_in`` of the main thread, ``cpu`` and ``main_cpu`` (of one core), ``ran`` and
        ``switches`` (before and after), and, if ``native`` was requested and useful, ``native``
        ([library, function], innermost first) with ``native_note``.
    """
    end = time.monotonic() + within
    looks = await asyncio.gather(*(sample_stack(pid, path, window=window, end=end) for pid, path in kernels.values()))
    reports = dict(zip(kernels, looks, strict=True))
    if native:
        await name_native(reports, {rank: pid for rank, (pid, _) in kernels.items()}, known, end)
    return reports
