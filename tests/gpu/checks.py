"""What a check is, and the bench that it works on: pools, the device, and how much of it is used.

A check is a function of a `Bench`. It returns what it measured, in words; it raises where what it looks for is not
so, or `LeftOut` where this machine cannot tell. Cells are texts, as a notebook has them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

import sky_jupyter as sky
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, CellResult
from sky_jupyter.pool.runs.run import Run
from tests.gpu.table import smi
from tests.pool.pools import begin, local_pool, run

MIB, GIB = 1 << 20, 1 << 30
# What matters most, and what takes least, comes first.
MODULES = ("devices", "frameworks", "values", "failures", "training")
ALL: dict[str, Check] = {}
# So much of a GPU's memory comes and goes by itself: the driver's own.
SLACK = 96 * MIB


class LeftOut(Exception):
    """This machine cannot tell; why."""


class Wrong(AssertionError):
    """What a check looks for is not so."""


def expect(holds: object, otherwise: str) -> None:
    """Fail with these words unless something holds."""
    if not holds:
        raise Wrong(otherwise)


@dataclass(frozen=True)
class Check:
    """A check.

    Parameters
    ----------
    key : str
        Its function's name.
    name : str
        What it looks at, in words.
    work : callable
        The function.
    needs : tuple of str
        Packages without which it is left out.
    limit : float
        Seconds after which it is killed; what it starts counts.
    """

    key: str
    name: str
    work: Callable[[Bench], str]
    needs: tuple[str, ...] = ()
    limit: float = 60.0


def check(
    name: str, needs: str = "", limit: float = 60.0
) -> Callable[[Callable[[Bench], str]], Callable[[Bench], str]]:
    """Have a function be one of the checks, after those before it."""

    def made(work: Callable[[Bench], str]) -> Callable[[Bench], str]:
        ALL[work.__name__] = Check(work.__name__, name, work, tuple(needs.split()), limit)
        return work

    return made


def registered() -> dict[str, Check]:
    """All checks, by their keys, in their order."""
    for name in MODULES:
        importlib.import_module(f"tests.gpu.{name}")
    return ALL


@dataclass
class Bench:
    """Made by the process that runs checks; one pool lives at a time.

    Parameters
    ----------
    device : str
        ``"cuda"`` or ``"cpu"``, as torch calls it.
    """

    device: str
    _pools: dict[str, Pool] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def has_gpu(self) -> bool:
        """Whether the checks are on a GPU."""
        return self.device == "cuda"

    def frameworks(self, *among: str) -> tuple[str, ...]:
        """Those that this Python has."""
        return tuple(name for name in among if importlib.util.find_spec(name) is not None)

    def pool(self, kind: str, nodes: int = 1, *plugins: str, **more: Any) -> Pool:
        """A pool by what it is called; the one before it ends. Plugins that this Python lacks are left out."""
        if kind not in self._pools:
            self.drop()
            made = tuple(getattr(sky.plugins, name)() for name in self.frameworks(*plugins))
            self._pools[kind] = self._stack.enter_context(local_pool(nodes, plugins=made, **more))
        self._pools[kind].settle()
        self._pools[kind].take_restarted()
        return self._pools[kind]

    def one(self) -> Pool:
        """One rank, with all frameworks."""
        return self.pool("one", 1, "jax", "keras", "torch")

    def two(self) -> Pool:
        """Two ranks, with torch."""
        return self.pool("two", 2, "torch")

    def drop(self) -> None:
        """End the pool, as after a check that failed: nobody knows in which state it is."""
        self._pools.clear()
        stack, self._stack = self._stack, contextlib.ExitStack()
        stack.close()

    def run(self, pool: Pool, code: str, **names: Any) -> CellResult:
        """Run a cell to its end; it finds the device as DEVICE."""
        return run(pool, self._cell(code), names)

    def begin(self, pool: Pool, code: str, listener: Any = None) -> Run:
        """Begin a cell, and wait until each rank has said that it is in it."""
        more = {"listener": listener} if listener is not None else {}
        current = begin(pool, f"print('in it', flush=True)\n{self._cell(code)}", **more)
        until(
            lambda: all("in it" in "".join(outcome.stdout) or outcome.failed for outcome in current.outcomes.values()),
            "the cell to begin",
        )
        # It is in what comes next by then.
        time.sleep(1.0)
        return current

    def _cell(self, code: str) -> str:
        # Each by itself: kernels that are recreated have nothing of earlier cells.
        return f"DEVICE = {self.device!r}\n{code}"

    def used(self, pool: Pool) -> int:
        """Bytes that are used of the first GPU's memory; on a CPU, those of the pool's ranks."""
        if self.has_gpu:
            return int(smi("memory.used")[0][0]) * MIB
        return sum(kernel_of(pool, rank).memory_info().rss for rank in range(pool.spec.world_size))

    def falls_to(self, pool: Pool, most: int, what: str) -> int:
        """Wait until no more than this is used; how much is."""
        until(lambda: self.used(pool) <= most, what)
        return self.used(pool)


def kernel_of(pool: Pool, rank: int) -> psutil.Process:
    """A rank's process."""
    return psutil.Process(pool.status()[rank // pool.spec.ranks_per_node]["ranks"][rank]["pid"])


def until(holds: Callable[[], object], what: str, seconds: float = 40.0) -> None:
    """Wait for what is to come about by itself."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Wrong(f"in {seconds:.0f} s it did not come about: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def failing(pool: Pool, current: Run | None = None) -> Iterator[list[CellError]]:
    """Something inside is to fail a cell; its error is in the list afterwards. A run that is given is waited for."""
    caught: list[CellError] = []
    try:
        yield caught
        if current is not None:
            pool.attend(current)
    except CellError as error:
        caught.append(error)
    expect(caught, "the cell ended well, and should have failed")


class Notices:
    """A run's listener that keeps what the manager says."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, event: Any) -> None:
        if isinstance(event, NoticeEvent):
            self.texts.append(event.text)


@contextlib.contextmanager
def variables(given: Mapping[str, str]) -> Iterator[None]:
    """Have these environment variables inside."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def mib(size: float) -> str:
    """Bytes, in words."""
    return f"{size / MIB:,.0f} MiB"
