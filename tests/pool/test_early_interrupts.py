"""Interrupts of runs that have not begun on their ranks: they are kept, and take effect as soon as the runs begin."""

from __future__ import annotations

import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.api import operators
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.execution import run_termination, tasks
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, RankInterrupted
from tests.pool.pools import begin, local_pool, run, underway, wait_until
from tests.pool.test_faults import kernel_of

FOREVER = "import time\nwhile True: time.sleep(0.1)"


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interrupt is repeated."""
    monkeypatch.setattr(run_termination, "_INTERRUPT_PATIENCE", 600.0)


@sky.function
def waits(at_it: Path, go: Path) -> str:
    at_it.touch()
    while not go.exists():
        time.sleep(0.05)
    return "done"


def test_an_interrupt_of_a_rank_that_has_not_begun_reaches_it_when_it_begins(tmp_path: Path) -> None:
    at_it = tmp_path / "at it"
    with local_pool() as pool:
        kernel = kernel_of(pool, 1)
        kernel.suspend()
        try:
            current = begin(pool, f"open({str(at_it)!r}, 'w').close()\n{FOREVER}")
            wait_until(at_it.exists)
            pool.interrupt(current)
        finally:
            kernel.resume()
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        assert [type(caught.value.errors[rank]) for rank in (0, 1)] == [RankInterrupted] * 2
        assert run(pool, "40 + 2").values == [42, 42]


def test_an_interrupt_of_a_run_that_waits_for_a_call_ends_the_run_and_not_the_call(tmp_path: Path) -> None:
    at_it, go = tmp_path / "at it", tmp_path / "go"
    with local_pool(nodes=1) as pool, ThreadPoolExecutor(1) as thread:
        called = thread.submit(lambda: waits(at_it, go) >> pool)
        wait_until(at_it.exists)
        current = begin(pool, FOREVER)
        wait_until(lambda: current.id in pool.runs())
        pool.interrupt(current)
        go.touch()
        assert called.result() == "done"
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        assert isinstance(caught.value.errors[0], RankInterrupted)


def test_code_that_heeds_an_interrupt_gets_no_second_one_while_it_saves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    told: list[Any] = []
    code = f"""
import os, time
try:
    while True: time.sleep(0.02)
except KeyboardInterrupt:
    print("heeded", flush=True)
    while not os.path.exists({str(go)!r}): time.sleep(0.02)
'saved'
"""
    with local_pool() as pool:
        current = underway(pool, code, listener=told.append)
        pool.interrupt(current)
        wait_until(lambda: all("heeded" in "".join(outcome.stdout) for outcome in current.outcomes.values()))
        # As it is stopped when its time to heed the interrupt is over.
        monkeypatch.setattr(run_termination, "_INTERRUPT_PATIENCE", 0.0)
        stopping = loop().submit(pool.supervisor.termination.stop(current, asked=True))
        wait_until(lambda: any("not respond to the interrupt" in getattr(event, "text", "") for event in told))
        go.touch()
        stopping.result()
        assert pool.attend(current).values == ["saved", "saved"]


def test_a_second_interrupt_of_a_run_that_waits_for_a_call_replaces_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_termination, "FREE_PATIENCE", 0.1)
    at_it, go = tmp_path / "at it", tmp_path / "go"
    with local_pool(nodes=1) as pool, ThreadPoolExecutor(1) as thread:
        called = thread.submit(lambda: waits(at_it, go) >> pool)
        wait_until(at_it.exists)
        current = begin(pool, FOREVER)
        wait_until(lambda: current.id in pool.runs())
        pool.interrupt(current)
        pool.interrupt(current, hard=True)
        with pytest.raises(CellError, match="you cancelled it"):
            pool.attend(current)
        pool.settle()
        go.touch()
        assert called.result() == "done"
        assert pool.take_restarted() == set()
        assert run(pool, "40 + 2").values == [42]


def test_an_interrupt_of_a_broadcast_that_waits_for_a_call_reaches_all_its_ranks(tmp_path: Path) -> None:
    at_it, go, elsewhere = tmp_path / "at it", tmp_path / "go", tmp_path / "elsewhere"
    with local_pool() as pool, ThreadPoolExecutor(2) as threads:
        called = threads.submit(lambda: waits(at_it, go).on(0) >> pool)
        wait_until(at_it.exists)
        broadcast = threads.submit(lambda: waits(elsewhere, tmp_path / "never") @ pool)
        wait_until(elsewhere.exists)

        def of_all() -> list[Any]:
            return [current for current in pool.supervisor.runs.values() if len(current.outcomes) == 2]

        wait_until(of_all)
        pool.interrupt(of_all()[0])
        go.touch()
        assert called.result() == "done"
        with pytest.raises(sky.BroadcastError) as caught:
            broadcast.result()
        assert [type(caught.value.errors[rank]) for rank in (0, 1)] == [RankInterrupted] * 2


def is_idle(pool: Pool) -> bool:
    return not any(its["busy_with"] for node in pool.status().values() for its in node["ranks"].values())


@pytest.fixture
def press(tmp_path: Path) -> Iterator[None]:
    """An interrupt as soon as a rank is at it."""

    def act() -> None:
        wait_until((tmp_path / "at it").exists)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=act)
    pressing.start()
    yield
    pressing.join()


@pytest.mark.usefixtures("press")
def test_a_call_is_interrupted_when_its_rank_has_ended_it_however_late_the_agent_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_PATIENCE", 0.0)
    with local_pool(nodes=1) as pool:
        with pytest.raises(KeyboardInterrupt):
            waits(tmp_path / "at it", tmp_path / "never") >> pool
        assert is_idle(pool)


@pytest.mark.parametrize(
    ("way", "where"),
    [(operator.rshift, "Batch"), (operator.matmul, "_view_of")],
    ids=["one rank", "all ranks"],
)
def test_an_interrupt_amid_the_opening_of_a_call_stops_it(
    way: Callable[[Any, Pool], Any], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = getattr(operators, where)

    def makes(*args: Any, **options: Any) -> Any:
        # Such as one that comes while a view's modules are imported.
        os.kill(os.getpid(), signal.SIGINT)
        return made(*args, **options)

    monkeypatch.setattr(operators, where, makes)
    with local_pool() as pool:
        with pytest.raises(KeyboardInterrupt):
            way(waits(tmp_path / "at it", tmp_path / "never"), pool)
        assert is_idle(pool)
