"""Calls on one rank, in groups, as futures and over many items: what comes back, in which order, and what fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.api.batch import Batch, InFlightTask
from sky_jupyter.api.futures import settler
from sky_jupyter.errors import NodeLost
from sky_jupyter.node.protocol import rpc
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.execution.tasks import PoolTasks, TaskRun
from sky_jupyter.pool.pool import Pool

pytestmark = pytest.mark.usefixtures("separate_agents")
PATIENCE = 60.0


@sky.function
def double(x: int) -> int:
    return 2 * x


@sky.function
def text(x: int) -> str:
    return f"<{x}>"


@sky.function
def rank_of() -> int:
    return sky.instance_info().rank


@sky.function
def waits(mark: str, until: str = "") -> int:
    """Leave a mark that names the node, then wait for a file that may never come."""
    import os
    import time

    node = sky.instance_info().node
    with open(mark, "a") as file:
        file.write(f"{node}\n")
    while not os.path.exists(until):
        time.sleep(0.01)
    return node


@sky.function
def raises(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x


@sky.function
def dies() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


class Unreadable(Exception):
    """Cannot be unpickled: its parts are not what it is made of."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.fixture(scope="module")
def compute() -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=2, name="operators") as compute:
        yield compute


@pytest.fixture
def pool(compute: sky.Compute) -> Pool:
    return live(compute)


def live(compute: sky.Compute) -> Pool:
    assert compute.pool is not None
    return compute.pool


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def lines(mark: Path) -> list[str]:
    return mark.read_text().split() if mark.exists() else []


# What comes back.


def test_a_group_gives_a_tuple_of_each_calls_own_result(compute: sky.Compute) -> None:
    assert (double(2) & text(3) & double(4)) >> compute == (4, "<3>", 8)
    assert (double(1) & (double(2) & double(3))) >> compute == (2, 4, 6)
    assert sky.gather() >> compute == ()


def test_gather_keeps_the_order_of_many_calls(compute: sky.Compute) -> None:
    assert sky.gather(*(double(x) for x in range(20))) >> compute == tuple(range(0, 40, 2))


def test_a_stream_of_results_keeps_the_order_of_the_calls(compute: sky.Compute) -> None:
    results = sky.gather(*(double(x) for x in range(8)), stream=True) >> compute
    assert next(results) == 0
    assert list(results) == list(range(2, 16, 2))


def test_a_stream_without_order_gives_first_what_is_there_first(compute: sky.Compute, tmp_path: Path) -> None:
    go = tmp_path / "go"
    late, soon = waits(str(tmp_path / "mark"), str(go)).on(0), rank_of().on(1)
    results = sky.gather(late, soon, stream=True, ordered=False) >> compute
    assert next(results) == 1
    go.touch()
    assert list(results) == [0]


def test_a_stream_that_is_dropped_stops_its_calls(compute: sky.Compute, tmp_path: Path) -> None:
    results = sky.gather(rank_of(), *[waits(str(tmp_path / "mark"))] * 4, stream=True) >> compute
    assert next(results) in (0, 1)
    del results
    assert sorted(rank_of() @ compute) == [0, 1]


def test_a_stream_of_results_is_over_after_an_error_and_when_it_is_closed(compute: sky.Compute) -> None:
    for ordered in (True, False):
        results = sky.gather(*(raises(x) for x in (3, 3, 4, 5)), stream=True, ordered=ordered) >> compute
        with pytest.raises(ValueError, match="three"):
            list(results)
        assert list(results) == []
        results = sky.gather(*(double(x) for x in range(6)), stream=True, ordered=ordered) >> compute
        with results:  # type: ignore[attr-defined]
            next(results)
        assert list(results) == []


def test_calls_that_were_not_sent_before_a_close_are_not_sent_after_it(pool: Pool) -> None:
    batch = Batch(pool, [double(1)], "closed", waited=False)
    batch.close()
    batch.send()
    assert not batch.left


def test_map_takes_any_function_and_any_iterable(compute: sky.Compute) -> None:
    assert compute.map(double, [3, 1, 2]) == [6, 2, 4]
    assert compute.map(lambda x: x + 1, (x for x in range(300))) == list(range(1, 301))
    assert compute.map(double, []) == []


