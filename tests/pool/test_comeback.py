"""When a pool whose head is lost is restarted by itself, and when it is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sky_jupyter.errors import PoolError, ProvisionError
from sky_jupyter.pool.lifecycle import comeback
from sky_jupyter.pool.lifecycle.comeback import Comeback
from sky_jupyter.pool.lifecycle.lost_machines import Loss
from sky_jupyter.pool.lifecycle.state_machine import PoolState, StateMachine
from tests.pool.remote import wait_until

TAKEN = Loss("its machine was taken away", returns=True)
ENDED = Loss("its machine has ended", returns=False)


class BrokenPool(SimpleNamespace):
    """What a comeback sees of a pool whose head is lost: the provider's answers, and what restarts do, in order."""

    def __init__(self, *losses: Loss | None, restarts: tuple[Callable[[BrokenPool], None], ...] = ()) -> None:
        states = StateMachine("job", lambda level, text: None)
        states.to(PoolState.READY)
        states.to(PoolState.BROKEN, "the head is gone")
        self.losses, self.restarts = list(losses), list(restarts)
        self.told: list[str] = []
        self.asked = self.restarted = 0
        super().__init__(
            id="id",
            generation=1,
            guest=None,
            ids=["1/0"],
            incarnations={"1/0": "1.0"},
            spec=SimpleNamespace(name="job", provider=SimpleNamespace(queues=True)),
            states=states,
            supervisor=SimpleNamespace(runs={}),
            provisioning=SimpleNamespace(buys=lambda spec: True),
            registry=SimpleNamespace(owns=lambda *_: True),
            logger=SimpleNamespace(write=lambda level, text: None),
            farewell=self.told.append,
            require_live=states.require_live,
        )
        self.comeback = Comeback(self, self.come_back)  # type: ignore[arg-type]

    @property
    def state(self) -> PoolState:
        return self.states.current

    @property
    def broken(self) -> str:
        return self.states.why

    def come_back(self, why: str, listener: Any, tick: Callable[[], None]) -> None:
        self.restarted += 1
        self.tick = tick
        self.restarts.pop(0)(self)

    def ask(self, *_: object) -> Loss | None:
        self.asked += 1
        return self.losses.pop(0) if self.losses else None

    def wait(self) -> None:
        """Wait until it is over that the pool is restarted, or that anybody asks whether it is to be."""
        self.comeback.expect()
        wait_until(lambda: not _threads())


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sky-comeback"]


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comeback, "_PAUSE", 0.001)
    monkeypatch.setattr(comeback, "_LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(comeback, "has_queue", lambda provider: provider.queues)


def asking(monkeypatch: pytest.MonkeyPatch, pool: BrokenPool) -> BrokenPool:
    monkeypatch.setattr(comeback, "loss_of", pool.ask)
    return pool


def _succeed(pool: BrokenPool) -> None:
    pool.states.to(PoolState.NEW)
    pool.states.to(PoolState.READY)


def _refuse(pool: BrokenPool) -> None:
    raise ProvisionError("the login host does not answer")


def _lose_again(pool: BrokenPool) -> None:
    pool.incarnations = {"1/0": f"1.{pool.restarted}"}
    raise PoolError("it was taken away again")


def test_the_provider_is_asked_until_it_says_that_the_machine_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = asking(monkeypatch, BrokenPool(None, None, TAKEN, restarts=(_succeed,)))
    pool.wait()
    assert (pool.asked, pool.restarted, pool.state) == (3, 1, PoolState.READY)
    assert pool.told == [
        "pool 'job' starts again by itself as soon as its machines are back (its machine was taken away); "
        "`%sky down` ends it",
        "pool 'job' is ready again, with new kernels on all ranks",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda pool: setattr(pool, "guest", object()),
        lambda pool: setattr(pool.spec.provider, "queues", False),
        lambda pool: setattr(pool.provisioning, "buys", lambda spec: False),
        lambda pool: setattr(pool, "losses", [ENDED]),
        lambda pool: setattr(pool.registry, "owns", lambda *_: False),
        lambda pool: pool.states.to(PoolState.TAKEN_OVER),
        lambda pool: pool.states.to(PoolState.ENDED),
    ],
    ids=["guest", "no queue", "own hosts", "ended machine", "owned elsewhere", "taken over", "ended"],
)
def test_nothing_is_restarted_for(change: Callable[[BrokenPool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    pool = asking(monkeypatch, BrokenPool(TAKEN))
    change(pool)
    pool.wait()
    assert (pool.restarted, pool.told) == (0, [])


class ReadRun:
    """A run whose output has been read when somebody looks for the third time."""

    looks = 0

    @property
    def left(self) -> set[int]:
        self.looks += 1
        return {1} if self.looks < 3 else set()


def test_output_of_runs_is_read_before_the_nodes_are_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = asking(monkeypatch, BrokenPool(TAKEN, restarts=(_succeed,)))
    pool.supervisor.runs["run"] = read = ReadRun()
    pool.wait()
    assert (read.looks, pool.asked, pool.restarted) == (3, 1, 1)


def test_what_fails_before_machines_are_there_is_left_to_the_next_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = asking(monkeypatch, BrokenPool(TAKEN, TAKEN, restarts=(_refuse,)))
    pool.wait()
    assert (pool.restarted, pool.state) == (1, PoolState.BROKEN)
    assert pool.told[-1] == "pool 'job' is broken: the head is gone; the next cell recreates it"


def test_a_pool_that_is_taken_away_again_while_it_starts_is_started_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = asking(monkeypatch, BrokenPool(*[TAKEN] * 4, restarts=(_lose_again,) * 4))
    pool.wait()
    assert pool.restarted == 3


def test_a_cell_that_restarts_it_has_none_begin_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = asking(monkeypatch, BrokenPool(*[None] * 10_000, TAKEN))
    pool.comeback.expect()
    assert not pool.comeback.join(lambda event: None, lambda: None)
    wait_until(lambda: not _threads())
    assert pool.restarted == 0


def test_an_end_stops_the_restart_and_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def linger(pool: BrokenPool) -> None:
        begun.set()
        while True:
            pool.tick()

    pool = asking(monkeypatch, BrokenPool(TAKEN, TAKEN, restarts=(linger, linger)))
    pool.comeback.expect()
    assert begun.wait(30)
    assert pool.comeback.is_on
    pool.states.to(PoolState.ENDED)
    pool.comeback.stop(30)
    assert not pool.comeback.is_on
    assert not _threads()
    assert pool.restarted == 1
