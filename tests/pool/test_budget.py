"""A pool's budget: it warns at 80%, asks whoever is there, ends the pool, and nodes end without a manager."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import SpecError
from sky_jupyter.magics.parsing import parse
from sky_jupyter.node.host.budget_timer import BudgetTimer
from sky_jupyter.pool.lifecycle import budget as budgets
from sky_jupyter.pool.lifecycle import cost_meter
from sky_jupyter.pool.lifecycle.budget import Budget
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from sky_jupyter.util.pool_cost import MachineCost, PoolCost
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.magics.notebook import notebook
from tests.pool.remote import MARKS, wait_until
from tests.providers.bought import buy, pool_of
from tests.providers.cloud import Cloud


class Log:
    def write(self, level: int, text: str) -> None:
        """Nobody reads it here."""


class Node:
    def __init__(self) -> None:
        self.told: list[float] = []

    def say_budget(self, seconds: float) -> None:
        self.told.append(seconds)


class Ledger:
    """A pool whose cost the test says, and what its budget did to it."""

    def __init__(self, most: float, hourly: float | None = 10.0) -> None:
        self.spec = PoolSpec(provider=sky.Local(), name="p", max_cost=most)
        self.hosts, self.logger = [Node(), Node()], Log()
        self.said: list[str] = []
        self.ended: list[str] = []
        self.ask: Callable[[str], Future[str | None]] | None = None
        self.total, self.hourly = 0.0, hourly
        self.budget = Budget(self, self.expire)  # type: ignore[arg-type]

    def change_spec(self, spec: PoolSpec) -> None:
        self.spec = spec

    def say(self, text: str) -> None:
        self.said.append(text)

    def expire(self, why: str = "") -> None:
        self.ended.append(why)

    def cost(self) -> PoolCost:
        total = None if self.hourly is None else self.total
        machine = MachineCost("m1", "small", "", "", "", "running", 0.0, None, self.hourly, total)
        return PoolCost("p", (machine,), 0.0, self.spec.max_cost)

    def at(self, total: float) -> Ledger:
        """Have it cost so much, and its budget look."""
        self.total = total
        threads = threading.active_count()
        asyncio.run(self.budget.check(self.cost))
        wait_until(lambda: threading.active_count() <= threads)
        return self


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_PATIENCE", 0.3)


def test_it_warns_once_at_80_percent_with_the_time_that_is_left() -> None:
    pool = Ledger(20)
    assert pool.at(15.9).said == []
    # At ten dollars an hour.
    assert pool.budget.next(pool.cost()) == pytest.approx(36)
    assert pool.at(16).at(16.5).said == [
        "pool 'p' has cost $16.00 of its budget of $20.00: at $10.00 an hour it ends in 24 min "
        "(`%sky up --name p --max-cost 40` gives it more)"
    ]
    assert pool.budget.next(pool.cost()) == pytest.approx(3.5 * 360)
    assert pool.ended == []


def test_it_ends_the_pool_where_nobody_can_be_asked() -> None:
    assert Ledger(20).at(20).ended == ["its budget of $20.00 is used up (`--max-cost` gives it more)"]


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("answer", ["", "no", "5", None], ids=["nothing", "no", "less", "no answer"])
def test_it_ends_the_pool_unless_a_person_gives_it_more(answer: str | None) -> None:
    pool, asked = Ledger(20), []

    def ask(text: str) -> Future[str | None]:
        asked.append(text)
        future: Future[str | None] = Future()
        if answer is not None:
            future.set_result(answer)
        return future

    pool.ask = ask
    assert len(pool.at(20).ended) == 1
    assert asked == [
        "Pool 'p' has used up its budget of $20.00. How many dollars may it cost in all? (nothing: it ends) "
    ]
    assert "it ends in 0.3 s (`%sky up --name p --max-cost 40` gives it more)" in pool.said[0]


@pytest.mark.usefixtures("patience")
def test_an_answer_with_more_is_the_new_budget() -> None:
    pool = Ledger(20)

    def ask(text: str) -> Future[str | None]:
        future: Future[str | None] = Future()
        future.set_result(" $50 ")
        return future

    pool.ask = ask
    assert pool.at(20).ended == []
    assert pool.spec.max_cost == 50
    assert pool.at(39).ended == []
    assert "has cost $40.00 of its budget of $50.00" in pool.at(40).said[-1]


def test_a_question_is_withdrawn_when_another_line_gives_more() -> None:
    pool, question = Ledger(20), Future[str | None]()

    def ask(text: str) -> Future[str | None]:
        pool.spec = replace(pool.spec, max_cost=100.0)
        return question

    pool.ask = ask
    assert pool.at(20).ended == []
    assert question.cancelled()


def test_without_a_price_it_says_so_and_ends_nothing() -> None:
    pool = Ledger(20, hourly=None)
    assert pool.at(100).at(200).said == ["the price of pool 'p' is unknown: its budget cannot be kept"]
    assert pool.ended == []


def test_a_machine_without_a_price_is_named_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Ledger(20)
    known = pool.cost
    odd = MachineCost("m2", "odd", "", "", "", "running", 0.0, None, None, None)
    monkeypatch.setattr(pool, "cost", lambda: replace(known(), machines=(*known().machines, odd)))
    assert pool.at(1).at(2).said == ["the price of 1 machine of pool 'p' is unknown: its budget is kept without them"]
    assert len(pool.at(20).ended) == 1


def test_nobody_is_asked_again_while_the_pool_ends() -> None:
    pool, asked, end = Ledger(20), list[str](), threading.Event()

    def ask(text: str) -> Future[str | None]:
        asked.append(text)
        answer: Future[str | None] = Future()
        answer.set_result("")
        return answer

    pool.ask, pool.total = ask, 20.0
    pool.budget = Budget(pool, lambda why: end.wait())  # type: ignore[arg-type]
    try:
        for _ in range(2):
            asyncio.run(pool.budget.check(pool.cost))
        assert len(asked) == 1
    finally:
        end.set()
    wait_until(lambda: "sky-budget" not in {thread.name for thread in threading.enumerate()})


def test_the_meter_outlives_a_message_that_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    monkeypatch.setattr(cost_meter, "_EVERY", 0.05)
    looked: list[float] = []

    async def check(self: Budget, look: Callable[[], PoolCost | None]) -> None:
        looked.append(time.monotonic())
        raise OSError("no space left")

    monkeypatch.setattr(Budget, "check", check)
    pool = pool_of(Cloud(str(tmp_path / "cloud.sqlite")))
    meter = pool.lifecycle.meter
    meter.begin()
    try:
        wait_until(lambda: len(looked) > 2)
    finally:
        meter.stop()
        pool.down()
    assert "was not checked" in caplog.text


def test_the_meter_asks_for_prices_that_nobody_knows_before_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = pool_of(cloud)
    pool.change_spec(replace(pool.spec, max_cost=20.0))
    buy(pool)
    wait_until(lambda: len(cloud.list(pool.id)) == 2)
    told: list[str] = []
    pool.farewell = told.append
    bill = pool.lifecycle.provisioning.bill
    for row in bill._read():
        bill._rows = {**(bill._rows or {}), (row.machine, row.number): replace(row, hourly=None)}
    pool.lifecycle.meter.begin()
    try:
        wait_until(lambda: (cost := pool.cost) is not None and not cost.unknown)
    finally:
        pool.lifecycle.meter.stop()
        pool.down()
    assert not told


def test_a_provider_that_hangs_does_not_hold_up_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    monkeypatch.setattr(cost_meter, "_EVERY", 0.05)
    monkeypatch.setattr(cost_meter, "_PATIENCE", 0.05)
    checked: list[float] = []
    hung, go_on = threading.Event(), threading.Event()

    async def check(self: Budget, look: Callable[[], PoolCost | None]) -> None:
        checked.append(time.monotonic())

    def look() -> None:
        hung.set()
        go_on.wait()

    monkeypatch.setattr(Budget, "check", check)
    pool = pool_of(Cloud(str(tmp_path / "cloud.sqlite")))
    monkeypatch.setattr(pool.lifecycle.meter, "look", look)
    pool.lifecycle.meter.begin()
    try:
        assert hung.wait(60)
        seen = len(checked)
        wait_until(lambda: len(checked) > seen + 2)
    finally:
        go_on.set()
        pool.lifecycle.meter.stop()
        pool.down()


def test_a_node_that_hangs_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_DIFFERENCE", 0.3)
    pool, go_on = Ledger(20), threading.Event()
    monkeypatch.setattr(pool.hosts[0], "say_budget", lambda seconds: go_on.wait())
    try:
        pool.total = 10.0
        asyncio.run(pool.budget.check(pool.cost))
        assert len(pool.hosts[1].told) == 1
        # They are given more, and then it is used up.
        pool.spec = replace(pool.spec, max_cost=40.0)
        asyncio.run(pool.budget.check(pool.cost))
        assert len(pool.hosts[1].told) == 2
        pool.total = 40.0
        asyncio.run(pool.budget.check(pool.cost))
        assert len(pool.ended) == 1
    finally:
        go_on.set()
    wait_until(lambda: not any(one.name.startswith("sky-budget") for one in threading.enumerate()))


def test_nodes_are_told_when_it_is_used_up_and_again_when_that_changes() -> None:
    pool = Ledger(20)
    margin = budgets._MARGIN
    pool.at(10)
    assert [node.told for node in pool.hosts] == [[pytest.approx(3600 + margin)]] * 2
    pool.at(10.001)
    assert [len(node.told) for node in pool.hosts] == [1, 1]
    pool.spec = replace(pool.spec, max_cost=40.0)
    pool.at(10.001)
    assert [node.told[-1] for node in pool.hosts] == [pytest.approx(3 * 3600 + margin, abs=1)] * 2


def test_a_node_ends_when_its_time_is_over_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    timer, word = BudgetTimer(tmp_path), tmp_path / "budget"
    assert not timer.is_over
    word.write_text("100\n")
    assert not timer.is_over
    ahead[0] = 101
    assert timer.is_over
    # It was given more meanwhile.
    word.write_text("50\n")
    os.utime(word, ns=(1, 1))
    assert not timer.is_over
    word.write_text("nonsense")
    assert not timer.is_over


def test_a_budget_is_an_amount_and_of_no_meaning_where_nothing_is_bought() -> None:
    with pytest.raises(SpecError, match="max_cost must be a number above 0"):
        PoolSpec(provider=sky.Local(), max_cost=0)
    spec = sky.Compute(max_cost=20).spec
    assert (spec.max_cost, spec.ignored) == (20, ("max_cost",))
    assert parse("up --max-cost $20", cell=False).pool["max_cost"] == 20
    # A live pool takes another one.
    assert spec.differences(replace(spec, max_cost=40.0)) == []


def test_a_person_is_asked_beside_a_cell_that_runs_on(tmp_path: Path) -> None:
    answered = tmp_path / "answered"
    with notebook(tmp_path) as book:
        book.run("%load_ext sky_jupyter")
        book.run("%sky up")
        asking = [
            "import threading",
            "from pathlib import Path",
            "from sky_jupyter.display.base.background_prompts import background_prompts",
            "question = background_prompts.ask('How many? ')",
            f"told = lambda: Path({str(answered)!r}).write_text(question.result())",
            "threading.Thread(target=told).start()",
            "question.done()",
        ]
        # Nothing waits for it here.
        assert book.run("\n".join(asking), answers=[]).status == "ok"
        waiting = [
            "%%sky",
            "import os, time",
            f"path = {str(answered)!r}",
            "while not (os.path.exists(path) and os.path.getsize(path)):",
            "    time.sleep(0.05)",
            "open(path).read()",
        ]
        cell = book.run("\n".join(waiting), answers=["50"])
        assert (cell.status, cell.asked) == ("ok", [("How many? ", False)])
        assert answered.read_text() == "50"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(1, python=True, warm=True) as made:
        yield made


def marked(test: Callable[..., None]) -> Callable[..., None]:
    for mark in (*MARKS, pytest.mark.slow, pytest.mark.usefixtures("config")):
        test = mark(test)
    return test


@marked
def test_a_pool_ends_at_its_budget_with_all_its_machines(world: World, tmp_path: Path) -> None:
    # Ten dollars a second.
    cloud = Cloud(str(tmp_path / "cloud.sqlite"), hosts=("host0",), hourly=36_000.0)
    with cloud.powered(world):
        pool = Pool(PoolSpec(provider=cloud, name="dear", max_cost=200))
        said: list[str] = []
        pool.farewell = said.append
        pool.start()
        try:
            there = f"{pool.hosts[0].there}/budget"
            wait_until(lambda: world[0].run(f"cat {there} 2>/dev/null || true").strip())
            wait_until(lambda: "has ended" in said[-1] if said else "")
        finally:
            pool.down()
        assert (cloud.alive(), pool.state) == ([], "ended")
        assert pool.cost is not None
        assert pool.cost.total == pytest.approx(200, rel=0.2)
        assert "has cost $1" in said[0]
        assert said[-1] == "pool 'dear' has ended: its budget of $200.00 is used up (`--max-cost` gives it more)"


@marked
def test_nodes_end_by_themselves_when_nobody_is_there_to_end_them(world: World, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"), hosts=("host0",))
    with cloud.powered(world):
        pool = Pool(PoolSpec(provider=cloud, name="left", max_cost=300))
        pool.start()
        try:
            folder = pool.hosts[0].there
            # Its manager has said when that is; from now on it is gone, as far as the node knows.
            wait_until(lambda: world[0].run(f"cat {folder}/budget 2>/dev/null || true").strip())
            pool.hosts[0].say_budget(0)
            wait_until(lambda: world[0].run(f"test -e {folder} && echo there || true").strip() == "")
        finally:
            pool.down()
