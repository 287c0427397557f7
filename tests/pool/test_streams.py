"""Calls whose items stream: what a generator yields as it is yielded, and what a rank reads of an iterator here."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.api import streaming_functions
from sky_jupyter.node.kernel.generator_streams import AHEAD
from sky_jupyter.pool.control import failure_detector
from sky_jupyter.pool.execution import tasks
from sky_jupyter.pool.execution.stream_client import StreamClient
from sky_jupyter.pool.pool import Pool
from tests.conftest import MARK, marked_processes
from tests.pool.pools import wait_until
from tests.pool.test_faults import named_children, scheduler_of


@pytest.fixture(scope="module")
def compute() -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=2, name="streams") as made:
        yield made


@pytest.fixture
def pool(compute: sky.Compute) -> Pool:
    assert compute.pool is not None
    return compute.pool


@sky.function
def counting(name: str, most: int = 10**9) -> Iterator[int]:
    """Yields numbers, and notes in the pool how many, and that it has been closed."""
    at = sky.dict(name)
    try:
        for number in range(most):
            at["yielded"] = number
            yield number
    finally:
        at["closed"] = True


@sky.function
def running_mean(data: Iterator[float]) -> list[float]:
    total, means = 0.0, []
    for count, x in enumerate(data, 1):
        total += x
        means.append(total / count)
    return means


@sky.function
def moving_average(data: Iterator[float], window: int = 3) -> Iterator[float]:
    last: list[float] = []
    for x in data:
        last = [*last, x][-window:]
        yield sum(last) / len(last)


def test_items_come_as_they_are_yielded_and_the_return_value_after_them(compute: sky.Compute) -> None:
    @sky.function
    def told(n: int) -> typing.Generator[int, None, str]:
        for number in range(n):
            yield number
            sky.queue("go on").get()
        return "done"

    stream: Any = told(3) >> compute
    got = []
    for number in stream:
        got.append(number)
        # It goes on only now.
        compute.queue("go on").put(None)
    assert got == [0, 1, 2]
    assert stream.result == "done"
    assert list(stream) == []


def test_many_items_come_in_their_order(compute: sky.Compute) -> None:
    @sky.function
    def squares(n: int) -> Iterator[int]:
        for number in range(n):
            yield number * number

    assert list(squares(1000) >> compute) == [number * number for number in range(1000)]


def test_a_generator_is_a_few_items_ahead_of_its_reader_at_most(compute: sky.Compute) -> None:
    stream = counting("ahead") >> compute
    assert [next(stream), next(stream)] == [0, 1]
    wait_until(lambda: compute.dict("ahead")["yielded"] == AHEAD + 1)
    time.sleep(0.3)
    assert compute.dict("ahead")["yielded"] == AHEAD + 1
    stream.close()  # type: ignore[attr-defined]
    assert compute.dict("ahead")["closed"]


def test_large_items_are_not_many_ahead_and_come_whole(compute: sky.Compute) -> None:
    @sky.function
    def large() -> Iterator[bytes]:
        for number in range(4):
            sky.dict("large")["yielded"] = number
            yield bytes([number]) * (9 << 20)

    stream = large() >> compute
    first = next(stream)
    assert first == bytes(9 << 20)
    time.sleep(0.3)
    assert compute.dict("large")["yielded"] <= 2
    assert [(item[0], len(item), len(set(item))) for item in stream] == [(n, 9 << 20, 1) for n in (1, 2, 3)]


def test_a_reader_that_stops_early_closes_the_generator_and_frees_its_rank(compute: sky.Compute, pool: Pool) -> None:
    for number in counting("early") >> compute:
        if number == 5:
            break
    assert compute.dict("early")["closed"]
    wait_until(lambda: not busy(pool))
    assert len(sky.function(lambda: 1)() @ compute) == 2


def busy(pool: Pool) -> list[str]:
    return [its["busy_with"] for node in pool.status().values() for its in node["ranks"].values() if its["busy_with"]]


def test_a_stream_that_is_dropped_is_closed(compute: sky.Compute) -> None:
    stream = counting("dropped") >> compute
    next(stream)
    del stream
    gc.collect()
    assert compute.dict("dropped")["closed"]


def test_a_generator_that_does_not_come_to_its_next_item_is_interrupted_when_it_is_closed(compute: sky.Compute) -> None:
    @sky.function
    def slow() -> Iterator[int]:
        try:
            yield 1
            time.sleep(600)
        except KeyboardInterrupt:
            sky.dict("slow")["interrupted"] = True
            raise

    for _ in slow() >> compute:
        time.sleep(0.3)
        break
    assert compute.dict("slow")["interrupted"]


def test_an_interrupt_while_a_stream_is_closed_interrupts_its_generator_at_once(
    compute: sky.Compute, pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @sky.function
    def slow(mark: Path) -> Iterator[int]:
        yield 1
        try:
            mark.touch()
            time.sleep(600)
        except KeyboardInterrupt:
            sky.dict("pressed")["interrupted"] = True
            raise

    def closed(flow: StreamClient) -> None:
        close(flow)
        signal.raise_signal(signal.SIGINT)

    stream, close = slow(tmp_path / "mark") >> compute, StreamClient.close
    assert next(stream) == 1
    wait_until((tmp_path / "mark").exists)
    monkeypatch.setattr(StreamClient, "close", closed)
    with pytest.raises(KeyboardInterrupt):
        stream.close()  # type: ignore[attr-defined]
    assert compute.dict("pressed")["interrupted"]
    assert not busy(pool)
    assert [row.state for row in pool.registry.runs(pool.id, limit=1)] == ["failed"]


def test_what_a_generator_raises_comes_in_its_place_with_its_type(compute: sky.Compute) -> None:
    @sky.function
    def failing() -> Iterator[int]:
        yield from range(20)
        raise FileNotFoundError(2, "not there", "data.csv")

    stream = failing() >> compute
    assert [next(stream) for _ in range(20)] == list(range(20))
    with pytest.raises(FileNotFoundError, match=r"data\.csv") as caught:
        next(stream)
    assert "raised on rank" in caught.value.__notes__[0]
    assert "raise FileNotFoundError" in caught.value.__notes__[0]


def test_an_item_that_cannot_be_sent_says_which(compute: sky.Compute) -> None:
    @sky.function
    def locks() -> Iterator[Any]:
        yield 1
        yield threading.Lock()

    with pytest.raises(TypeError, match="item 1 that was yielded, of type lock, cannot be sent"):
        list(locks() >> compute)


def test_an_interrupt_while_a_reader_waits_stops_the_generator(compute: sky.Compute, pool: Pool) -> None:
    @sky.function
    def stuck() -> Iterator[int]:
        try:
            yield 1
            sky.queue("never").get()
        finally:
            sky.dict("stuck")["closed"] = True

    stream = stuck() >> compute
    assert next(stream) == 1
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert compute.dict("stuck")["closed"]
    assert not busy(pool)


def test_a_rank_that_is_killed_ends_its_stream_after_the_items_that_came(compute: sky.Compute) -> None:
    @sky.function
    def dying() -> Iterator[int]:
        yield from range(3)
        sky.queue("read").get()
        os.kill(os.getpid(), signal.SIGKILL)

    stream = dying() >> compute
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    compute.queue("read").put(None)
    with pytest.raises(sky.RankDied, match="SIGKILL"):
        next(stream)
    assert sorted(sky.function(lambda: sky.instance_info().rank)() @ compute) == [0, 1]


@pytest.mark.slow
def test_a_node_that_is_lost_ends_its_stream_which_is_not_begun_elsewhere(compute: sky.Compute, pool: Pool) -> None:
    @sky.function
    def counted() -> Iterator[int]:
        yield sky.counter("begun").add()
        sky.queue("never").get()

    stream = counted().on(1) >> compute
    assert next(stream) == 1
    psutil.Process(pool.status()[1]["pid"]).kill()
    with pytest.raises(sky.RankDied, match="is lost"):
        next(stream)
    # On the rank that is back, and on the other.
    assert sorted(sky.function(lambda: sky.instance_info().rank)() @ compute) == [0, 1]
    wait_until(lambda: not busy(pool))
    assert compute.counter("begun").get() == 1


def test_a_generator_on_every_rank_gives_a_stream_of_each(compute: sky.Compute) -> None:
    @sky.function
    def ranked(n: int) -> Iterator[tuple[int, int]]:
        for number in range(n):
            yield sky.instance_info().rank, number

    both = ranked(20) @ compute
    assert [item for pair in zip(*both, strict=True) for item in pair] == [(r, n) for n in range(20) for r in (0, 1)]


def test_an_asynchronous_generator_streams_too(compute: sky.Compute) -> None:
    @sky.function
    async def ticking(n: int) -> AsyncIterator[int]:
        import asyncio

        for number in range(n):
            await asyncio.sleep(0)
            yield number

    items: Any = ticking(30) >> compute
    assert list(items) == list(range(30))


def test_an_iterator_is_streamed_to_the_rank_and_a_generator_s_items_back(compute: sky.Compute) -> None:
    assert running_mean(iter([1.0, 2.0, 3.0])) >> compute == [1.0, 1.5, 2.0]
    assert running_mean(float(x) for x in range(500)) >> compute == [x / 2 for x in range(500)]
    assert list(moving_average(iter([1.0, 2.0, 3.0, 4.0]), window=2) >> compute) == [1.0, 1.5, 2.5, 3.5]
    assert list(moving_average([]) >> compute) == []  # type: ignore[arg-type]


def test_an_iterator_here_is_read_as_fast_as_the_rank_asks_and_no_faster(compute: sky.Compute) -> None:
    read = 0

    def numbers() -> Iterator[float]:
        nonlocal read
        for read in itertools.count(1):
            yield float(read)

    with moving_average(numbers()) >> compute as stream:  # type: ignore[attr-defined]
        assert next(stream) == 1.0
        # While nobody reads, nobody is asked.
        before = read
        time.sleep(0.3)
        assert read == before <= 2


def test_what_an_iterator_here_raises_is_raised_on_the_rank_after_what_came_before(compute: sky.Compute) -> None:
    def breaking() -> Iterator[float]:
        yield from (1.0, 2.0)
        raise ValueError("the file is cut short")

    @sky.function
    def heed(data: Iterator[float]) -> tuple[list[float], str]:
        got = [next(data), next(data)]
        try:
            got.append(next(data))
        except ValueError as error:
            return got, str(error)
        return got, ""

    assert heed(breaking()) >> compute == ([1.0, 2.0], "the file is cut short")
    with pytest.raises(ValueError, match="cut short") as caught:
        running_mean(breaking()) >> compute
    assert isinstance(caught.value.__cause__, ValueError)
    assert "raised on rank" in caught.value.__notes__[0]


def test_a_rank_that_waits_for_an_iterator_here_can_be_interrupted(compute: sky.Compute, pool: Pool) -> None:
    def stuck() -> Iterator[float]:
        yield 1.0
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        running_mean(stuck()) >> compute
    wait_until(lambda: not busy(pool))


def test_streams_go_on_where_the_scheduler_is_started_anew(compute: sky.Compute, pool: Pool) -> None:
    @sky.function
    def numbers(data: Iterator[int]) -> Iterator[int]:
        yield from data

    got = []
    for number in numbers(iter(range(300))) >> compute:
        got.append(number)
        if number == 50:
            scheduler_of(pool).kill()
    assert got == list(range(300))


@pytest.mark.slow
def test_a_stream_goes_on_whose_agent_comes_late_to_a_new_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    @sky.function
    def numbers(data: Iterator[int]) -> Iterator[int]:
        yield sky.instance_info().rank
        yield from data

    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "1")
    monkeypatch.setattr(failure_detector, "ABSENCE", 600.0)
    # Calls are sent to the new scheduler at once.
    monkeypatch.setattr(tasks, "_LOOK", 0.05)
    with sky.Compute(provider=sky.Local(), nodes=2, name="late") as compute:
        pool = compute.pool
        assert pool is not None
        processes = named_children(pool)
        with numbers(iter(range(300))) >> compute as stream:
            mine = next(stream)
            agent = processes[f"agent {mine}"]
            agent.suspend()
            try:
                processes["scheduler"].kill()
                wait_until(lambda: set(pool.control.addresses) == {1 - mine})
                # Were the other node given the call, it would begin now.
                time.sleep(1)
            finally:
                agent.resume()
            assert list(stream) == list(range(300))


GONE = """
import os, sys
import sky_jupyter as sky

