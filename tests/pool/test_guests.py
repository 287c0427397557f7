"""Guests of a pool: a second client of its agents runs cells in turn with the manager, and takes nothing over."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.node.shared.shared_types import SharedCounter, SharedQueue
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.registry.rows import PoolRow
from sky_jupyter.pool.runs.result import CellError
from tests.pool.pools import asks_directly, begin, local_pool, run, underway, wait_until


def row_of(id: str) -> PoolRow:
    registry = Registry()
    try:
        return next(row for row in registry.pools() if row.id == id)
    finally:
        registry.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as pool:
        run(pool, "order = []")
        yield pool


@pytest.fixture
def guest(pool: Pool) -> Iterator[Pool]:
    """A guest in this process: to the agents it is one as any other."""
    guest = Pool.join(row_of(pool.id))
    yield guest
    guest.down()


def waits(seen: list[Any]) -> bool:
    return any(isinstance(event, NoticeEvent) and event.text.startswith("waits for") for event in seen)


def test_a_guest_runs_cells_with_the_ranks_names_and_the_manager_stays_who_it_is(pool: Pool, guest: Pool) -> None:
    run(pool, "x = 41")
    assert list(run(guest, "y = x + 1; y")) == [42, 42]
    assert list(run(pool, "y")) == [42, 42]
    assert row_of(pool.id).generation == pool.generation
    assert (guest.is_guest, pool.is_guest) == (True, False)


def test_runs_of_both_begin_in_one_order_on_all_ranks_and_each_sees_its_own(pool: Pool, guest: Pool) -> None:
    both = {"m": pool, "g": guest}
    for number in range(6):
        begun = {who: begin(mine, f"order.append({who + str(number)!r}); print({who!r})") for who, mine in both.items()}
        for who, mine in both.items():
            result = mine.attend(begun[who])
            assert [result.stdout(rank) for rank in (0, 1)] == [f"{who}\n"] * 2
    one, other = run(guest, "order")
    assert one == other
    assert sorted(one) == sorted(f"{who}{number}" for who in "gm" for number in range(6))


def test_a_guest_shares_names_and_what_it_waits_for_ends_when_it_leaves(pool: Pool, guest: Pool) -> None:
    told: list[str] = []

    def wait() -> None:
        try:
            SharedQueue("left", of=guest.shared.shares).get()
        except PoolError as error:
            told.append(str(error))

    run(guest, 'import sky_jupyter as sky; sky.counter("both").add()')
    guests = SharedCounter("both", of=guest.shared.shares)
    assert [guests.add() for _ in range(3)] == [3, 4, 5]
    assert SharedCounter("both", of=pool.shared.shares).add() == 6
    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: asks_directly(waiting))
    guest.down()
    waiting.join(60)
    assert not waiting.is_alive()
    assert "is not connected" in told[0] or "ended" in told[0]
    # It had left before there was an item.
    left = SharedQueue("left", of=pool.shared.shares)
    left.put("item")
    assert left.get(60.0) == "item"


def test_a_waiting_run_says_for_whom_and_can_be_interrupted_while_the_other_goes_on(
    pool: Pool, guest: Pool, tmp_path: Path
) -> None:
    run(guest, "1")
    go = tmp_path / "go"
    long = underway(pool, f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)")
    seen: list[Any] = []
    waiting = begin(guest, "never = 1", timeout=0.01, listener=seen.append)
    wait_until(lambda: waits(seen))
    guest.press(waiting)
    with pytest.raises((KeyboardInterrupt, CellError)):
        guest.attend(waiting)
    go.touch()
    pool.attend(long)
    assert list(run(pool, "'never' in globals()")) == [False, False]
    # No time-out was counted while it waited, and it has no turn that anybody waits for.
    assert list(run(guest, "2")) == [2, 2]


def test_a_guests_failure_leaves_the_pool_usable_and_a_dead_kernel_is_told_to_the_other(
    pool: Pool, guest: Pool
) -> None:
    with pytest.raises(CellError, match="ZeroDivisionError"):
        run(guest, "1 / 0")
    assert list(run(pool, "3")) == [3, 3]
    with pytest.raises(CellError):
        run(guest, "import os; os._exit(3)", ranks=[1])
    told: set[int] = set()
    # It tells so once the kernel is there.
    wait_until(lambda: pool.settle() or told.update(pool.take_restarted()) or told)
    assert told == {1}
    assert list(run(pool, "'order' in globals()")) == [True, False]
    run(pool, "order = []")


def test_the_managers_restart_ends_a_guests_run_and_the_next_ones_find_new_kernels(pool: Pool, guest: Pool) -> None:
    run(guest, "gone = 1")
    long = underway(guest, "import time; time.sleep(1000)")
    pool.restart()
    with pytest.raises(CellError):
        guest.attend(long)
    guest.settle()
    assert guest.take_restarted() == {0, 1}
    for one in (guest, pool):
        assert list(run(one, "'gone' in globals()")) == [False, False]
    run(pool, "order = []")
    pool.take_restarted()


def test_what_is_the_managers_is_refused_with_its_name_and_the_way_out(pool: Pool, guest: Pool) -> None:
    for change in (guest.restart, lambda: guest.resize(3), lambda: guest.raise_budget(1.0)):
        with pytest.raises(
            PoolError, match=r"guest of pool 'default'.*its manager, .*process \d+.*`%sky leave default`"
        ):
            change()
    with pytest.raises(PoolError, match="functions on single ranks"):
        guest.submit(int)
    with pytest.raises(PoolError, match="Dask workers"):
        _ = guest.dask


def test_what_one_assigns_is_known_to_the_other_as_the_nodes(pool: Pool, guest: Pool) -> None:
    cell = run(guest, "0")
    assert list(cell) == [0, 0]
    begun = begin(pool, "theirs = 1")
    pool.attend(begun)
    pool.note_writes(begun, {})
    guest.settle()
    guest.note_others({})
    assert [fact.origin for fact in guest.ledger.facts({}) if fact.name == "theirs"] == ["nodes"]


def test_two_guests_and_a_manager_that_is_alone_again(pool: Pool, guest: Pool) -> None:
    another = Pool.join(row_of(pool.id))
    try:
        assert list(run(another, "1")) == list(run(guest, "1")) == list(run(pool, "1")) == [1, 1]
    finally:
        another.down()
    with pytest.raises(PoolError, match="has ended"):
        run(another, "1")
    assert pool.state == "ready"


_KILLED = """
import sys, time
from sky_jupyter.pool.pool import Pool
from tests.pool.pools import underway
from tests.pool.test_guests import row_of
guest = Pool.join(row_of(sys.argv[1]))
underway(guest, "import time; time.sleep(1000)")
print("at it", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_guest_that_is_killed_frees_its_turn_and_its_run_is_ended() -> None:
    with local_pool() as pool:
        run(pool, "kept = 1")
        with subprocess.Popen([sys.executable, "-c", _KILLED, pool.id], stdout=subprocess.PIPE, text=True) as guest:
            assert guest.stdout is not None
            assert guest.stdout.readline() == "at it\n"
            guest.kill()
        seen: list[Any] = []
        assert list(run(pool, "kept", listener=seen.append)) == [1, 1]
        assert waits(seen)
        assert any("its notebook, which had joined the pool, has ended" in news for news in pool.take_news())


@pytest.mark.slow
def test_a_guests_run_and_next_run_say_that_the_manager_has_ended_the_pool() -> None:
    with local_pool() as pool:
        guest = Pool.join(row_of(pool.id))
        on = underway(guest, "import time; time.sleep(1000)")
        pool.down()
        with pytest.raises(CellError):
            guest.attend(on)
        wait_until(lambda: guest.state == "ended")
        with pytest.raises(PoolError, match=r"pool 'default' .*managed"):
            run(guest, "1")
        guest.down()
