"""The state of a pool changes in one place, by its table: what comes too late changes nothing."""

from __future__ import annotations

import ast
import contextlib
import itertools
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter
from sky_jupyter.errors import PoolError
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.hosts.launch import Host
from sky_jupyter.pool.lifecycle.state_machine import TRANSITIONS, IllegalTransition, PoolState, StateMachine
from sky_jupyter.providers import Local
from sky_jupyter.util import process_identity
from tests.pool.pools import local_pool, run, wait_until
from tests.took import Took

ROOT = Path(sky_jupyter.__file__).parent


def machine(*states: PoolState, log: list[tuple[int, str]] | None = None) -> StateMachine:
    made = StateMachine("lab", lambda level, text: None if log is None else log.append((level, text)))
    for state in states:
        made.to(state)
    return made


WAYS = {
    PoolState.NEW: (),
    PoolState.READY: (PoolState.READY,),
    PoolState.BROKEN: (PoolState.BROKEN,),
    PoolState.TAKEN_OVER: (PoolState.TAKEN_OVER,),
    PoolState.ENDED: (PoolState.ENDED,),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(PoolState, 2)))
def test_what_the_table_does_not_have_raises_and_changes_nothing(before: PoolState, after: PoolState) -> None:
    states = machine(*WAYS[before])
    if after in TRANSITIONS[before]:
        states.to(after)
        assert states.current is after
        return
    with pytest.raises(IllegalTransition, match=f"pool 'lab' is {before}, and cannot become {after}"):
        states.to(after)
    assert not states.offer(after, "too late")
    assert (states.current, states.why) == (before, "")


def test_each_state_is_its_word() -> None:
    assert [f"{state}" for state in PoolState] == ["new", "ready", "broken", "taken", "ended"]
    assert machine(PoolState.READY).current == "ready"


def test_each_transition_is_logged_with_its_reason_and_only_once() -> None:
    log: list[tuple[int, str]] = []
    states = machine(PoolState.READY, log=log)
    states.to(PoolState.READY)
    states.to(PoolState.BROKEN, "its head is gone")
    states.to(PoolState.BROKEN, "its head is gone")
    states.offer(PoolState.READY)
    states.to(PoolState.ENDED)
    assert log == [
        (logging.DEBUG, "state: new -> ready"),
        (logging.WARNING, "state: ready -> broken (its head is gone)"),
        (logging.DEBUG, "state: broken -> ended"),
    ]


def test_the_reason_lasts_until_the_pool_is_made_anew() -> None:
    states = machine(PoolState.READY)
    states.to(PoolState.BROKEN, "its head is gone")
    with pytest.raises(PoolError, match="is broken: its head is gone; `%sky restart` recreates the pool"):
        states.require_live()
    states.require_live(restarting=True)
    states.to(PoolState.NEW)
    assert states.why == ""


def test_of_many_threads_one_ends_the_pool_and_none_revives_it() -> None:
    states = machine(PoolState.READY)
    barrier = threading.Barrier(8)
    offers: list[bool] = []

    def offer(state: PoolState) -> None:
        barrier.wait()
        offers.extend(states.offer(state) for _ in range(1000))

    wanted = [PoolState.READY, PoolState.BROKEN, PoolState.TAKEN_OVER, PoolState.ENDED] * 2
    threads = [threading.Thread(target=offer, args=[state]) for state in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(offers) == 8000
    assert states.current is PoolState.ENDED


def test_one_thread_at_a_time_changes_the_pool() -> None:
    states = machine(PoolState.READY)
    with states.changing("resized"):
        assert states.condition == "resizing"
        with pytest.raises(PoolError, match="pool 'lab' is being resized just now"), states.changing("restarted"):
            pass
    assert states.condition == "ready"


def test_only_the_state_machine_writes_the_state() -> None:
    writers = set()
    for path in (ROOT / "pool").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and node.attr in ("_state", "broken")
            ):
                writers.add(path.name)
    assert writers == {"state_machine.py"}


def test_a_pool_that_breaks_while_its_kernels_are_replaced_does_not_become_ready(took: Took) -> None:
    with local_pool(nodes=1) as pool:
        renew = pool.supervisor.repairs.renew

        async def renewing(ranks: object) -> None:
            await renew(ranks)  # type: ignore[arg-type]
            pool.lifecycle.failure.mark_broken("its head is gone")

        pool.supervisor.repairs.renew = renewing
        with pytest.raises(PoolError, match="is broken: its head is gone"):
            pool.restart()
        assert (pool.state, pool.condition) == ("broken", "broken")
        pool.supervisor.repairs.renew = renew
        pool.restart()
        assert pool.state == "ready"
        assert run(pool, "1 + 1").values == [2]
    took.row(
        "the pool breaks just as `%sky restart` has replaced its kernels",
        see="what has happened, and that `%sky restart` recreates the pool; it was said to be ready",
        kept="nothing of the kernels, as in any restart",
    )


def test_a_restart_that_cannot_be_recorded_keeps_the_hosts_which_the_next_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    with local_pool(nodes=1) as pool, contextlib.closing(sqlite3.connect(pool.registry.path)) as other:
        hosts = list(pool.hosts)
        loop().loop.call_soon_threadsafe(pool.lifecycle.failure.mark_broken, "its head is gone")
        wait_until(lambda: pool.state == "broken")
        pool.registry.close()
        pool.registry.patience = 0.2
        other.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            # Only such pools are recorded as starting.
            patch.setattr(Local, "survives_manager", True)
            with pytest.raises(PoolError, match="database is locked"):
                pool.restart()
        assert (pool.hosts, pool.state, pool.broken) == (hosts, "broken", "its head is gone")
        other.execute("ROLLBACK")
        pool.restart()
        assert run(pool, "1 + 1").values == [2]
        assert not process_identity.lives(*hosts[0].command.identity)


def test_a_pool_that_another_thread_ends_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where its time is over during its start: the process exits after that, and must not leave half of it.
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def held(host: Host, *arguments: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(60.0)
        return end(host, *arguments, **named)

    def down() -> None:
        pool.down()
        over.set()

    end = Host.end
    with local_pool(nodes=1) as pool:
        monkeypatch.setattr(Host, "end", held)
        ending = threading.Thread(target=pool.lifecycle.teardown.expire, args=("its time is over",))
        ending.start()
        assert begun.wait(60.0)
        second = threading.Thread(target=down)
        second.start()
        assert not over.wait(0.3)
        go_on.set()
        second.join()
        assert pool.unended == []
        ending.join()
