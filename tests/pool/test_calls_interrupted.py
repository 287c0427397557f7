"""Ctrl-C in a script that waits for calls: the ranks get it too, and the pool goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.api.batch import Batch, InFlightTask
from sky_jupyter.display.views import DelayedView
from sky_jupyter.pool.base.timed_queue import TimedQueue
from sky_jupyter.pool.execution.short_calls import ShortCalls
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.session.calls_view import SharedRunView
from tests.pool.pools import local_pool, run, wait_until

PATIENCE = 60.0
SCRIPT = textwrap.dedent(
    """
    import faulthandler
    import signal
    import sys
    import threading
    import time
    from pathlib import Path
    import sky_jupyter as sky

    # A shell's background job has its children ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    @sky.function
    def waits(mark):
        import time
        with open(mark, "a") as file:
            file.write("begun\\n")
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            with open(mark, "a") as file:
                file.write("interrupted\\n")
            raise

    @sky.function
    def rank_of():
        return sky.instance_info().rank

    WAYS = {
        "one": lambda mark: waits(mark) >> pool,
        "all": lambda mark: waits(mark) @ pool,
        "map": lambda mark: pool.map(waits, [mark] * 6),
        "gather": lambda mark: sky.gather(*[waits(mark)] * 6) >> pool,
        "stream": lambda mark: list(sky.gather(*[waits(mark)] * 6, stream=True) >> pool),
        "future": lambda mark: waited((waits(mark) > pool), mark),
    }

    def waited(future, mark):
        # An interrupt that comes before this waits is the script's own affair.
        threading.Thread(target=tell_of_wait, args=(mark,)).start()
        return future.result()

    def functions_of(frame):
        return [frame.f_code.co_name, *functions_of(frame.f_back)] if frame else []

    def tell_of_wait(mark):
        main = threading.main_thread().ident
        # The start of this thread is waited for likewise.
        while not {"wait", "result"} <= set(functions_of(sys._current_frames()[main])):
            time.sleep(0.01)
        with open(mark, "a") as file:
            file.write("waiting\\n")

    if __name__ == "__main__":
        with sky.Compute(nodes=2, name="interrupted") as pool:
            for way, wait in WAYS.items():
                try:
                    wait(str(Path(sys.argv[1]) / way))
                except KeyboardInterrupt:
                    print(way, "interrupted", rank_of() @ pool, flush=True)
    """
)
RANKS = {"one": 1, "all": 2, "map": 2, "gather": 2, "stream": 2, "future": 1}
BEFORE = {way: ["begun"] * ranks for way, ranks in RANKS.items()}
BEFORE["future"] += ["waiting"]


@pytest.fixture(scope="module")
def compute() -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=2, name="pressed") as compute:
        yield compute


def marks(mark: Path) -> list[str]:
    return sorted(mark.read_text().split()) if mark.exists() else []


def test_an_interrupt_reaches_the_ranks_and_leaves_the_pool_usable(tmp_path: Path) -> None:
    script, said, told = tmp_path / "script.py", tmp_path / "said", tmp_path / "told"
    script.write_text(SCRIPT)
    with said.open("w") as out, told.open("w") as err:
        child = subprocess.Popen([sys.executable, script, tmp_path], stdout=out, stderr=err)

    def until(what: str, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            if child.poll() is not None or time.monotonic() > end:
                child.send_signal(signal.SIGUSR1)
                time.sleep(1.0)
                why = f"the script ended with {child.poll()}" if child.poll() is not None else "it does not come"
                pytest.fail(f"{what}: {why}; it said {said.read_text()!r}, and\n{told.read_text()}")
            time.sleep(0.02)

    def interrupt(way: str, before: list[str]) -> None:
        mark, lines = tmp_path / way, said.read_text().count("\n")
        until(f"the begin of {way}", lambda: marks(mark) == before)
        child.send_signal(signal.SIGINT)
        until(f"the end of {way}", lambda: said.read_text().count("\n") > lines)
        assert said.read_text().splitlines()[-1] == f"{way} interrupted [0, 1]"
        # None but those that had begun were made, and each of those was interrupted.
        assert marks(mark) == sorted([*before, *["interrupted"] * RANKS[way]])

    try:
        for way, before in BEFORE.items():
            interrupt(way, before)
        assert child.wait(PATIENCE) == 0
    finally:
        child.kill()
        child.wait()


def test_an_interrupt_that_comes_as_a_call_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(batch: Batch, presses: Sequence[object]) -> Any:
        sent = following(batch, presses)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: bool(presses))
        return sent

    following = Batch._wait_for_next
    with local_pool(nodes=1) as pool:
        monkeypatch.setattr(Batch, "_wait_for_next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sky.function(abs)(-1).with_retries(0) >> pool
        monkeypatch.undo()
        assert sky.function(abs)(-1) >> pool == 1


@sky.function
def heeds_no_interrupt(mark: Path, until: Path) -> None:
    print("begun", flush=True)
    mark.touch()
    while not until.exists():
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.01)


@sky.function
def fails_after(mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.01)
    raise ValueError("first")


def test_an_interrupt_while_map_reads_its_items_stops_the_reading_and_the_calls(
    compute: sky.Compute, tmp_path: Path
) -> None:
    def places() -> Iterator[Path]:
        yield tmp_path / "one"
        try:
            os.kill(os.getpid(), signal.SIGINT)
            # The interrupt comes here, and does not wait for the next item.
            for _ in range(100):
                time.sleep(0.01)
            yield tmp_path / "two"
        finally:
            read.append(sys.exc_info()[0])

    read: list[Any] = []
    with pytest.raises(KeyboardInterrupt, match="sleeps for each >> pressed was interrupted"):
        compute.map(sleeps, places())
    assert read == [KeyboardInterrupt]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not (tmp_path / "two.begun").exists()
    assert sky.function(abs)(-1) @ compute == [1, 1]


def test_an_interrupt_while_calls_are_stopped_after_a_failure_ends_their_view_and_their_run(
    compute: sky.Compute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(batch: Batch, **how: bool) -> None:
        stop(batch, **how)
        signal.raise_signal(signal.SIGINT)

    def left(view: SharedRunView, *count: int) -> None:
        views.append(view)
        leave(view, *count)

    mark, go, views = tmp_path / "mark", tmp_path / "go", list[SharedRunView]()
    stop, leave = Batch.stop, SharedRunView.leave
    monkeypatch.setattr(Batch, "stop", stopped)
    monkeypatch.setattr(SharedRunView, "leave", left)
    try:
        with pytest.raises(KeyboardInterrupt):
            (fails_after(mark) & heeds_no_interrupt(mark, go)) >> compute
    finally:
        go.touch()
    (view,) = views
    assert view.over
    assert compute.pool is not None
    assert [row.state for row in compute.pool.registry.runs(compute.pool.id, limit=1)] == ["failed"]


def sleeps(mark: Path) -> None:
    try:
        mark.with_suffix(".begun").touch()
        time.sleep(600)
    except KeyboardInterrupt:
        mark.with_suffix(".interrupted").touch()
        raise


@pytest.mark.parametrize("how", ["interrupt", "error"])
def test_calls_that_were_opened_are_stopped_also_before_the_notebook_has_noted_it(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told(queue: TimedQueue[Any], item: Any) -> None:
        put(queue, item)
        opened.extend([item] if isinstance(item, InFlightTask) and item.is_opened else [])

    def waits(batch: Batch) -> None:
        # Both calls take longer than short ones may, and nobody has seen to that yet.
        wait_until(lambda: len(opened) == 2 and all(place.with_suffix(".begun").exists() for place in places))
        monkeypatch.undo()
        if how == "error":
            raise ValueError("an error of the notebook's own")
        signal.raise_signal(signal.SIGINT)

    opened: list[InFlightTask] = []
    put, places = TimedQueue.put, [tmp_path / "one", tmp_path / "two"]
    with sky.Compute(provider=sky.Local(), nodes=2, name="opened") as compute:
        # With the connections that short calls need.
        assert sky.function(abs)(-1) @ compute == [1, 1]
        monkeypatch.setattr(TimedQueue, "put", told)
        monkeypatch.setattr(Batch, "_tick", waits)
        with pytest.raises(KeyboardInterrupt if how == "interrupt" else ValueError):
            compute.map(sleeps, places)
        assert all(place.with_suffix(".interrupted").exists() for place in places)
        assert sky.function(abs)(-1) @ compute == [1, 1]


@pytest.mark.slow
def test_an_interrupt_while_a_run_is_being_begun_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(registry: Registry, *facts: Any) -> None:
        write_down(registry, *facts)
        assert mark.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)

    write_down, mark = Registry.run_began, threading.Event()
    with local_pool(nodes=2) as pool:
        monkeypatch.setattr(Registry, "run_began", slow)
        # The ranks are at it before the notebook has written it down.
        code = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
        with pytest.raises((CellError, KeyboardInterrupt), match="interrupted"):
            run(pool, code, listener=lambda event: mark.set())
        monkeypatch.undo()
        assert run(pool, "1 + 1").values == [2, 2]


@pytest.mark.slow
def test_an_interrupt_just_after_a_broadcast_has_begun_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = DelayedView.__exit__

    def interrupted(view: DelayedView, *error: Any) -> None:
        leave(view, *error)
        os.kill(os.getpid(), signal.SIGINT)
        # It comes here, where nobody counts it.
        time.sleep(5)

    with sky.Compute(provider=sky.Local(), nodes=2, name="between") as compute:
        monkeypatch.setattr(DelayedView, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sky.function(time.sleep)(600).with_retries(0) @ compute
        monkeypatch.undo()
        assert sky.function(abs)(-1) @ compute == [1, 1]


@pytest.mark.slow
def test_an_interrupt_while_calls_are_being_begun_stops_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    send, mark = ShortCalls.send, tmp_path / "mark"

    def sleeps(place: Path) -> None:
        place.touch()
        time.sleep(600)

    def interrupted(calls: ShortCalls, call: Any) -> None:
        send(calls, call)
        # A rank is at it before the notebook has noted it.
        wait_until(mark.exists)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)

    with sky.Compute(provider=sky.Local(), nodes=2, name="beginning") as compute:
        monkeypatch.setattr(ShortCalls, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compute.run_async(sky.function(sleeps)(mark))
        monkeypatch.undo()
        assert sky.function(abs)(-1) @ compute == [1, 1]
