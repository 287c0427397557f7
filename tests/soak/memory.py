"""What the processes of a pool hold, over time: memory, descriptors, threads and files; and whether it is flat."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MIB = 1 << 20
# In fewer runs, some that are large outweigh what each of them leaves behind: MiB on top of the tolerance.
_MANY_RUNS = 500
_FEW_RUNS_SLACK = 96
# What is sampled less often than this says nothing.
_FEWEST = 6


@dataclass(frozen=True)
class Tolerance:
    """What a process may hold more in the last third than in the first: a share of it, and so much besides."""

    share: float
    mib: float


# Measured; see the table in the report of each soak.
TOLERANCES = {
    "manager": Tolerance(0.08, 8),
    # It keeps what it knows of the last 200 runs; one that is late has not been trimmed yet.
    "agent": Tolerance(0.10, 12),
    # The largest batches of output; what its C library keeps of them is not trimmed there.
    "scheduler": Tolerance(0.08, 32),
    # The last sixteen values: 1.6 MB each where they are large.
    "rank": Tolerance(0.08, 24),
}
OTHERS = Tolerance(0.08, 6)
# A traceback holds the process group that it was in until the next comes: a store and its connections at most.
HANDLES = {"rank": {"fds": 40, "threads": 10}}
MORE_HANDLES = 4
# Its pages are shared with the kernels that it forked: they are its own again when those end.
_MEASURE = {"forkserver": "rss"}


class Memory:
    """Samples of a steady time, and what is to be said of them."""

    def __init__(self) -> None:
        self.samples: list[dict[tuple[str, int], dict[str, float]]] = []
        self.files: list[dict[str, float]] = []
        self.numbers: list[int] = []

    def sample(self, number: int, pids: dict[str, int], facts: dict[str, Any]) -> None:
        """Look at all processes now, after ``number`` runs."""
        row: dict[tuple[str, int], dict[str, float]] = {}
        for name, pid in pids.items():
            try:
                process = psutil.Process(pid)
                memory = process.memory_full_info()
                row[name, pid] = {
                    "rss": memory.rss / MIB,
                    "uss": memory.uss / MIB,
                    "fds": process.num_fds(),
                    "threads": process.num_threads(),
                }
            except psutil.Error:
                continue
        self.samples.append(row)
        self.numbers.append(number)
        folders = [Path(folder) for folder in facts["folders"]]
        files = [path for folder in folders for path in folder.rglob("*")]
        sizes = [path.stat().st_size for path in files if path.is_file()]
        self.files.append({"files": len(files), "MiB": sum(sizes) / MIB, "objects": facts["objects"]})

    def lasting(self) -> list[tuple[str, int]]:
        """Those who were there in all samples."""
        if not self.samples:
            return []
        return [who for who in self.samples[0] if all(who in row for row in self.samples)]

    def thirds(self, who: tuple[str, int], what: str) -> tuple[float, float]:
        """The medians of the first and of the last third."""
        values = [row[who][what] for row in self.samples]
        third = max(1, len(values) // 3)
        return statistics.median(values[:third]), statistics.median(values[-third:])

    def problems(self) -> list[str]:
        """What is not flat, in words."""
        if len(self.samples) < _FEWEST:
            return []
        found = []
        for who in self.lasting():
            tolerance = TOLERANCES.get(who[0].split()[0], OTHERS)
            before, after = self.thirds(who, _MEASURE.get(who[0], "uss"))
            slack = 0 if self.numbers[-1] - self.numbers[0] >= _MANY_RUNS else _FEW_RUNS_SLACK
            if after - before > before * tolerance.share + tolerance.mib + slack:
                found.append(f"the memory of {who[0]} ({who[1]}) grew from {before:.1f} to {after:.1f} MiB")
            for what in ("fds", "threads"):
                before, after = self.thirds(who, what)
                if after - before > HANDLES.get(who[0].split()[0], {}).get(what, MORE_HANDLES):
                    found.append(f"{who[0]} ({who[1]}) had {before:.0f} {what}, and then {after:.0f}")
        return found

    @property
    def table(self) -> str:
        """Medians of the first and the last third, of who lived through all of it."""
        if not self.samples:
            return "nothing was measured"
        lines = [
            f"{len(self.samples)} samples, from run {self.numbers[0]} to run {self.numbers[-1]}: "
            "medians of the first third -> of the last third",
            f"{'':12} {'RSS MiB':>18} {'USS MiB':>18} {'descriptors':>14} {'threads':>12}",
        ]
        for who in self.lasting():
            cells = []
            for what, digits, width in (("rss", 1, 18), ("uss", 1, 18), ("fds", 0, 14), ("threads", 0, 12)):
                before, after = self.thirds(who, what)
                cells.append(f"{before:.{digits}f} -> {after:.{digits}f}".rjust(width))
            lines.append(f"{who[0]:12} " + " ".join(cells))
        first, last = self.files[0], self.files[-1]
        lines.append(", ".join(f"{name} {first[name]:.0f} -> {last[name]:.0f}" for name in first))
        return "\n".join(lines)