@sky.function
def endless(marker):
    try:
        number = 0
        while True:
            yield number
            number += 1
    finally:
        open(marker, "w").close()

compute = sky.Compute(name="orphan", keep=True, idle_timeout=10).start()
stream = endless(sys.argv[1]) >> compute
print(next(stream), next(stream), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_notebook_that_dies_leaves_no_stream_of_a_kept_pool_open(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    before = marked_processes(os.environ[MARK])
    done = subprocess.run([sys.executable, "-c", GONE, marker], capture_output=True, text=True, timeout=280)
    try:
        assert done.stdout == "0 1\n", done.stderr
        wait_until(marker.exists)
    finally:
        for process in set(marked_processes(os.environ[MARK])) - set(before):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()


def test_calls_that_stream_are_not_sent_where_nobody_reads(compute: sky.Compute) -> None:
    for send in (
        lambda: counting("x") > compute,
        lambda: sky.gather(counting("x"), counting("y")) >> compute,
        lambda: running_mean(iter(())) @ compute,
    ):
        with pytest.raises(sky.SpecError, match="streams, and somebody has to read meanwhile: send it with `>>`"):
            send()
    with pytest.raises(sky.SpecError, match="is an Iterator: int cannot be read one by one"):
        running_mean(3) >> compute  # type: ignore[arg-type]
    with pytest.raises(sky.SpecError, match="decorates a function that yields"):
        sky.stream(lambda: 1)
    with pytest.raises(sky.SpecError, match="timeout must be a number of seconds above 0, at most 1e"):
        sky.stream(timeout=-1)
    assert list(sky.stream(lambda: (yield 1))() >> compute) == [1]


def test_which_parameters_stream_is_seen_by_their_annotations() -> None:
    def here(a: Iterator[int], b: typing.Iterator, c: list[int], d: Missing, e: Iterator[Missing]) -> Iterator[int]:  # type: ignore[name-defined,type-arg]  # noqa: F821
        yield 1

    def several(*args: Iterator[int], a: Iterator[int], **more: Iterator[int]) -> None:
        pass

    def known(a: Iterator[int], b: int, c: typing.Iterator[int] | None = None) -> None:
        pass

    def optional(a: typing.Optional[Iterator[Missing]], b: Iterator[Missing] | None, c: Iterators) -> None:  # type: ignore[name-defined]  # noqa: F821, UP045
        pass

    assert streaming_functions.iterator_names(here) == ["a", "b", "e"]
    assert streaming_functions.iterator_names(known) == ["a", "c"]
    assert streaming_functions.iterator_names(several) == ["a"]

    class Loader:
        rows: Iterator[int]

        def __init__(self, path: str) -> None:
            self.path = path

    assert streaming_functions.iterator_names(optional) == ["a", "b"]
    assert streaming_functions.iterator_names(Loader) == []
    assert streaming_functions.is_generator(sky.silent(here))
    assert not streaming_functions.is_generator(known)
