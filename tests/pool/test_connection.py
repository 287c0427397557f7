"""The manager's connection is cut, in two ways and for a while: what ran goes on, and all of it is told."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

import dask
import pytest

from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.control import control_client
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import begin, local_pool, run
from tests.pool.relay import Far, Relay, relay
from tests.pool.test_faults import eventually
from tests.took import Took

LINES = """
import time, os
for number in range({count}):
    print(number)
    time.sleep(0.05)
os.getpid()
"""


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pool, Relay]]:
    """A pool of two nodes that the manager reaches through a relay."""
    with relay(monkeypatch) as made:
        pool = Pool(PoolSpec(provider=Far(), nodes=2))
        pool.start()
        try:
            yield pool, made
        finally:
            pool.down()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "how"),
    [
        (1, "frozen"),
        (1, "reset"),
        (30, "frozen"),
        (30, "reset"),
        pytest.param(300, "frozen", marks=pytest.mark.long),
        pytest.param(300, "reset", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(500)
def test_a_run_goes_on_while_the_connection_is_cut_and_nothing_is_missing(
    far: tuple[Pool, Relay], seconds: int, how: str, took: Took
) -> None:
    pool, relay = far
    pids = run(pool, "import os; os.getpid()").values
    notices: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, NoticeEvent):
            notices.append(event.text)

    # The run ends while the connection is cut, unless that is short.
    count = 40 if seconds == 1 else 200
    current = begin(pool, LINES.format(count=count), listener=listen)
    time.sleep(0.5)
    (relay.freeze if how == "frozen" else relay.cut)()
    time.sleep(seconds)
    (relay.thaw if how == "frozen" else relay.restore)()
    back = time.monotonic()
    result = pool.attend(current)
    late = time.monotonic() - back
    assert result.values == pids
    assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(number) for number in range(count)]] * 2
    assert run(pool, "os.getpid()").values == pids
    assert pool.take_restarted() == set()
    if seconds > 1:
        assert notices == [
            "the pool does not answer; trying again, and what runs there continues",
            "the pool answers again",
        ]
        caught_up = {"caught_up": late}
    else:
        # The rest of the run is in it.
        caught_up = {}
    took.row(
        f"the connection to the pool is cut for {seconds} s",
        see="nothing" if seconds == 1 else "`the pool does not answer; trying again, and what runs there continues`",
        kept="everything; the run goes on meanwhile",
        on={"frozen": "no packet comes through", "reset": "connections are reset"}[how],
        **caught_up,
    )


def test_nodes_that_were_silent_when_the_connection_broke_are_asked_for_what_was_lost(far: tuple[Pool, Relay]) -> None:
    pool, relay = far
    control = pool.control
    current = begin(pool, "import time\ntime.sleep(2)\nprint('done')")
    time.sleep(0.5)
    relay.cut()
    # As where a ping of theirs was under way.
    control.silent |= {0, 1}
    time.sleep(3)
    relay.restore()
    assert pool.attend(current).stdout(0) == "done\n"


@pytest.mark.slow
def test_a_run_that_is_given_up_while_cut_off_is_stopped_when_the_pool_is_back(far: tuple[Pool, Relay]) -> None:
    pool, relay = far
    run(pool, "1")
    current = begin(pool, "import time\nfor _ in range(6000): time.sleep(0.1)")
    time.sleep(0.5)
    relay.cut()
    assert eventually(lambda: None in pool.control.silent)  # type: ignore[union-attr]
    pool.interrupt(current)
    pool.interrupt(current, hard=True)
    with pytest.raises(CellError):
        pool.attend(current)
    relay.restore()
    assert eventually(lambda: not pool.control.silent)  # type: ignore[union-attr]
    assert run(pool, "40 + 2").values == [42, 42]  # the run that was given up would take ten minutes


def test_a_run_begun_while_cut_off_begins_once_when_the_pool_is_back(far: tuple[Pool, Relay]) -> None:
    pool, relay = far
    run(pool, "count = 0")
    relay.cut()
    time.sleep(0.2)
    current = begin(pool, "count += 1\ncount")
    time.sleep(3)
    assert not current.over.is_set()
    relay.restore()
    assert pool.attend(current).values == [1, 1]
    assert run(pool, "count").values == [1, 1]


def test_what_two_pools_set_while_they_connect_is_as_before_once_both_have() -> None:
    loggers = [logging.getLogger(f"distributed.{name}") for name in ("client", "comm", "core")]
    key = "distributed.comm.timeouts.connect"
    before = [one.disabled for one in loggers], dask.config.get(key), [*warnings.filters]

    async def connect(mine: asyncio.Event, other: asyncio.Event) -> None:
        with control_client._SILENCE.kept(dask.config.set({key: "1s"})):
            mine.set()
            await other.wait()

    async def both() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(connect(first, second), connect(second, first))

    asyncio.run(both())
    assert ([one.disabled for one in loggers], dask.config.get(key), [*warnings.filters]) == before


def test_that_dask_closes_connections_to_very_many_nodes_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with local_pool(nodes=1), caplog.at_level(logging.INFO, "distributed.core"):
        logger = logging.getLogger("distributed.core")
        logger.info("Collecting unused comms.  open: %d, active: %d, connecting: %d", 512, 1, 1)
        logger.info("another line")
    assert "another line" in caplog.text
    assert "Collecting" not in caplog.text
