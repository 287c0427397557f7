"""What a registry after a year's use costs, beside that of the first day: 100,000 runs of 1,000 pools, all kept.

The rows are written by SQL into the real tables. Each job is a process of its own, or the same operations on both files
by turns; figures are processor time, since they are small.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sky_jupyter.access import pool_facts
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.util import process_identity

from . import fresh
from .measure import Figures, Options, Row, by_turns, rows

RUNS, QUICK_RUNS = 100_000, 10_000
POOLS, QUICK_POOLS = 1000, 100
DAY = 10
YEAR, FIRST = "after a year", "on the first day"
CODE = "import numpy as np\nx = np.random.rand(1000)\n" * 10
# With a spread for what else the machine does. The rows of a cell are held to what a cell of 10 ms does not feel:
# ids are random, so that more pages of their index are written when there are many.
_MOST_RATIO, _MOST_OF_CELL = 1.2, 0.3
_TIMES = 200


def measure(options: Options) -> list[Row]:
    """Processor time of each thing that reads or writes the registry, in a file of a year and in a new one."""
    runs, pools = (QUICK_RUNS, QUICK_POOLS) if options.quick else (RUNS, POOLS)
    with tempfile.TemporaryDirectory(prefix="bench-registry-") as folder, _keeping(runs, pools):
        files = {YEAR: Path(folder) / "year.sqlite", FIRST: Path(folder) / "day.sqlite"}
        fill(files[YEAR], runs, pools)
        fill(files[FIRST], DAY, 1)
        size = files[YEAR].stat().st_size / 1e6
        print(f"registry: {runs:,} runs of {pools:,} pools are {size:.0f} MB")
        return [*_operations(files, options), *_notebook(files, options)]


def _operations(files: dict[str, Path], options: Options) -> list[Row]:
    opened = {name: Registry(path) for name, path in files.items()}
    try:
        jobs = {name: _job(registry) for name, registry in opened.items()}
        samples = by_turns(jobs, options.times(9, quick=2))
    finally:
        for registry in opened.values():
            registry.close()
    found = []
    for what in OPERATIONS:
        best, most = (None, _MOST_OF_CELL) if what == CELL else (_MOST_RATIO, None)
        found += rows(what, samples, what, ours=YEAR, unit="ms", best=best, most=most)
    return found


def _notebook(files: dict[str, Path], options: Options) -> list[Row]:
    """`%load_ext` and `%sky runs` in fresh processes."""
    jobs = {name: _fresh(path) for name, path in files.items()}
    samples = by_turns(jobs, options.times(7, quick=1))
    found = []
    for what in ("%load_ext sky_jupyter", "%sky runs"):
        found += rows(what, samples, what, ours=YEAR, unit="ms", best=_MOST_RATIO)
    return found


def _fresh(path: Path) -> Callable[[], Figures]:
    return lambda: fresh.call("registry", "notebook", path=str(path))


def notebook(path: str) -> Figures:
    """Load the extension and list runs; called in a process of its own."""
    os.environ["SKY_REGISTRY"] = path
    fresh.like_a_notebook()
    from .engines import shell

    figures: Figures = {}
    for what, magic in (("%load_ext sky_jupyter", ("load_ext", "sky_jupyter")), ("%sky runs", ("sky", "runs"))):
        began = time.process_time()
        shell().run_line_magic(*magic)
        figures[what] = (time.process_time() - began) * 1000
    return figures


def _job(registry: Registry) -> Callable[[], Figures]:
    def run() -> Figures:
        figures: Figures = {}
        for what, operation in OPERATIONS.items():
            began = time.process_time()
            for number in range(_TIMES):
                operation(registry, number)
            registry.flush()
            figures[what] = (time.process_time() - began) * 1000 / _TIMES
        return figures

    return run


def _cell(registry: Registry, number: int) -> None:
    id = os.urandom(6).hex()
    registry.run_began(id, "live", CODE, cell=number)
    registry.run_ended(id, "ok", 0.1)
    registry.flush()


def _panel(registry: Registry, number: int) -> None:
    for row in registry.pools():
        pool_facts.of_pool(registry, row)


CELL = "a cell's rows"
OPERATIONS: dict[str, Callable[[Registry, int], object]] = {
    CELL: _cell,
    "the side panel's pools": _panel,
    "the runs of a pool": lambda registry, number: registry.runs("live", 20),
    "the newest runs": lambda registry, number: registry.runs(limit=20),
    "a run by the beginning of its id": lambda registry, number: registry.run("ffff0000"),
    "a sweep": lambda registry, number: sweep(registry),
}


@contextlib.contextmanager
def _keeping(runs: int, pools: int) -> Iterator[None]:
    """Have all rows kept, and those that are written meanwhile."""
    given = {"SKY_KEEP_RUNS": str(2 * runs), "SKY_KEEP_POOLS": str(2 * pools)}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def fill(path: Path, runs: int, pools: int) -> None:
    """Make a registry with so many ended runs of ended pools, and with one pool that lives.

    Parameters
    ----------
    path : Path
        The file.
    runs, pools : int
        Numbers of the rows.
    """
    registry = Registry(path)
    registry.intend("live", "live", "local", 2, False)
    registry.update("live", "ready")
    for number in range(DAY):
        registry.run_began(f"live{number}", "live", CODE)
        registry.run_ended(f"live{number}", "ok", 0.1)
    registry.close()
    year, now = 365 * 86_400.0, time.time()
    me, here = process_identity.this(), process_identity.here()
    connection = sqlite3.connect(path)
    with contextlib.closing(connection), connection:
        connection.executemany(
            "INSERT INTO pools (id, name, provider, nodes, state, folders, owner, owner_started, keep, began, ended, "
            "machine, machine_place) VALUES (?, ?, 'local', 2, 'ended', ?, ?, ?, 0, ?, ?, ?, ?)",
            (
                (f"{n:08x}", f"pool{n % 50}", json.dumps([f"/tmp/sky-{n:08x}-x"]), *me, began, began + 60, here.host,
                 here.text)
                for n in range(pools)
                for began in (now - year + n * year / pools,)
            ),
        )  # fmt: skip
        connection.executemany(
            "INSERT INTO runs (id, pool, state, code, began, elapsed, ranks, cell) "
            "VALUES (?, ?, 'ok', ?, ?, 1.0, '', ?)",
            (
                (f"{n * 2654435761 % (1 << 32):08x}{n:04x}", f"{n % pools:08x}", CODE, now - year + n * year / runs, n)
                for n in range(runs)
            ),
        )