@pytest.mark.timing
def test_a_map_of_200_short_calls_takes_less_time_than_so_many_single_ones_would(compute: sky.Compute) -> None:
    compute.map(double, range(20))
    began = time.perf_counter()
    for x in range(10):
        assert double(x) >> compute == 2 * x
    single = (time.perf_counter() - began) / 10
    began = time.perf_counter()
    assert compute.map(double, range(200)) == list(range(0, 400, 2))
    assert time.perf_counter() - began < 200 * single


def test_a_long_call_among_short_ones_keeps_no_others_waiting(compute: sky.Compute, tmp_path: Path) -> None:
    mark, go = tmp_path / "mark", tmp_path / "go"

    def last_waits(x: int) -> int:
        if x == 20:
            waits.local(str(mark), str(go))
        elif x == 99:
            go.touch()
        return x

    # The one that waits is on a rank alone: those that would have come after it there are done by the other.
    assert compute.map(last_waits, range(100)) == list(range(100))


def test_on_chooses_the_rank_and_refuses_one_that_is_not_there(compute: sky.Compute) -> None:
    assert [rank_of().on(rank) >> compute for rank in (1, 0, 1)] == [1, 0, 1]
    with pytest.raises(sky.SpecError, match="has ranks 0 to 1, not 5"):
        rank_of().on(5) >> compute
    with pytest.raises(sky.SpecError, match="on every rank"):
        rank_of().on(1) @ compute


def test_sky_and_the_package_itself_stand_for_the_current_pool(compute: sky.Compute) -> None:
    from sky_jupyter import sky as current

    assert double(4) >> current == 8
    assert double(4) >> sky == 8
    assert double(5) @ current == [10, 10]
    assert (double(6) > sky).result(PATIENCE) == 12


def test_the_current_pool_runs_calls_by_the_operators_names(compute: sky.Compute) -> None:
    current = sky.sky
    assert (current.run(double(1)), current.run_async(double(2)).result(PATIENCE)) == (2, 4)
    assert current.broadcast(rank_of()) == [0, 1]
    group = double(3) & double(4)
    assert current.run_parallel(group) == compute.run_parallel_async(group).result(PATIENCE) == (6, 8)
    assert list(current.run_parallel(sky.gather(double(5), stream=True))) == [10]


def test_what_is_no_pool_and_no_call_is_refused(compute: sky.Compute) -> None:
    with pytest.raises(sky.PoolError, match="is no pool"):
        double(1) >> 3  # type: ignore[operator]
    with pytest.raises(sky.SpecError, match=r"only calls of a sky\.function"):
        sky.gather(3)  # type: ignore[call-overload]
    with pytest.raises(sky.SpecError, match="one rank each"):
        (double(1) & double(2)) @ compute
    group: Any = double(1) & double(2)
    uncalled: Any = double
    for method in (compute.run, compute.run_async, compute.broadcast):
        with pytest.raises(sky.SpecError, match=r"takes one call, such as .*; several go to run_parallel$"):
            method(group)
        with pytest.raises(sky.SpecError, match=r"takes one call, such as .*, not <sky\.function double>$"):
            method(uncalled)
    alone: Any = double(1)
    for several in (compute.run_parallel, compute.run_parallel_async):
        with pytest.raises(sky.SpecError, match="takes several calls"):
            several(alone)


def test_arguments_and_results_of_megabytes_go_and_come(compute: sky.Compute) -> None:
    data = [bytes([x]) * 2_000_000 for x in range(4)]
    assert compute.map(lambda one: one[:1] * len(one), data) == data


