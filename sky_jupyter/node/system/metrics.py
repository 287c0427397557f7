"""Metrics of a node's machine: CPU, memory and GPUs, over five minutes.

Samples are taken once a second. In a container the limits of its cgroup count.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from .gpus import Device

EVERY = 1.0
KEPT = 300
_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Limits near this value mean "no limit" in cgroup version 1.
_NO_LIMIT = 1 << 60
_MOST_FILE = 1 << 16
Gpu = tuple[str, int]
"""A GPU's name and its memory in bytes."""
Use = tuple[float, int]
"""A GPU's utilization (0 to 1) and its used memory in bytes."""


class Gpus(Protocol):
    """Monitor of a machine's GPUs."""

    @property
    def all(self) -> Sequence[Gpu]:
        """The GPUs."""

    def look(self) -> Sequence[Use]:
        """Return the use of each GPU."""


class NoGpus:
    """Monitor of a machine without GPUs."""

    all: Sequence[Gpu] = ()

    def look(self) -> Sequence[Use]:
        """Return an empty sequence."""
        return ()


class MachineMonitor:
    """Monitor of the cores and memory that a node may use.

    Parameters
    ----------
    cgroups : Path
        Root of the cgroup file systems.
    own : Path
        File that lists this process's cgroups.

    Attributes
    ----------
    cores : float
        Number of cores, or the cgroup's quota.
    memory : int
        Total memory in bytes, or the cgroup's limit.
    """

    def __init__(self, cgroups: Path = _CGROUPS, own: Path = _OWN) -> None:
        self.cores = float(_cores())
        self.memory = int(psutil.virtual_memory().total)
        self._memory_group = self._cpu_group = None
        for group in _groups(cgroups, own):
            limit = group.memory_limit()
            if limit is not None and limit < self.memory:
                self.memory, self._memory_group = limit, group
            quota = group.cpu_quota()
            if quota is not None and quota < self.cores:
                self.cores, self._cpu_group = quota, group
        self._before: tuple[float, float] | None = None
        self.cpu()

    def used(self) -> int:
        """Return the bytes of memory in use, without file caches."""
        if self._memory_group is not None and (used := self._memory_group.memory_used()) is not None:
            return used
        memory = psutil.virtual_memory()
        return int(memory.total - memory.available)

    def cpu(self) -> float:
        """Return the busy share of the cores since the last call; 0 at first."""
        now = time.monotonic()
        busy = self._cpu_group.cpu_seconds() if self._cpu_group is not None else None
        if busy is None:
            times = psutil.cpu_times()
            busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
            # Guest time is included in user time.
            busy -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        before, self._before = self._before, (now, busy)
        if before is None or now <= before[0]:
            return 0.0
        cores = self.cores if self._cpu_group is not None else os.cpu_count() or 1
        return min(1.0, max(0.0, (busy - before[1]) / (now - before[0]) / cores))


