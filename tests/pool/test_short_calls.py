"""Calls on the short way: they promise what all calls promise, and leave no trace where there is nothing to tell."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.errors import PoolError
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.protocol import short_call_frames as frames
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.execution import short_call, short_calls
from sky_jupyter.pool.execution.direct_calls import DirectCalls
from sky_jupyter.pool.execution.short_call import ShortCall, WarmFunction
from sky_jupyter.pool.execution.short_call_channels import DirectLine
from sky_jupyter.pool.execution.short_calls import ShortCalls
from sky_jupyter.pool.execution.tasks import PoolTasks
from sky_jupyter.pool.pool import Pool
from tests.pool.call_ways import note_ways, quiet
from tests.pool.pools import local_pool, run, underway, wait_until

MANY = b"x" * 200_000


@sky.function
def length(data: bytes) -> int:
    return len(data)


@sky.function
def echo(given: Any = None) -> Any:
    return given


@sky.function
def rank_of() -> int:
    return sky.instance_info().rank


@sky.function
def says(text: str) -> str:
    print(text)
    return text


@sky.function
def naps(seconds: float, mark: str = "") -> float:
    if mark:
        Path(mark).touch()
    time.sleep(seconds)
    return seconds


@sky.function
def stays(end: str) -> int:
    """Run until a file is there."""
    while not Path(end).exists():
        time.sleep(0.01)
    return sky.instance_info().rank


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as live:
        yield live


@pytest.fixture
def main() -> Iterator[dict[str, Any]]:
    """The namespace of the program, as a notebook has it; it is afterwards as it was."""
    names = vars(sys.modules["__main__"])
    before = dict(names)
    yield names
    names.clear()
    names.update(before)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return note_ways(monkeypatch)


def test_a_call_that_has_nothing_to_tell_leaves_no_journal(pool: Pool, ways: list[str]) -> None:
    before = set(pool.runs())
    assert echo(1) >> pool == 1
    assert echo("a") @ pool == ["a", "a"]
    assert rank_of() @ pool == [0, 1]
    assert rank_of().on(1) >> pool == 1
    opened = ways.count("opened")
    assert quiet(ways)
    assert len(set(pool.runs()) - before) <= opened


def test_calls_and_cells_take_turns_on_a_rank(pool: Pool) -> None:
    @sky.function
    def noted(number: int) -> list[int]:
        import builtins

        builtins.order = [*getattr(builtins, "order", []), number]  # type: ignore[attr-defined]
        return builtins.order  # type: ignore[attr-defined,no-any-return]

    for number in range(0, 6, 2):
        noted(number) @ pool
        run(pool, f"import builtins; builtins.order.append({number + 1})")
    assert noted(6) @ pool == [list(range(7))] * 2


def test_a_call_waits_for_the_cell_that_its_rank_runs(pool: Pool, tmp_path: Path) -> None:
    mark = tmp_path / "go"
    cell = underway(pool, f"import pathlib, time\nwhile not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.01)")
    with ThreadPoolExecutor(1) as threads:
        called = threads.submit(lambda: rank_of() @ pool)
        wait_until(called.running)
        assert not called.done()
        mark.touch()
        assert called.result(60) == [0, 1]
    pool.attend(cell)


def test_an_exception_keeps_its_type_and_says_where_it_was_raised(pool: Pool) -> None:
    @sky.function
    def fails() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError) as raised:
        fails() >> pool
    assert "raised on rank 0 (node 0)" in "".join(raised.value.__notes__)
    with pytest.raises(sky.BroadcastError) as group:
        fails() @ pool
    assert [type(one) for one in group.value.exceptions] == [KeyError, KeyError]


ODD_EXCEPTIONS = {
    "a text": "class Odd(ValueError):\n    def __str__(self): return self.missing",
    "a file name": "class Odd(FileNotFoundError):\n    filename = property(lambda self: 1 / 0)",
    "attributes": "class Odd(Exception):\n    def __getattr__(self, name): return getattr(self.inner, name)",
    "a class": "class Odd(Exception):\n    __class__ = property(lambda self: 1 / 0)",
    "a pickle": "class Odd(Exception):\n    def __reduce_ex__(self, version): raise SystemExit(3)",
}


@pytest.mark.parametrize("lacks", ODD_EXCEPTIONS)
def test_an_exception_whose_class_raises_as_it_is_looked_at_ends_its_call(pool: Pool, lacks: str) -> None:
    @sky.function
    def fails(code: str) -> None:
        names: dict[str, Any] = {}
        exec(code, names)
        raise names["Odd"]

    for failed in (fails(ODD_EXCEPTIONS[lacks]).on(0) > pool, fails(ODD_EXCEPTIONS[lacks]).on(1) > pool):
        # Where attributes raise, they do so here too.
        assert type(failed.exception(60)).__name__ in ("Odd", "RecursionError")
    assert rank_of() @ pool == [0, 1]


def test_only_a_call_that_prints_has_a_journal(pool: Pool, ways: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = set(pool.runs())
    assert says("heard") >> pool == "heard"
    assert "opened" in ways
    assert says("by all") @ pool == ["by all", "by all"]
    printed = capsys.readouterr().out
    assert "heard" in printed
    assert "by all" in printed
    new = set(pool.runs()) - before
    assert len(new) == 2
    for name in new:
        assert any("heard" in text or "by all" in text for text in pool.log(name).stdout(0).splitlines())


def test_what_is_written_by_native_code_comes_before_the_value(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    @sky.function
    def native() -> None:
        os.write(1, b"from below\n")

    native() >> pool
    assert "from below" in capsys.readouterr().out


def test_a_call_that_takes_long_goes_on_with_a_journal(pool: Pool, ways: list[str]) -> None:
    assert naps(0.3) >> pool == 0.3
    assert naps(0.3) @ pool == [0.3, 0.3]
    assert ways == ["short", "opened", "short", "opened"]


def test_two_calls_that_come_while_the_connection_is_made_run_at_the_same_time(pool: Pool) -> None:
    @sky.function
    def meets() -> int:
        sky.barrier("two short calls").wait()
        return sky.instance_info().rank

    pool.calls.short.close()
    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(lambda _: meets() >> pool, range(2))) == [0, 1]


def test_a_call_that_comes_as_another_is_opened_gets_another_rank(pool: Pool, tmp_path: Path) -> None:
    @sky.function
    def meets() -> int:
        me = sky.instance_info().rank
        (tmp_path / str(me)).touch()
        sky.barrier("opened and new").wait()
        return me

    # The connection is made, and nothing is on its way.
    echo(1) >> pool
    wait_until(lambda: pool.calls.short.is_idle)
    freed = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(lambda: meets() >> pool)
            wait_until(lambda: list(tmp_path.iterdir()))
            # The loop is late, as on a busy machine: it has not heard yet that the first call was opened.
            loop().loop.call_soon_threadsafe(freed.wait)
            wait_until(lambda: pool.calls.short.direct.rank == -1)
            second = threads.submit(lambda: meets() >> pool)
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        finally:
            freed.set()
        assert sorted([first.result(60), second.result(60)]) == [0, 1]


@pytest.mark.parametrize("first", ["the short one", "the other one"])
def test_a_call_that_dask_places_waits_for_no_short_one_that_takes_long(pool: Pool, tmp_path: Path, first: str) -> None:
    ways = {
        "the short one": lambda: stays(str(tmp_path / "end")) > pool,
        "the other one": lambda: rank_of().with_retries(1) > pool,
    }
    sent = {which: ways[which]() for which in sorted(ways, key=lambda which: which != first)}
    try:
        where = sent["the other one"].result(60)
    finally:
        (tmp_path / "end").touch()
    at = sent["the short one"].result(60)
    assert where != at or first == "the other one"


@pytest.mark.parametrize("way", [">", ">>"])
def test_a_call_that_comes_as_its_rank_begins_a_long_one_is_made_by_another(
    pool: Pool, tmp_path: Path, way: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        long = stays(str(tmp_path / "end")).with_retries(1).on(0) > pool
        try:
            # The notebook does not know yet what rank 0 is at.
            call = rank_of() > pool if way == ">" else threads.submit(lambda: rank_of() >> pool)
            assert call.result(60) in (0, 1)
        finally:
            (tmp_path / "end").touch()
        assert long.result(60) == 0


def test_a_call_whose_connection_breaks_as_it_is_asked_for_goes_on(
    pool: Pool, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = DirectLine.send

    def breaks(line: DirectLine, data: bytes, shared: Any) -> bool:
        if [kind for kind, *_ in frames.Frames().feed(data)] == [frames.WITHDRAW]:
            line.close()
        return send(line, data, shared)

    naps(0.0) >> pool
    wait_until(lambda: pool.calls.short.is_idle)
    monkeypatch.setattr(DirectLine, "send", breaks)
    monkeypatch.setattr(DirectCalls, "_is_behind", lambda *_: True)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: naps(0.5) >> pool).result(60) == 0.5
    assert ways[-1] == "opened"
    # The next tests have a new connection.
    pool.calls.short.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_calls_that_dask_places_wait_for_no_cell_of_other_ranks(pool: Pool, tmp_path: Path, rank: int) -> None:
    end = tmp_path / "end"
    cell = underway(
        pool,
        f"import time\nfrom pathlib import Path\nwhile not Path({str(end)!r}).exists(): time.sleep(0.01)",
        ranks=[rank],
    )
    try:
        sent = [rank_of().with_retries(1) > pool for _ in range(3)]
        assert [one.result(60) for one in sent] == [1 - rank] * 3
    finally:
        end.touch()
        pool.attend(cell)


def test_calls_that_dask_places_and_that_wait_for_each_other_meet(pool: Pool) -> None:
    @sky.function
    def meets() -> int:
        sky.barrier("placed and short").wait()
        return sky.instance_info().rank

    for _ in range(3):
        sent = [meets() > pool, meets().with_retries(1) > pool]
        assert sorted(one.result(60) for one in sent) == [0, 1]


def test_the_loop_chooses_no_rank_while_a_thread_does(pool: Pool) -> None:
    short = pool.calls.short
    assert rank_of() >> pool == 0
    wait_until(lambda: short.is_idle)
    with ThreadPoolExecutor(1) as threads:
        with short.placing:
            sent = threads.submit(lambda: (rank_of() > pool).result(60))
            # The loop has taken it, or has not even begun.
            short.direct.rank = 0
        try:
            assert sent.result(60) == 1
        finally:
            short.direct.rank = -1


def test_calls_that_wait_at_their_rank_are_forgotten_when_they_are_cancelled(
    pool: Pool, ways: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine they would go on on the long way.
    monkeypatch.setattr(ShortCall, "is_late", False)

    @sky.function
    def marks(name: str) -> str:
        Path(name).touch()
        return name

    @sky.function
    def waits_for(name: str) -> bool:
        while not Path(name).exists():
            time.sleep(0.001)
        return True

    # It is known to be short: several are sent ahead.
    assert [marks(str(tmp_path / "warm")) >> pool for _ in range(3)]
    ways.clear()
    gate = tmp_path / "gate"
    first = [waits_for(str(gate)).on(rank) > pool for rank in range(2)]
    waiting = [marks(str(tmp_path / f"waiting {number}")) > pool for number in range(40)]
    for future in waiting:
        future.cancel()
    wait_until(lambda: len(pool.calls.short._active) + len(pool.calls.short._waiting) <= 2)
    gate.touch()
    assert [future.result(60) for future in first] == [True, True]
    assert marks(str(tmp_path / "later")) >> pool
    assert marks(str(tmp_path / "later")) @ pool
    assert all(future.cancelled() for future in waiting)
    assert not list(tmp_path.glob("waiting *"))
    assert set(ways) == {"short"}
    wait_until(lambda: not pool.calls.short._active and not any(pool.calls.short._load.values()))


def test_calls_that_wait_for_short_ones_of_their_rank_stay_short(
    pool: Pool, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on ranks that share few processors: what is sent ahead takes several times as long as a short call may.
    monkeypatch.setattr(WarmFunction, "ahead", 16)
    # A call is opened after half a second here: less than those of a rank take together.
    for module in (short_call, short_calls):
        monkeypatch.setattr(module, "_SHORT", 0.5)
    futures = [naps(0.1) > pool for _ in range(32)]
    assert [future.result() for future in futures] == [0.1] * 32
    # On a busy machine some may take long themselves.
    assert ways.count("opened") < 16


@sky.function
def waits_for(name: str) -> str:
    while name and not Path(name).exists():
        time.sleep(0.001)
    return name


def test_calls_behind_one_that_takes_long_are_made_by_other_ranks(pool: Pool, ways: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    # It is known to be short: several are sent ahead.
    for _ in range(20):
        assert waits_for("") >> pool == ""
    ways.clear()
    futures = [waits_for(str(gate) if number == 4 else "") > pool for number in range(40)]
    assert [future.result(60) for number, future in enumerate(futures) if number != 4] == [""] * 39
    wait_until(lambda: "opened" in ways)
    # On a busy machine some may take long themselves.
    assert ways.count("opened") < 20
    gate.touch()
    assert futures[4].result(60) == str(gate)
    wait_until(lambda: not any(pool.calls.short._load.values()) and not any(pool.calls.short._opened.values()))


def test_short_calls_wait_for_ranks_that_are_at_opened_ones(pool: Pool, ways: list[str], tmp_path: Path) -> None:
    gates = [tmp_path / "gate 0", tmp_path / "gate 1"]
    for _ in range(20):
        assert waits_for("") >> pool == ""
    long = [waits_for(str(gate)).on(rank) > pool for rank, gate in enumerate(gates)]
    wait_until(lambda: len(pool.supervisor.busy_ranks()) == 2)
    ways.clear()
    futures = [waits_for("") > pool for _ in range(40)]
    futures[-1].cancel()
    wait_until(lambda: len(pool.calls.short._waiting) >= 39)
    gates[0].touch()
    assert [future.result(60) for future in futures[:-1]] == [""] * 39
    assert futures[-1].cancelled()
    assert ways.count("opened") < 20
    gates[1].touch()
    assert [future.result(60) for future in long] == [str(gate) for gate in gates]


@pytest.mark.parametrize("when", ["before", "during"])
def test_what_troubles_the_pool_is_said_once_for_all_calls(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    gate, said = tmp_path / "gate", ""

    async def tell(*, silent: bool) -> None:
        pool.supervisor.on_silent([1], silent=silent)

    def has_said(text: str) -> bool:
        nonlocal said
        said += "".join(capsys.readouterr())
        return text in said

    if when == "before":
        loop().call(tell(silent=True))
    futures = [waits_for(str(gate)).on(rank) > pool for rank in range(2)]
    wait_until(lambda: len(pool.supervisor.busy_ranks()) == 2)
    if when == "during":
        loop().call(tell(silent=True))
    wait_until(lambda: has_said("node 1 does not answer"))
    loop().call(tell(silent=False))
    wait_until(lambda: has_said("node 1 answers again"))
    gate.touch()
    assert [future.result(60) for future in futures] == [str(gate)] * 2
    assert (said.count("does not answer"), said.count("answers again")) == (1, 1)


def test_of_the_short_calls_that_meet_a_silence_few_are_opened(
    pool: Pool, ways: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, said = tmp_path / "gate", ""

    async def tell(*, silent: bool) -> None:
        pool.supervisor.on_silent([0, 1], silent=silent)

    def has_said(text: str) -> bool:
        nonlocal said
        said += "".join(capsys.readouterr())
        return text in said

    for _ in range(20):
        assert waits_for("") >> pool == ""
    ways.clear()
    # More than are sent ahead.
    futures = [waits_for(str(gate)) > pool for _ in range(60)]
    with monkeypatch.context() as patched:
        # In truth they answer.
        patched.setattr(pool.control, "silent", {0, 1})
        loop().call(tell(silent=True))
        wait_until(lambda: has_said("nodes 0-1 do not answer"))
    loop().call(tell(silent=False))
    gate.touch()
    assert [future.result(60) for future in futures] == [str(gate)] * 60
    assert 1 <= ways.count("opened") < 30
    wait_until(lambda: not pool.calls.short._all_opened)


def test_a_gather_knows_from_the_last_one_how_long_its_calls_take(pool: Pool, ways: list[str]) -> None:
    assert sky.gather(*map(echo, range(16))) >> pool == tuple(range(16))
    assert pool.calls.seconds[echo] > 0
    ways.clear()
    pool.calls.seconds[echo] = 1e-5
    assert sky.gather(*map(echo, range(16))) >> pool == tuple(range(16))
    assert ways == ["short"]


def test_an_interrupt_reaches_the_rank_and_keeps_its_names(pool: Pool, tmp_path: Path) -> None:
    run(pool, "kept = 5")
    for number, way in enumerate((lambda call: call >> pool, lambda call: call @ pool)):
        mark = tmp_path / f"begun{number}"

        def press(mark: Path = mark) -> None:
            wait_until(mark.exists)
            os.kill(os.getpid(), signal.SIGINT)

        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            way(naps(600, str(mark)))
        pressing.join()
    assert list(run(pool, "kept")) == [5, 5]


def test_an_interrupt_that_comes_with_the_value_is_not_lost(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    echo(1) >> pool
    echo(1) >> pool
    receive = DirectLine.receive

    def received(line: DirectLine, seconds: float) -> Iterator[list[Any]]:
        for frame in receive(line, seconds):
            yield frame
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(DirectLine, "receive", received)
    with pytest.raises(KeyboardInterrupt):
        echo(1) >> pool
    monkeypatch.undo()
    assert echo(1) >> pool == 1


def test_an_interrupt_that_comes_with_the_loops_value_is_not_lost(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lock:
        def __init__(self, lock: Any) -> None:
            self.lock, self.release = lock, lock.release

        def acquire(self, timeout: float) -> bool:
            got: bool = self.lock.acquire(timeout=timeout)
            if got:
                os.kill(os.getpid(), signal.SIGINT)
            return got

    send = ShortCalls.send

    def replaced(calls: ShortCalls, call: ShortCall) -> None:
        call.lock = Lock(call.lock)  # type: ignore[assignment]
        send(calls, call)

    monkeypatch.setattr(ShortCalls, "send", replaced)
    monkeypatch.setattr(DirectCalls, "make", lambda *_: False)
    with pytest.raises(KeyboardInterrupt):
        echo(1) >> pool
    monkeypatch.undo()
    assert echo(1) >> pool == 1


def test_a_rank_that_dies_in_a_call_is_named_and_replaced(pool: Pool) -> None:
    @sky.function
    def ends(rank: int) -> None:
        if sky.instance_info().rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(sky.RankDied, match=r"rank 1 \(node 1\) ended.*SIGKILL"):
        ends(1).on(1) >> pool
    with pytest.raises(sky.BroadcastError, match="SIGKILL"):
        ends(1) @ pool
    assert rank_of() @ pool == [0, 1]


def test_a_function_that_was_changed_is_another_one(pool: Pool, ways: list[str]) -> None:
    found = []
    for code in ("x + 1", "x + 2", "x + 1"):
        space: dict[str, Any] = {}
        exec(f"def changing(x): return {code}", space)
        found.append(sky.function(space["changing"])(1) >> pool)
    assert found == [2, 3, 2]
    assert quiet(ways)


def test_functions_that_wait_or_were_opened_keep_their_files_however_many_there_are(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_calls, "_WARM", 2)

    def other(number: int) -> Any:
        # A closure is a function of its own for each value.
        return sky.function(lambda: (time.sleep(0.2), number)[1])

    futures = [other(number)() > pool for number in range(8)]
    assert [future.result(60) for future in futures] == list(range(8))
    wait_until(lambda: not pool.calls.short._long)


def test_what_was_sent_of_calls_whose_sending_is_interrupted_is_deleted(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, sent, deleted = PoolTasks._own, [], []

    def interrupted(self: PoolTasks, run: Any, *args: Any) -> Any:
        if len(sent) == 2:
            raise KeyboardInterrupt
        content = own(self, run, *args)
        sent.append(run.carrier)
        return content

    monkeypatch.setattr(PoolTasks, "_own", interrupted)
    monkeypatch.setattr(pool.calls, "discard_of", deleted.append)
    with pytest.raises(KeyboardInterrupt):
        sky.gather(*(length(bytes([number]) * 2_000_000) for number in range(3))) >> pool
    assert None not in sent
    assert deleted[:2] == sent


def test_a_call_that_cannot_be_sent_leaves_the_turn_to_others(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert echo(1) @ pool == [1, 1]
    with pytest.raises(sky.SpecError, match="timeout must be a number of seconds above 0, at most 1e"):
        echo(1).with_timeout(10**20)

    def fail(*args: Any, **more: Any) -> Any:
        raise TypeError("it cannot be sent")

    with monkeypatch.context() as patched:
        patched.setattr(ShortCall, "packed", fail)
        with pytest.raises(TypeError, match="cannot be sent"):
            echo(1) @ pool
    assert echo(2) @ pool == [2, 2]
    assert run(pool, "'cell'").values == ["cell", "cell"]


def test_each_call_has_the_values_that_its_function_reads_now(pool: Pool, main: dict[str, Any]) -> None:
    main["things"] = [1]
    exec("def reads():\n    things.append(9)\n    return things", main)
    reads = sky.function(main["reads"])
    assert reads() >> pool == [1, 9]
    # The rank has changed its own.
    assert reads() >> pool == [1, 9]
    main["things"].append(2)
    assert reads() >> pool == [1, 2, 9]
    main["things"] = [7]
    assert reads() >> pool == [7, 9]


def test_lists_go_the_short_way_to_all_ranks_unless_the_function_could_share_them(
    pool: Pool, ways: list[str], main: dict[str, Any]
) -> None:
    exec("limit = 2\ndef counts(values):\n    return len([one for one in values if one < limit])", main)
    counts = sky.function(main["counts"])
    counts([]) @ pool  # sends what it reads
    ways.clear()
    assert counts([1, (1, 3), 2][::2]) @ pool == [1, 1]
    assert quiet(ways)
    main["things"] = [1]
    exec("def is_mine(values):\n    return values is things", main)
    assert sky.function(main["is_mine"])(main["things"]) @ pool == [True, True]


def test_what_a_call_assigns_is_noted_without_a_journal(pool: Pool, ways: list[str], main: dict[str, Any]) -> None:
    exec("def assigns(x):\n    global short_way_made\n    short_way_made = [x]", main)
    assigns, before = sky.function(main["assigns"]), set(pool.runs())
    assigns(4) @ pool
    assert "short_way_made" in pool.ledger.nodes_own
    opened = ways.count("opened")
    assert quiet(ways)
    assert len(set(pool.runs()) - before) <= opened
    assert list(run(pool, "short_way_made")) == [[4], [4]]


def test_what_a_call_of_one_rank_assigns_is_that_ranks(pool: Pool, main: dict[str, Any]) -> None:
    main["short_way_state"] = 0
    assert list(run(pool, "short_way_state", main)) == [0, 0]
    exec("def assigns(x):\n    global short_way_state\n    short_way_state = x", main)
    assigns = sky.function(main["assigns"])
    (assigns(10**6).on(0) > pool).result()
    assigns(10**7).on(1) >> pool
    pool.take_restarted(main)
    # The ranks' values are newer than the notebook's, until that is assigned again.
    assert list(run(pool, "short_way_state", main)) == [10**6, 10**7]
    main["short_way_state"] = 5
    assert list(run(pool, "short_way_state", main)) == [5, 5]


def test_a_function_that_a_call_defines_brings_what_it_reads(pool: Pool, main: dict[str, Any]) -> None:
    main["short_way_factor"] = 3
    exec("def defines():\n    global tripled\n    def tripled(x):\n        return x * short_way_factor", main)
    sky.function(main["defines"])() @ pool
    assert list(run(pool, "tripled(2)", main)) == [6, 6]


def test_a_call_that_assigns_very_many_names_is_opened(pool: Pool, ways: list[str], main: dict[str, Any]) -> None:
    exec("def assigns():\n    for one in range(101):\n        globals()[f'short_way_{one}'] = object()", main)
    sky.function(main["assigns"])() >> pool
    assert "opened" in ways
    pool.calls.note_writes(main)
    assert "short_way_100" in pool.ledger.nodes_own


def test_settings_of_the_notebook_are_followed_between_calls(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    @sky.function
    def reads() -> str | None:
        return os.environ.get("SHORT_WAY_TEST_VALUE")

    assert reads() >> pool is None
    monkeypatch.setenv("SHORT_WAY_TEST_VALUE", "set")
    assert reads() >> pool == "set"
    assert reads() @ pool == ["set", "set"]


def all_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls be sent ahead, and none be opened, however long one takes."""
    monkeypatch.setattr(WarmFunction, "ahead", 16)
    monkeypatch.setattr(ShortCall, "is_late", False)
    for module in (short_call, short_calls):
        monkeypatch.setattr(module, "_SHORT", 600.0)


