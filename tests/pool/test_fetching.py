"""Values of a run on two local nodes: large ones that stay until touched, and what cannot come."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sky_jupyter.capture.blobs import fingerprint
from sky_jupyter.machines.base import Moved
from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.protocol.rpc import AgentCall
from sky_jupyter.node.serialization.unpicklable_placeholders import RemoteRepr
from sky_jupyter.pool.base.events import Event, NoticeEvent, ProgressEvent, ignore
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import ValueNotHere
from sky_jupyter.pool.transfer import fetch_values
from tests.pool.pools import begin, local_pool, run

PATIENCE = 60.0
LARGE = "import numpy, sky_jupyter as sky; numpy.full(300_000, float(sky.instance_info().rank))"
HELD = "get_ipython().kernel.sky_values.held"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as pool:
        yield pool


class Watching:
    """A view that keeps what it is told, and does something when it is drawn."""

    def __init__(self, on_refresh: Callable[[], None] = lambda: None) -> None:
        self.events: list[Event] = []
        self.titles: list[str] = []
        self.refresh = on_refresh

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def __call__(self, title: str) -> AbstractContextManager[Watching]:
        self.titles.append(title)

        @contextmanager
        def shown() -> Iterator[Watching]:
            yield self

        return shown()


@pytest.fixture
def view(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Watching:
    watching = Watching()
    monkeypatch.setattr(pool, "shows", watching)
    return watching


def files(pool: Pool) -> list[Path]:
    """What lies about of values."""
    host = pool.hosts[0]
    return [*host.blobs.rglob("value-*"), *host.folder.rglob("value-*")]


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# Large values.


def test_large_values_come_once_and_all_together(pool: Pool, view: Watching) -> None:
    result = run(pool, LARGE)
    assert not view.titles
    first, second = result.values
    assert (first[7], second[7], second.shape) == (0.0, 1.0, (300_000,))
    assert result[1] is second is list(result)[1] is result[0:2][1]
    assert result.head is first
    assert view.titles == ["the values of ranks 0-1"]
    far = [event for event in view.events if isinstance(event, ProgressEvent)]
    assert far[-1].there == far[-1].total > 2 * 300_000 * 8
    assert files(pool) == []


def test_a_large_array_is_a_view_of_the_file_that_its_rank_wrote(pool: Pool) -> None:
    value = run(pool, LARGE)[1]
    assert isinstance(value, np.ndarray)
    while isinstance(value.base, np.ndarray):
        value = value.base
    at = value.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= at < last:
            break
    assert "/value-" in line
    value[0] = 5.0


def test_a_rank_holds_a_large_value_until_the_notebook_drops_its_result(pool: Pool) -> None:
    result, other = run(pool, LARGE), run(pool, LARGE)
    assert set(run(pool, HELD).head) >= {result.run, other.run}
    dropped = result.run
    del result
    gc.collect()
    wait_until(lambda: dropped not in run(pool, HELD).head)
    assert other.run in run(pool, HELD).head
    assert other[1][0] == 1.0
    # Nor does IPython hold it there, under any name.
    seen = run(pool, f"import gc, weakref\n{LARGE}")
    run(pool, "watch = weakref.ref(_); None")
    del seen
    gc.collect()
    wait_until(lambda: run(pool, "watch() is None").values == [True, True])


def test_two_results_of_one_run_hold_its_values_until_both_are_gone(pool: Pool) -> None:
    first = run(pool, LARGE)
    again = pool.attend(pool.adopt(first.run))
    del first
    gc.collect()
    run(pool, "None")
    assert again[1][0] == 1.0


def test_a_run_that_is_read_again_took_as_long_as_on_the_nodes(pool: Pool) -> None:
    first = run(pool, "import time\ntime.sleep(0.5)")
    # Later than its end, by its journals, and not by the time that reading them takes.
    again = pool.attend(pool.adopt(first.run))
    assert 0.5 <= again.elapsed <= first.elapsed + 0.1


def test_a_value_that_made_way_for_newer_ones_says_so(pool: Pool) -> None:
    first = run(pool, LARGE)
    for number in range(20):
        run(pool, f"{number}")
    assert first[0][0] == 0.0
    kept = [run(pool, LARGE) for _ in range(16)]
    with pytest.raises(ValueNotHere, match=r"the value of rank 1 \(numpy.ndarray\) cannot be fetched: it has made way"):
        first[1]
    assert kept[0][1][0] == 1.0


def test_a_fetch_that_is_interrupted_does_no_harm_and_leaves_nothing(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = (
        "import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(0.4 if waits else 0)\n        return "
        "(int, (1,))\nwaits = 0\n"
    )
    result = run(pool, f"{slow}[bytes(2 << 20), *(Slow() for _ in range(200))]")
    run(pool, "waits = 1")
    began = time.monotonic()

    def stop() -> None:
        if time.monotonic() - began > 0.5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "shows", Watching(stop))
        with pytest.raises(KeyboardInterrupt):
            result.head  # noqa: B018 - touching it is the test
    # The ranks had been pickling for 80 s more.
    assert run(pool, "waits = 0; 'here'").values == ["here", "here"]
    assert len(result.head) == 201
    wait_until(lambda: files(pool) == [])


class Away(LocalMachine):
    """A machine whose file arrives when this is let through."""

    def __init__(self) -> None:
        self.through = threading.Event()

    def download(self, source: Any, target: Path, *, progress: Any = None) -> Moved:
        assert self.through.wait(PATIENCE)
        return super().download(source, target)


def test_a_fetch_from_several_hosts_that_is_interrupted_leaves_none_of_their_files(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, machines = run(pool, LARGE), [Away(), Away()]
    job = fetch_values.ValueFetch(pool, [0, 1], ignore, "x")
    monkeypatch.setattr(job, "away", True)
    monkeypatch.setattr(job, "host", lambda node: SimpleNamespace(machine=machines[node]))

    first, second = (f"value-{job.keys[rank]}" for rank in (0, 1))

    def here() -> set[str]:
        return {path.name for path in files(pool)}

    def interrupt() -> None:
        # Both are on their way before one arrives.
        if here() >= {f"{first}.part", f"{second}.part"}:
            machines[0].through.set()
        if first in here():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.wait(job.bring({"of": result.run}), interrupt)
    assert first not in here()
    assert f"{second}.part" in here()
    # What arrives afterwards does not stay either.
    machines[1].through.set()
    wait_until(lambda: files(pool) == [])


def test_the_value_of_a_busy_rank_comes_when_it_has_time(pool: Pool, view: Watching, tmp_path: Path) -> None:
    result = run(pool, LARGE)
    told, going_on = NoticeEvent("rank 1 is busy; its value comes when it has time"), tmp_path / "on"
    wait = f"print('waits', flush=True)\nimport os, time\nwhile not os.path.exists({str(going_on)!r}): time.sleep(0.02)"
    busy = begin(pool, wait)
    # Until then it has time.
    wait_until(lambda: "waits" in "".join(busy.outcomes[1].stdout))

    def let_go_on() -> None:
        wait_until(lambda: told in view.events)
        going_on.touch()

    with ThreadPoolExecutor() as threads:
        watcher = threads.submit(let_go_on)
        assert result[1][0] == 1.0
        watcher.result()
    pool.attend(busy)


def test_threads_that_touch_a_value_at_once_have_the_same(pool: Pool, view: Watching) -> None:
    result, found = run(pool, LARGE), []
    threads = [threading.Thread(target=lambda: found.append(result[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(value) for value in found}) == 1
    assert len(view.titles) == 1


# What cannot come.

KINDS = {
    "(item for item in 'abc')": "generator",
    "open('/dev/null')": "TextIOWrapper",
    "__import__('socket').socket()": "socket",
    "__import__('threading').Lock()": "lock",
    "__import__('sqlite3').connect(':memory:')": "Connection",
}


def test_what_cannot_be_pickled_comes_as_its_repr_with_the_reason(pool: Pool) -> None:
    for code, kind in KINDS.items():
        value = run(pool, code)[1]
        assert isinstance(value, RemoteRepr), code
        assert kind in repr(value)
        assert kind in value.type
        assert f"value: {value.type.removeprefix('builtins.')} cannot be pickled" in value.reason
        assert value.rank == 1


def test_items_that_cannot_be_pickled_are_replaced_and_named_by_their_path(pool: Pool) -> None:
    value = run(pool, "import threading\n{'loss': [0.5, (threading.Lock(), 2)], 'step': 3}").head
    assert value["step"] == 3
    assert value["loss"][0] == 0.5
    bad, two = value["loss"][1]
    assert two == 2
    assert isinstance(bad, RemoteRepr)
    assert bad.reason.startswith("value['loss'][1][0]: _thread.lock cannot be pickled")


def test_an_object_with_a_part_that_cannot_be_pickled_names_that(pool: Pool) -> None:
    code = "import threading\nclass Loader:\n    def __init__(self): self.db = {'lock': threading.Lock()}\n"
    value = run(pool, f"{code}    def __repr__(self): return 'a loader'\nLoader()").head
    assert repr(value) == "a loader"
    assert value.reason.startswith("value.db['lock']: _thread.lock cannot be pickled")


def test_a_large_value_with_a_part_that_cannot_be_pickled_comes_without_it(pool: Pool) -> None:
    value = run(pool, "import threading, numpy\n[numpy.ones(300_000), threading.Lock()]").head
    assert value[0].sum() == 300_000
    assert isinstance(value[1], RemoteRepr)


def test_what_raises_anything_when_it_is_pickled_fails_neither_cell_nor_rank(pool: Pool) -> None:
    value = run(pool, "class Odd:\n    def __reduce__(self): raise SystemExit(3)\n[Odd()]").head
    assert isinstance(value[0], RemoteRepr)
    assert value[0].reason == "value[0]: Odd cannot be pickled (3)"


def test_what_cannot_be_rebuilt_here_comes_as_its_repr_with_the_reason(pool: Pool) -> None:
    make = (
        "import sys, types\nmodule = sys.modules['only_there'] = types.ModuleType('only_there')\n"
        "exec('class Thing:\\n    def __init__(self): self.data = bytes(size)\\n"
        "    def __repr__(self): return \"a thing\"', {'__name__': 'only_there', 'size': %d}, vars(module))\n"
        "module.Thing.__module__ = 'only_there'\nmodule.Thing()"
    )
    for size in (1, 2 << 20):
        value = run(pool, make % size).head
        assert isinstance(value, RemoteRepr)
        assert repr(value) == "a thing"
        assert "ModuleNotFoundError: No module named 'only_there'" in value.reason


def test_errors_lambdas_modules_and_results_come_as_they_are(pool: Pool) -> None:
    earlier = run(pool, LARGE)
    code = "[ValueError('v'), lambda x: x + base, numpy, earlier, iter([1, 2]), type('Mine', (), {})]"
    namespace = {"base": 40, "numpy": np, "earlier": earlier, "__name__": "__main__"}
    error, function, module, result, items, kind = run(pool, code, namespace).head
    assert isinstance(error, ValueError)
    assert function.__globals__ is vars(__import__("__main__"))
    assert module is np
    assert result[1][0] == 1.0
    assert list(items) == [1, 2]
    assert kind.__name__ == "Mine"


def test_what_was_changed_in_a_result_is_sent_with_it_and_a_touch_changes_nothing(pool: Pool) -> None:
    result = run(pool, "[rank for rank in (1, 2)]")
    before = fingerprint(result, {})
    assert result[0] == [1, 2]
    assert fingerprint(result, {}) == before
    result[0].append(3)
    assert run(pool, "answer[0]", {"answer": result}).head == [1, 2, 3]


def test_a_fetch_of_one_thread_does_not_take_the_file_of_another(pool: Pool) -> None:
    first, second = run(pool, LARGE), run(pool, LARGE)
    brought = pool.fetch([1], {"of": first.run}, "the first")[1]
    assert second[1][0] == 1.0
    assert fetch_values.load(brought)[0] == 1.0
    assert files(pool) == []


def test_a_call_that_is_overtaken_takes_no_file_that_a_later_one_has_asked_for(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, earlier = run(pool, LARGE), pool.control.ask
    held: list[dict[str, Any]] = []

    async def overtaken(call: AgentCall, nodes: Any = None, **arguments: Any) -> dict[int, Any]:
        answer = await earlier(call, nodes, **arguments)
        if call is rpc.FETCH_VALUES:
            if held:
                # It was sent before, knows nothing of this one, and comes after it.
                await earlier(call, nodes, **{**held[0], "keys": {}})
                # What that drops is removed by now.
                await earlier(rpc.DISCARD_VALUES, nodes, keys=[])
            held.append(arguments)
        return answer

    monkeypatch.setattr(pool.control, "ask", overtaken)
    first = pool.fetch([1], {"of": result.run}, "the first")[1]
    second = pool.fetch([1], {"of": result.run}, "the second")[1]
    assert fetch_values.load(first)[0] == fetch_values.load(second)[0] == 1.0
    assert len(held) >= 2


@pytest.mark.slow
def test_the_values_of_kernels_that_were_replaced_are_gone_and_it_is_said_why() -> None:
    with local_pool(nodes=1) as pool:
        result = run(pool, LARGE)
        pool.restart()
        with pytest.raises(ValueNotHere, match="its process is a new one"):
            result.head  # noqa: B018 - touching it is the test
        result = run(pool, LARGE)
    with pytest.raises(ValueNotHere, match="has ended"):
        result.head  # noqa: B018 - touching it is the test