class _Group:
    """Control group of either version, by the folders of its controllers."""

    def __init__(self, memory: Path | None, cpu: Path | None, usage: Path | None, *, unified: bool) -> None:
        self._memory, self._cpu, self._usage, self._unified = memory, cpu, usage, unified

    def memory_limit(self) -> int | None:
        """Return the limit in bytes; None if there is none."""
        limit = _number(self._memory, "memory.max" if self._unified else "memory.limit_in_bytes")
        return limit if limit is not None and limit < _NO_LIMIT else None

    def memory_used(self) -> int | None:
        """Return the bytes in use, without inactive file caches."""
        used = _number(self._memory, "memory.current" if self._unified else "memory.usage_in_bytes")
        cached = _field(self._memory, "memory.stat", "inactive_file" if self._unified else "total_inactive_file")
        return None if used is None else max(0, used - (cached or 0))

    def cpu_quota(self) -> float | None:
        """Return the quota in cores; None if there is none."""
        if self._unified:
            words = _words(self._cpu, "cpu.max")
            quota, period = (int(word) if word.isdigit() else 0 for word in (*words, "", "")[:2])
        else:
            quota = _number(self._cpu, "cpu.cfs_quota_us") or 0
            period = _number(self._cpu, "cpu.cfs_period_us") or 0
        return quota / period if quota > 0 and period > 0 else None

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the group in seconds."""
        if self._unified:
            used = _field(self._cpu, "cpu.stat", "usage_usec")
            return None if used is None else used / 1e6
        used = _number(self._usage, "cpuacct.usage")
        return None if used is None else used / 1e9


def _groups(root: Path, own: Path) -> Iterator[_Group]:
    """Yield the cgroups of this process, the innermost first."""
    lines = [line.split(":", 2) for line in _read(own).splitlines()]
    places = {name: path for _, names, path in (line for line in lines if len(line) == 3) for name in names.split(",")}
    if "memory" in places or "cpu" in places:
        folders = [_upwards(root, name, places.get(name)) for name in ("memory", "cpu", "cpuacct")]
        for index in range(max(map(len, folders))):
            memory, cpu, usage = (folder[index] if index < len(folder) else None for folder in folders)
            yield _Group(memory, cpu, usage, unified=False)
    elif "" in places:
        for folder in _upwards(root, "", places[""]):
            yield _Group(folder, folder, folder, unified=True)


def _upwards(root: Path, controller: str, path: str | None) -> list[Path]:
    """Return a group's folder and its parents.

    In a container, the root of the mounted file system may be the group itself.
    """
    if path is None:
        return []
    top = root / controller
    own = top / path.strip("/")
    inside = [own, *own.parents] if own.is_dir() and ".." not in own.parts else [top]
    return [folder for folder in inside if folder == top or top in folder.parents]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_FILE)
    return ""


def _words(folder: Path | None, name: str) -> list[str]:
    return _read(folder / name).split() if folder is not None else []


def _number(folder: Path | None, name: str) -> int | None:
    words = _words(folder, name)
    return int(words[0]) if words and words[0].isdigit() else None


def _field(folder: Path | None, name: str, field: str) -> int | None:
    words = _words(folder, name)
    place = words.index(field) + 1 if field in words else len(words)
    return int(words[place]) if place < len(words) and words[place].isdigit() else None


def _cores() -> int:
    with contextlib.suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Sampler:
    """Periodic sampler of metrics; the agent runs `attend`.

    Parameters
    ----------
    machine : MachineMonitor
        The node's machine.
    gpus : Gpus
        The node's GPUs.
    """

    def __init__(self, machine: MachineMonitor, gpus: Gpus) -> None:
        self.machine, self.gpus = machine, gpus
        # Number of samples taken; the newest are kept.
        self.next = 0
        self._kept: deque[list[float]] = deque(maxlen=KEPT)

    async def attend(self) -> None:
        """Take a sample every second, for ever."""
        while True:
            await asyncio.sleep(EVERY)
            # In a thread: waiting for a driver must not block the agent.
            self.take(await asyncio.to_thread(self.gpus.look) if self.gpus.all else ())

    def take(self, uses: Sequence[Use] = ()) -> None:
        """Take a sample: CPU share, bytes of memory, and the use of each GPU."""
        row = [round(self.machine.cpu(), 3), self.machine.used()]
        for busy, used in uses:
            row += [round(busy, 3), used]
        self._kept.append(row)
        self.next += 1

    def since(self, number: int) -> dict[str, Any]:
        """Return the kept samples from a number on, and the machine's totals."""
        new = max(0, min(self.next - number, len(self._kept))) if number <= self.next else len(self._kept)
        return {
            "cores": self.machine.cores,
            "memory": self.machine.memory,
            "gpus": [list(gpu) for gpu in self.gpus.all],
            "next": self.next,
            "samples": list(self._kept)[len(self._kept) - new :],
        }


def memory_of(pid: int) -> int:
    """Return a process's resident memory in bytes; 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def gpus_of(devices: Sequence[Device]) -> Gpus:
    """Return a monitor of these devices; load nothing if there are none."""
    if not devices:
        return NoGpus()
    from .nvml import Nvml

    return Nvml.of([device.id for device in devices]) or NoGpus()