def test_a_function_that_is_forgotten_while_its_calls_wait_is_called_all_the_same(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sky.function
    def reads(name: str = "") -> str | None:
        while name and not Path(name).exists():
            time.sleep(0.001)
        return os.environ.get("SHORT_WAY_TEST_VALUE")

    kept = "len(get_ipython().kernel.short_calls._functions)"
    assert reads().on(0) >> pool is None
    before = run(pool, kept, ranks=[0]).head
    all_stay_short(monkeypatch)
    gate = tmp_path / "gate"
    waiting = [reads(str(gate)).on(0) > pool for _ in range(4)]
    monkeypatch.setenv("SHORT_WAY_TEST_VALUE", "set")
    # With the new setting it is another function, and the notebook has the agent forget the first.
    later = reads().on(0) > pool
    wait_until(lambda: len(pool.calls.short._active) == 5)
    gate.touch()
    assert [future.result(60) for future in waiting] == [None] * 4
    assert later.result(60) == "set"
    assert run(pool, kept, ranks=[0]).head == before


def test_calls_behind_one_that_kills_its_rank_end_though_a_fork_of_it_lives(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, end = tmp_path / "gate", tmp_path / "end"

    @sky.function
    def forks() -> int:
        if (pid := os.fork()) == 0:
            os.setsid()
            while not end.exists():
                time.sleep(0.01)
            os._exit(0)
        return pid

    @sky.function
    def dies(kills: bool = False) -> int:
        while kills and not gate.exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL if kills else 0)
        return sky.instance_info().rank

    fork = psutil.Process(forks().on(1) >> pool)
    try:
        assert dies().on(1) >> pool == 1
        all_stay_short(monkeypatch)
        first = dies(kills=True).on(1) > pool
        behind = [dies().on(1) > pool for _ in range(4)]
        wait_until(lambda: len(pool.calls.short._active) == 5)
        gate.touch()
        assert isinstance(first.exception(60), sky.RankDied)
        assert all(future.exception(60) is None or isinstance(future.exception(), sky.RankDied) for future in behind)
        assert (rank_of().on(1) > pool).result(60) == 1
    finally:
        end.touch()
        wait_until(lambda: not fork.is_running())


class Named(int):
    """A number that is not a plain one."""


@pytest.mark.parametrize(
    "value",
    [1j, np.float32(0.5), np.zeros((2, 0)), np.array([(1, 2.0)], dtype="i4,f8"), {1, "a"}, Named(3), np.array([None])],
    ids=lambda value: type(value).__name__ + getattr(getattr(value, "dtype", None), "char", ""),
)
def test_plain_values_and_others_keep_their_types(pool: Pool, value: Any) -> None:
    for back in [echo([value, value]) >> pool, *(echo({"a": (value, value)}) @ pool)]:
        one, other = back if isinstance(back, list) else back["a"]
        assert type(one) is type(value)
        assert one is other or not hasattr(value, "__dict__")
        assert np.array_equal(one, value)


def test_a_class_of_the_notebooks_goes_by_value_whatever_it_is_derived_from(pool: Pool, main: dict[str, Any]) -> None:
    exec("import numpy\nclass ShortWayNumber(numpy.float64):\n    unit = 'K'", main)
    unit_of = sky.function(lambda kind: kind.unit)
    assert unit_of(main["ShortWayNumber"]) >> pool == "K"
    assert unit_of(main["ShortWayNumber"]) @ pool == ["K", "K"]


def test_what_is_nested_too_deeply_is_an_error_here(pool: Pool) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(Exception, match=r"depth|nested|recursion"):
        echo(nested) >> pool


@pytest.mark.parametrize("value", [b"", b"x" * 1000, MANY, None, {"a": [1, (2, 3)]}], ids=range(5))
def test_arguments_and_values_of_all_sizes_come_back(pool: Pool, value: Any) -> None:
    assert echo(value) >> pool == value
    assert echo(value) @ pool == [value, value]


def test_an_agent_keeps_no_arguments_of_calls_that_are_over(pool: Pool) -> None:
    agent = psutil.Process(pool.status()[0]["pid"])
    before = agent.memory_info().rss
    for number in range(200):
        assert (length(bytes([number]) * 1_000_000) >> pool) == 1_000_000
    # All of them would be 200 MB.
    assert agent.memory_info().rss - before < 100_000_000


def shared_files(pid: int) -> int:
    """How many shared bytes a process has open."""
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(one).startswith("/memfd:sky-call")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="bytes are shared on Linux: run it there")
def test_large_arguments_and_values_leave_few_files_open(pool: Pool, ways: list[str]) -> None:
    ranks = [facts["pid"] for node in pool.status().values() for facts in node["ranks"].values()]
    for _ in range(5):
        assert [length(MANY) >> pool for _ in range(5)] == [len(MANY)] * 5
        assert echo(MANY) @ pool == [MANY, MANY]
        assert [future.result() for future in [echo(MANY) > pool for _ in range(20)]] == [MANY] * 20
    assert quiet(ways)

    def closed() -> bool:
        gc.collect()
        # Each of two agents keeps values of 8 MB, for a connection that breaks.
        few = shared_files(pool.status()[0]["pid"]) <= 2 * ((8 << 20) // len(MANY) + 1)
        # The notebook keeps some to write them again.
        return few and shared_files(os.getpid()) <= 8 and not any(map(shared_files, ranks))

    wait_until(closed)


def test_files_of_large_values_are_written_again_and_no_value_changes(pool: Pool) -> None:
    length(MANY) @ pool
    kept = [(number, echo(bytes([number]) * 300_000) @ pool) for number in range(5)]
    waiting = [(number, echo(bytes([number]) * 300_000).on(number % 2) > pool) for number in range(5, 10)]
    kept += [(number, [echo(bytes([number]) * 100_000) >> pool]) for number in range(10, 15)]
    kept += [(number, [future.result()]) for number, future in waiting]
    for number, values in kept:
        assert all(set(value) == {number} for value in values)
    with pytest.raises(ZeroDivisionError):
        sky.function(lambda given: 1 / 0)(MANY) >> pool
    assert echo(MANY) @ pool == [MANY, MANY]


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in an object"])
def test_arrays_of_up_to_1_mb_go_the_short_way(pool: Pool, ways: list[str], wrapped: bool) -> None:
    array = np.arange(60_000.0).reshape(300, 200)[:, ::2]

    @sky.function
    def doubled(given: Any) -> Any:
        array = getattr(given, "array", given)
        array *= 2  # it is the rank's own
        return array

    given = SimpleNamespace(array=array) if wrapped else array
    assert (doubled(given) >> pool == 2 * array).all()
    assert all((one == 2 * array).all() for one in doubled(given) @ pool)
    assert quiet(ways)
    assert array[0, 1] == 2
    ways.clear()
    assert length(np.zeros(1 << 18)) >> pool == 1 << 18
    assert ways == ["long"]


def test_a_call_with_a_large_argument_that_takes_long_has_it_still(pool: Pool, ways: list[str], tmp_path: Path) -> None:
    @sky.function
    def slow(data: bytes) -> bytes:
        time.sleep(0.3)
        return data[::-1]

    assert slow(MANY + b"y") >> pool == b"y" + MANY
    assert slow(MANY + b"y") @ pool == [b"y" + MANY] * 2
    assert "opened" in ways


def test_a_value_that_cannot_be_pickled_comes_as_its_text(pool: Pool) -> None:
    @sky.function
    def lock() -> Any:
        return threading.Lock()

    assert "lock object" in repr(lock() >> pool)
    assert all("lock object" in repr(one) for one in lock() @ pool)


def test_a_coroutine_function_is_awaited(pool: Pool) -> None:
    @sky.function
    async def later() -> int:
        import asyncio

        await asyncio.sleep(0)
        return 4

    assert later() @ pool == [4, 4]


def test_calls_from_a_callback_and_from_threads_are_made(pool: Pool) -> None:
    nested: list[int] = []
    done = threading.Event()

    def on_done(future: Any) -> None:
        nested.append(echo(future.result() + 1) >> pool)
        done.set()

    (echo(1) > pool).add_done_callback(on_done)
    assert done.wait(60)
    assert nested == [2]
    with ThreadPoolExecutor(8) as threads:
        ones = [threads.submit(lambda n=n: echo(n) >> pool) for n in range(20)]
        alls = [threads.submit(lambda n=n: echo(n) @ pool) for n in range(6)]
        assert [one.result(60) for one in ones] == list(range(20))
        assert [one.result(60) for one in alls] == [[n, n] for n in range(6)]


def test_a_time_limit_holds_on_the_short_way(pool: Pool) -> None:
    with pytest.raises(TimeoutError, match=r"longer than 0\.5 s"):
        naps(600).with_timeout(0.5) >> pool
    with pytest.raises(sky.BroadcastError) as raised:
        naps(600).with_timeout(0.5) @ pool
    assert all(isinstance(one, TimeoutError) for one in raised.value.exceptions)
    assert echo(2).with_timeout(60) >> pool == 2


def test_retries_go_the_long_way(pool: Pool, ways: list[str]) -> None:
    assert echo(1).with_retries(1) >> pool == 1
    assert ways == ["long"]


def test_a_broken_channel_neither_loses_nor_repeats_a_call(pool: Pool, tmp_path: Path) -> None:
    @sky.function
    def counted(path: str, seconds: float) -> int:
        with open(path, "a") as file:
            file.write("x")
        time.sleep(seconds)
        return sky.instance_info().rank

    for number, way in enumerate((lambda call: call >> pool, lambda call: call @ pool)):
        path = tmp_path / f"runs{number}"
        with ThreadPoolExecutor(1) as threads:
            called = threads.submit(way, counted(str(path), 0.08))
            wait_until(path.exists)
            pool.calls.short.close()
            result = called.result(60)
        assert result == (0 if number == 0 else [0, 1])
        assert path.read_text() == "x" * (1 + number)
    assert rank_of() @ pool == [0, 1]


def test_a_task_that_comes_after_its_call_was_forgotten_begins_nothing(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, submitted = tmp_path / "runs", list[Any]()

    @sky.function
    def counted() -> None:
        with path.open("a") as file:
            file.write("x")

    before = PoolTasks._submit
    monkeypatch.setattr(PoolTasks, "_submit", lambda *given: (submitted.append(given), before(*given)))
    # With retries they go through Dask, and of many the journals are removed at once.
    sky.gather(*[counted().with_retries(1) for _ in range(2)]) >> pool
    (_, client, sent, _), *_ = submitted
    run, *_ = sent[0]
    node = run.outcome.node

    def is_forgotten() -> bool:
        # It is over for whoever waits for it, and tidied up after that.
        pool.calls.tidy()
        return not loop().call(pool.control.ask(rpc.FIND_CALLS, [node], calls=[run.call]))[node]

    wait_until(is_forgotten)

    async def submit_again() -> Any:
        before(pool.calls, client, sent[:1], {run.call: node})
        return await pool.calls._futures.pop(run.call).result()

    assert loop().call(submit_again()) == {"attempt": None}
    assert path.read_text() == "xx"


def test_the_busy_ranks_are_told_while_a_thread_adds_a_run(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: dict[str, Any] = {}

    class Adds:
        """A run during whose look another thread adds one."""

        @property
        def left(self) -> list[int]:
            runs[f"another {len(runs)}"] = SimpleNamespace(left=[])
            return [1]

    runs.update(one=Adds(), two=Adds())

    async def look() -> tuple[set[int], bool]:
        with monkeypatch.context() as patch:
            patch.setattr(pool.supervisor, "runs", runs)
            return pool.supervisor.busy_ranks(), pool.supervisor.busy

    assert loop().call(look()) == ({1}, True)


def test_a_call_goes_no_other_way_while_its_agents_are_here(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    echo(0) @ pool
    monkeypatch.setattr(ShortCalls, "_dial_agent", None)
    assert [echo(number) >> pool for number in range(3)] == [0, 1, 2]
    assert echo(1) @ pool == [1, 1]
    pool.calls.short.direct.close()
    assert echo(2) @ pool == [2, 2]


def test_calls_go_over_tls_where_the_agents_are_elsewhere(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sky_jupyter.node.protocol.short_call_frames.agents_socket_of", lambda *_: "/nowhere")
    with local_pool(nodes=2) as elsewhere:
        assert rank_of() @ elsewhere == [0, 1]
        assert rank_of().on(1) >> elsewhere == 1
        assert echo(MANY) >> elsewhere == MANY
        assert echo(MANY) @ elsewhere == [MANY, MANY]
        assert quiet(ways)
        assert not elsewhere.calls.short.direct._lines


def test_a_call_of_all_ranks_reaches_each_process_of_agents(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "2")
    with local_pool(nodes=3) as several:
        for _ in range(3):
            assert rank_of() @ several == [0, 1, 2]
        assert [rank_of().on(rank) >> several for rank in (2, 0)] == [2, 0]
        assert quiet(ways)
        assert len(several.calls.short.direct._lines) == 2


def test_calls_wait_for_each_other_in_order_whichever_way_they_go(pool: Pool) -> None:
    @sky.function
    def added(number: int) -> int:
        import builtins

        builtins.sum_of = getattr(builtins, "sum_of", 0) + number  # type: ignore[attr-defined]
        return int(builtins.sum_of)  # type: ignore[attr-defined]

    assert added(0) @ pool == [0, 0]
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda number: added(number) @ pool, range(1, 41)):
            pass
    assert added(0) @ pool == [820, 820]


def test_the_events_of_a_pool_have_short_calls(pool: Pool) -> None:
    echo(1) >> pool
    echo(1) @ pool
    rows = [row for row in pool.supervisor.events.rows() if row.what == "echo: ok"]
    assert {row.rank for row in rows} >= {0, None}
    assert all(row.run and row.seconds is not None for row in rows)


def test_a_pool_that_has_ended_refuses(ways: list[str]) -> None:
    with local_pool(nodes=1) as ended:
        assert echo(1) >> ended == 1
        slow = ThreadPoolExecutor(1).submit(lambda: naps(600) >> ended)
        wait_until(lambda: ended.supervisor.busy)
    with pytest.raises(Exception, match=r"ended|lost"):
        slow.result(60)
    with pytest.raises(PoolError):
        echo(1) >> ended