def test_arguments_bring_the_modules_of_their_types(
    compute: sky.Compute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_shapes.py").write_text("class Circle:\n    def area(self):\n        return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    circle = importlib.import_module("own_shapes").Circle()
    assert compute.map(lambda shape: shape.area(), [circle, circle]) == [3, 3]


# Futures.


def test_a_future_does_not_wait_and_works_where_others_do(compute: sky.Compute, tmp_path: Path) -> None:
    go = tmp_path / "go"
    future = waits(str(tmp_path / "mark"), str(go)) > compute
    assert not future.done()
    until(future.running, "the future never runs")
    told: list[object] = []
    future.add_done_callback(lambda done: told.append(done.result()))
    others = [double(x) > compute for x in range(4)]
    go.touch()
    done, left = concurrent.futures.wait([future, *others], timeout=PATIENCE)
    assert (len(done), left) == (5, set())
    assert [item.result() for item in others] == [0, 2, 4, 6]
    until(lambda: told, "the callback is not called")
    assert told == [future.result()]
    assert {item.result() for item in concurrent.futures.as_completed(others)} == {0, 2, 4, 6}


def test_asyncio_waits_for_futures(compute: sky.Compute) -> None:
    async def work() -> list[int]:
        return await asyncio.gather(*(asyncio.wrap_future(double(x) > compute) for x in range(3)))

    assert asyncio.run(work()) == [0, 2, 4]


def test_a_future_of_a_group_is_one_of_its_tuple(compute: sky.Compute) -> None:
    assert ((double(1) & text(2)) > compute).result(PATIENCE) == (2, "<2>")
    with pytest.raises(ValueError, match="three"):
        ((raises(1) & raises(3)) > compute).result(PATIENCE)


class Prepared:
    """An argument that takes until then to pickle."""

    def __init__(self, then: threading.Event, size: int) -> None:
        self.then, self.size = then, size

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.then.wait(PATIENCE)
        return bytes, (bytes(self.size),)


@sky.function
def says_size(data: Any) -> int:
    print("size", len(data))
    return len(data)


def test_a_group_whose_first_call_ends_before_the_next_is_sent_shows_what_that_prints(
    compute: sky.Compute, pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def took(batch: Batch, sent: InFlightTask) -> dict[int, Any]:
        # All that the end of the first call leads to is done when this is set.
        settler.do(ended.set)
        return take(batch, sent)

    take, ended = Batch.take, threading.Event()
    assert double(1) >> compute == 2
    monkeypatch.setattr(Batch, "take", took)
    future = (double(1) & says_size(Prepared(ended, 3_000_000))) > compute  # type: ignore[arg-type]
    assert future.result(PATIENCE) == (2, 3_000_000)
    assert "size 3000000" in capsys.readouterr().out
    assert [row.state for row in pool.registry.runs(pool.id, limit=1)] == ["ok"]


@pytest.mark.parametrize("when", ["pickled", "begun"])
def test_a_failed_call_of_a_group_stops_those_that_are_being_prepared(
    compute: sky.Compute, pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    def stop(batch: Batch, **how: bool) -> None:
        stop_batch(batch, **how)
        batches.append(batch)
        stopped.set()

    def begin(tasks: PoolTasks, *orders: Any) -> list[TaskRun]:
        runs = begin_tasks(tasks, *orders)
        # The group does not know of these yet.
        assert stopped.wait(PATIENCE)
        return runs

    @sky.function
    def fails(mark: str) -> None:
        while mark and not lines(Path(mark)):
            time.sleep(0.01)
        raise ValueError("three")

    @sky.function
    def waits_with(data: Any, mark: str, go: str) -> None:
        waits.local(mark, go)

    go, stopped, batches = tmp_path / "go", threading.Event(), list[Batch]()
    stop_batch, begin_tasks = Batch.stop, PoolTasks.begin
    with pytest.raises(ValueError, match="three"):
        fails("") >> compute
    monkeypatch.setattr(Batch, "stop", stop)
    monkeypatch.setattr(PoolTasks, "begin", begin)
    mark = str(tmp_path / "mark")
    first, data = (fails(mark), bytes(3_000_000)) if when == "begun" else (fails(""), Prepared(stopped, 3_000_000))
    try:
        future = (first & waits_with(data, mark, str(go))) > compute
        with pytest.raises(ValueError, match="three"):
            future.result(PATIENCE)
        until(lambda: not batches[0].left, "a call goes on")
        until(lambda: pool.registry.runs(pool.id, limit=1)[0].state == "failed", "the run goes on")
    finally:
        go.touch()


def test_a_future_of_a_group_comes_though_there_is_not_room_for_all_of_its_calls(
    compute: sky.Compute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sky_jupyter.api.batch._MOST_TASKS", 2)
    go, futures = tmp_path / "go", list[Any]()
    group = sky.gather(*(waits(str(tmp_path / "mark"), str(go)) for _ in range(5)))
    thread = threading.Thread(target=lambda: futures.append(group > compute))
    thread.start()
    try:
        until(lambda: futures, "the future does not come")
    finally:
        go.touch()
        thread.join()
    assert len(futures[0].result(PATIENCE)) == 5
    assert len(lines(tmp_path / "mark")) == 5


def test_a_call_for_which_there_was_no_room_and_that_cannot_be_sent_fails_the_future(
    compute: sky.Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sky_jupyter.api.batch._MOST_TASKS", 1)
    future = sky.gather(double(1), says_size(threading.Lock())) > compute
    with pytest.raises(sky.SkyError, match="lock"):
        future.result(PATIENCE)


def test_cancelling_stops_a_call_on_its_rank_and_takes_others_out_of_the_queue(
    compute: sky.Compute, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    futures = [waits(str(mark)) > compute for _ in range(4)]
    until(lambda: len(lines(mark)) == 2, "two calls do not begin")
    # Those that wait first: a rank that is free takes the next.
    assert [future.cancel() for future in reversed(futures)] == [True] * 4
    assert all(future.cancelled() and future.done() for future in futures)
    with pytest.raises(concurrent.futures.CancelledError):
        futures[0].result()
    assert rank_of() @ compute == [0, 1]
    assert len(lines(mark)) == 2


def test_a_future_whose_result_is_not_there_in_time_goes_on(compute: sky.Compute, tmp_path: Path) -> None:
    go = tmp_path / "go"
    future = waits(str(tmp_path / "mark"), str(go)) > compute
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0.05)
    go.touch()
    assert future.result(PATIENCE) in (0, 1)
    assert not future.cancel()


# What fails.


def test_the_first_failure_of_a_group_is_raised_as_it_is_and_stops_the_others(
    compute: sky.Compute, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="three") as caught:
        sky.gather(raises(3), *[waits(str(tmp_path / "mark"))] * 3) >> compute
    assert "raised on rank" in caught.value.__notes__[0]
    assert rank_of() @ compute == [0, 1]
    with pytest.raises(ValueError, match="three"):
        compute.map(raises, range(50))


def test_an_exception_that_cannot_be_unpickled_here_comes_back_as_it_is(compute: sky.Compute) -> None:
    def call() -> None:
        raise Unreadable(1, 2)

    with pytest.raises(Unreadable, match="1 and 2"):
        sky.function(call)() >> compute


class Coded(Exception):
    """Has an `__init__` of its own, and more than plain values."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.codes = [code]


def test_an_exception_keeps_its_class_and_attributes_when_it_is_raised_passed_or_returned(
    compute: sky.Compute,
) -> None:
    class Local(Coded):
        pass

    def again(error: BaseException, *, raising: bool) -> BaseException:
        if raising:
            raise error
        return error

    for kind in (Coded, Local):
        back = sky.function(again)(kind(7, "because"), raising=False) >> compute
        with pytest.raises(kind) as caught:
            sky.function(again)(kind(7, "because"), raising=True) >> compute
        for error in (back, caught.value):
            assert (type(error), error.args, error.codes) == (kind, ("because",), [7])


def test_an_exception_whose_class_is_not_here_is_named(compute: sky.Compute) -> None:
    def call() -> None:
        class Unknown(ValueError):
            pass

        raise Unknown(threading.Lock())

    with pytest.raises(sky.RemoteError, match="Unknown: <unlocked"):
        sky.function(call)() >> compute


def test_a_broadcast_that_fails_holds_each_error_and_the_other_ranks_results(compute: sky.Compute) -> None:
    @sky.function
    def fails_on_one() -> int:
        rank = sky.instance_info().rank
        if rank == 1:
            raise ValueError("one")
        return rank + 10

    with pytest.raises(sky.BroadcastError, match="the call failed on rank 1 of 2") as caught:
        fails_on_one() @ compute
    assert caught.value.results == {0: 10}
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert str(caught.value.errors[1]) == "one"
    assert caught.value.split(ValueError)[1] is None
    assert isinstance(caught.value, sky.CellError)


limited = sky.function(waits.__wrapped__, timeout=0.3)
LIMITED: dict[str, Callable[[sky.Compute, str], object]] = {
    "one": lambda compute, mark: waits(mark).with_timeout(0.3) >> compute,
    "later": lambda compute, mark: (limited(mark) > compute).result(PATIENCE),
    "map": lambda compute, mark: compute.map(limited, [mark]),
    "gather": lambda compute, mark: sky.gather(waits(mark), rank_of()).with_timeout(0.3) >> compute,
    "all": lambda compute, mark: limited(mark) @ compute,
}


@pytest.mark.parametrize("how", LIMITED)
def test_a_call_that_takes_too_long_is_stopped_with_a_timeout_error(
    compute: sky.Compute, tmp_path: Path, how: str
) -> None:
    with pytest.raises((TimeoutError, sky.BroadcastError)) as caught:
        LIMITED[how](compute, str(tmp_path / "mark"))
    error = caught.value.exceptions[0] if isinstance(caught.value, sky.BroadcastError) else caught.value
    assert isinstance(error, TimeoutError)
    assert "longer than 0.3 s" in str(error)
    assert rank_of() @ compute == [0, 1]


def test_a_call_that_heeds_no_interrupt_is_ended_when_its_time_is_up(compute: sky.Compute) -> None:
    @sky.function
    def deaf() -> None:
        import contextlib
        import time

        while True:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(60)

    with pytest.raises(TimeoutError):
        deaf().with_timeout(0.2) >> compute
    assert rank_of() @ compute == [0, 1]


def test_a_limit_that_cannot_be_is_refused() -> None:
    with pytest.raises(sky.SpecError, match="timeout must be a number of seconds above 0"):
        double(1).with_timeout(0)
    with pytest.raises(sky.SpecError, match="timeout must be"):
        sky.function(timeout=-1)


def test_a_call_whose_process_dies_is_not_made_again(compute: sky.Compute) -> None:
    with pytest.raises(sky.RankDied, match="SIGKILL"):
        dies() >> compute
    assert rank_of() @ compute == [0, 1]


# What is seen.


@sky.function
@sky.silent
def silent_below(x: int) -> int:
    print("never", x)
    return x


@sky.silent
@sky.function
def silent_above(x: int) -> int:
    print("never", x)
    return x


@sky.stderr(only=lambda info: info.rank == 1)
@sky.function
def to_stderr() -> None:
    import sys

    print("out of", sky.instance_info().rank)
    print("err of", sky.instance_info().rank, file=sys.stderr)


@sky.function
def says(x: int) -> int:
    # Without an end of its line: the next call on this rank begins another one.
    print("item", x, end="", flush=True)
    return x


def test_what_calls_print_is_marked_with_their_ranks(compute: sky.Compute, capsys: pytest.CaptureFixture[str]) -> None:
    sky.gather(says(1).on(0), says(2).on(0), says(3).on(1)) >> compute
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] item 1", "[0] item 2", "[1] item 3"]
    compute.map(says, range(40))
    printed = capsys.readouterr().out.splitlines()
    assert sorted(int(line.partition("item ")[2]) for line in printed) == list(range(40))


def test_what_calls_print_that_nobody_waits_for_is_there_before_their_result(
    compute: sky.Compute, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (says(5).on(1) > compute).result(PATIENCE) == 5
    assert capsys.readouterr().out == "[1] item 5\n"


def test_the_log_of_a_call_is_there_later(compute: sky.Compute, pool: Pool) -> None:
    assert says(7).on(1) >> compute == 7
    (row,) = pool.registry.runs(pool.id, limit=1)
    assert pool.log(row.id).stdout(1) == "item 7"
    assert row.id in pool.runs()
    assert any(event.get("text") == "item 7" for page in pool.page(row.id) for event in page.events)


def test_output_can_be_silenced_above_and_below_the_decorator(
    compute: sky.Compute, capsys: pytest.CaptureFixture[str]
) -> None:
    assert silent_above(1) >> compute == 1
    assert silent_below(2) @ compute == [2, 2]
    assert compute.map(silent_above, [1, 2]) == [1, 2]
    assert capsys.readouterr().out == ""
    to_stderr() @ compute
    printed = capsys.readouterr()
    assert sorted((printed.out + printed.err).split("\n"))[1:] == ["[0] out of 0", "[1] err of 1", "[1] out of 1"]


# What is lost.


def kill_agent(pool: Pool, node: int) -> None:
    os.kill(pool.status()[node]["pid"], signal.SIGKILL)


def test_a_call_whose_node_is_lost_is_made_again_and_its_exception_is_not(
    compute: sky.Compute, pool: Pool, tmp_path: Path
) -> None:
    mark, go = tmp_path / "mark", tmp_path / "go"
    future = waits(str(mark), str(go)) > compute
    until(lambda: lines(mark), "the call does not begin")
    kill_agent(pool, int(lines(mark)[0]))
    until(lambda: len(lines(mark)) == 2, "the call is not begun again")
    go.touch()
    assert future.result(PATIENCE) == int(lines(mark)[1])

    @sky.function
    def fails() -> None:
        with open(mark, "a") as file:
            file.write("failed\n")
        raise OSError("not again")

    with pytest.raises(OSError, match="not again"):
        fails() >> compute
    assert lines(mark)[2:] == ["failed"]
    pool.settle()
    until(lambda: len(pool.status()) == 2, "the node does not come back")
    assert rank_of() @ compute == [0, 1]


def test_a_call_goes_on_elsewhere_when_only_the_manager_knows_that_its_machine_is_off(
    compute: sky.Compute, pool: Pool, tmp_path: Path
) -> None:
    mark, go = tmp_path / "mark", tmp_path / "go"
    future = waits(str(mark), str(go)).with_timeout(PATIENCE) > compute
    until(lambda: lines(mark) and future.running(), "the call does not begin")
    assert pool.control is not None
    loop().loop.call_soon_threadsafe(pool.control.detector.give_up, int(lines(mark)[0]), "its machine is off")
    until(lambda: len(lines(mark)) == 2, "the call is not begun again")
    go.touch()
    assert future.result(PATIENCE) == int(lines(mark)[1])
    until(lambda: not pool.control.lost, "the node does not come back")  # type: ignore[union-attr]
    pool.settle()
    assert rank_of() @ compute == [0, 1]


def test_a_call_that_comes_back_to_its_node_before_the_new_kernel_waits_for_that(tmp_path: Path) -> None:
    mark, go = tmp_path / "mark", tmp_path / "go"
    with sky.Compute(provider=sky.Local(), nodes=1, name="alone") as compute:
        pool = live(compute)
        control, supervisor = pool.control, pool.supervisor
        assert control is not None
        future = waits(str(mark), str(go)).with_timeout(PATIENCE) > compute
        until(lambda: lines(mark) and future.running(), "the call does not begin")
        calls, renew = list(supervisor.runs), supervisor.repairs._renew

        async def renew_later(ranks: Sequence[int]) -> None:
            # It may be dropped only now, and be back after that.
            with contextlib.suppress(NodeLost):
                while not (await control.ask(rpc.FIND_CALLS, [0], calls=calls))[0]:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.02)
            await renew(ranks)

        supervisor.repairs._renew = renew_later
        loop().loop.call_soon_threadsafe(control.detector.give_up, 0, "its machine is off")
        until(lambda: len(lines(mark)) == 2, "the call is not begun again")
        go.touch()
        assert future.result(PATIENCE) == 0


@sky.function
def begins_again(mark: str, needed: int) -> tuple[int, int]:
    """Notes that it began, and waits while too few have; what a rank returns says how often it did."""
    info = sky.instance_info()
    place = Path(f"{mark}-{info.rank}")
    with place.open("a") as file:
        file.write("begun\n")
    while len(lines(place)) < needed:
        time.sleep(0.05)
    return info.rank, len(lines(place))


@pytest.fixture(scope="module")
def mortal() -> Iterator[sky.Compute]:
    """A pool for those who kill agents more often than one is revived within a minute."""
    with sky.Compute(provider=sky.Local(), nodes=2, name="mortal") as compute:
        yield compute


@contextlib.contextmanager
def killing(pool: Pool, mark: Path, times: int) -> Iterator[None]:
    """Kill the second node's agent as often as its rank begins."""

    def kill() -> None:
        for begun in range(times):
            until(lambda begun=begun: len(lines(Path(f"{mark}-1"))) > begun, "it does not begin")  # type: ignore[misc]
            kill_agent(pool, 1)

    killer = threading.Thread(target=kill)
    killer.start()
    yield
    killer.join()


@pytest.mark.slow
def test_a_broadcast_whose_node_is_lost_begins_again_on_all_ranks_where_that_is_asked_for(
    mortal: sky.Compute, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with killing(live(mortal), tmp_path / "mark", 1):
        results = begins_again(str(tmp_path / "mark"), 2).with_retries(2) @ mortal
    assert results == [(0, 2), (1, 2)]
    assert "all ranks begin begins_again again (1 of 2)" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_broadcast_is_begun_again_no_more_often_than_asked_and_not_for_what_it_raised(
    mortal: sky.Compute, tmp_path: Path
) -> None:
    for retries, call in enumerate([begins_again, sky.function(begins_again, retries=1)]):
        mark = tmp_path / str(retries)
        with killing(live(mortal), mark, retries + 1), pytest.raises(sky.BroadcastError) as caught:
            call(str(mark), 9) @ mortal
        assert "is lost" in str(caught.value.errors[1])
        assert [len(lines(Path(f"{mark}-{rank}"))) for rank in range(2)] == [retries + 1] * 2
        live(mortal).settle()

    @sky.function(retries=3)
    def fails(mark: str) -> None:
        with open(mark, "a") as file:
            file.write("begun\n")
        raise OSError("not again")

    with pytest.raises(sky.BroadcastError):
        fails(str(tmp_path / "raised")) @ mortal
    assert lines(tmp_path / "raised") == ["begun"] * 2


def test_how_often_a_call_is_begun_again_is_asked_of_the_call_then_its_function_then_the_pool(
    mortal: sky.Compute, tmp_path: Path
) -> None:
    assert sky.function(double, retries=2)(1).retries == 2
    assert sky.function(double, retries=2)(1).with_retries(0).retries == 0
    assert double(1).retries is None
    assert [call.retries for call in (double(1) & double(2)).with_retries(4)] == [4, 4]
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(sky.SpecError, match="retries must be a whole number from 0"):
            double(1).with_retries(wrong)  # type: ignore[arg-type]
    mark, go = tmp_path / "mark", tmp_path / "go"
    future = waits(str(mark), str(go)).with_retries(0) > mortal
    until(lambda: lines(mark), "the call does not begin")
    kill_agent(live(mortal), int(lines(mark)[0]))
    with pytest.raises(sky.RankDied, match="is lost"):
        future.result(PATIENCE)
    live(mortal).settle()
    assert len(lines(mark)) == 1
    until(lambda: len(live(mortal).status()) == 2, "the node does not come back")


def test_a_call_is_given_up_that_has_lost_too_many_nodes(compute: sky.Compute, pool: Pool, tmp_path: Path) -> None:
    from sky_jupyter.pool.base.events import ignore
    from sky_jupyter.pool.execution.tasks import TaskRun

    run = TaskRun("call", ignore, retries=1)
    assert run.accepts("call.0-a", 0)
    run.lose_node(0, "gone")
    assert not run.over.is_set()
    assert run.accepts("call.1-b", 1)
    assert not run.accepts("call.0-a", 0)
    run.lose_node(1, "gone too")
    assert run.over.is_set()
    with pytest.raises(sky.RankDied, match="node 1 is lost: gone too"):
        run.value()


@pytest.mark.parametrize("rank", [None, 5])
def test_a_call_is_lost_with_its_node_though_its_begin_was_not_heard(rank: int | None) -> None:
    from sky_jupyter.pool.base.events import ignore
    from sky_jupyter.pool.execution.tasks import TaskRun

    run = TaskRun("call", ignore, rank=rank, retries=0)
    run.lose_last(2, 2)
    with pytest.raises(sky.RankDied, match=rf"rank {rank or 4} \(node 2\) is lost: node 2 was lost"):
        run.value()


@pytest.mark.slow
def test_futures_of_a_pool_that_ends_hear_of_it(tmp_path: Path) -> None:
    with sky.Compute(name="ending") as compute:
        futures = [waits(str(tmp_path / "mark")) > compute for _ in range(2)]
        until(lambda: lines(tmp_path / "mark"), "the call does not begin")
    for future in futures:
        with pytest.raises(sky.SkyError, match=r"the pool was ended|pool 'ending' has ended"):
            future.result(PATIENCE)


def test_calls_from_many_threads_at_once_all_come_back(compute: sky.Compute) -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda x=x: results.append(double(x) >> compute)) for x in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results) == list(range(0, 16, 2))
