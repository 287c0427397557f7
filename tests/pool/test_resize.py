"""More and fewer nodes: what stays is kept, what goes leaves nothing, and where it fails all is as it was."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError, PoolError, SpecError
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import PhaseEvent
from sky_jupyter.pool.lifecycle import resize, resize_plan, status
from sky_jupyter.pool.lifecycle.resize import Resizing
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import SSH, Local
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.conftest import pool_folders
from tests.pool.pools import begin, local_pool, run

PATIENCE = 60.0
WHERE = """
import os
from sky_jupyter import instance_info
info = instance_info()
info.node, info.rank, info.total_nodes, info.world_size, len(info.peers), 'kept' in globals()
"""


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_whole(pool: Pool, nodes: int, per_node: int = 1) -> bool:
    """Whether all ranks of a pool of so many nodes run a cell, and know what they are part of."""
    world = nodes * per_node
    expected = [(rank // per_node, rank, nodes, world, nodes, False) for rank in range(world)]
    return run(pool, WHERE).values == expected and pool.condition == "ready"


def roots(pool: Pool) -> dict[str, int]:
    """The processes that outlive a change: the host, and of its children the forkserver and the scheduler."""
    host = psutil.Process(pool.hosts[0].command.identity[0])
    agents = {facts["pid"] for facts in pool.status().values()}
    return {str(child.pid): child.ppid() for child in host.children() if child.pid not in agents}


class Followed:
    """Extension of a supervisor that knows in which threads each of its methods was called."""

    def __init__(self) -> None:
        self.calls: dict[str, set[str]] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.calls.setdefault(name, set()).add(threading.current_thread().name)


async def this_thread() -> str:
    return threading.current_thread().name


def test_nodes_are_added_and_removed_with_new_kernels_and_all_else_as_it_was() -> None:
    followed = Followed()
    with local_pool(nodes=1) as pool:
        pool.supervisor.extend("followed", followed)
        namespace = {"shared": [1, 2]}
        assert run(pool, "kept = 1; print('first'); sum(shared)", namespace).values == [3]
        before, first = roots(pool), pool.registry.runs(pool.id)[0].id
        told: list[PhaseEvent] = []
        pool.resize(3, told.append)
        assert [event.phase for event in told if event.done] == ["agent", "plugins"]
        assert is_whole(pool, 3)
        # What the notebook has is sent again by itself.
        assert pool.take_restarted() == {0, 1, 2}
        pool.ledger.forget_nodes(namespace)
        assert run(pool, "print(f'rank {info.rank}'); sum(shared)", namespace).values == [3, 3, 3]
        second = pool.registry.runs(pool.id)[0].id
        pool.resize(2)
        assert is_whole(pool, 2)
        assert pool.registry.pool(pool.id).nodes == 2
        assert roots(pool) == before
        pool.resize(2)
        assert run(pool, "info.rank").values == [0, 1], "nothing was to be done, and kernels are new"
        # What was printed before is still known where its node is.
        assert pool.log(first).stdout(0) == "first\n"
        old = pool.log(second)
        assert [old.stdout(rank) for rank in (0, 1)] == ["rank 0\n", "rank 1\n"]
        assert "its node was removed from the pool" in str(old.errors[2])
        assert pool.page(first, 0)[0].text == "first\n3\n"
        assert [(node["node"], node["state"]) for node in status.of(pool, 0)["nodes"]] == [(0, "idle"), (1, "idle")]
    assert {"suit", "close"} <= followed.calls.keys()
    assert set().union(*followed.calls.values()) == {loop().call(this_thread())}, "parts of a pool have one thread"


@pytest.mark.slow
def test_nodes_are_removed_by_number_and_nothing_of_them_is_left(tmp_path: Path) -> None:
    with local_pool(nodes=3, ranks_per_node=2) as pool:
        # Each rank has a process that would outlive its kernel.
        child = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
        ranks = run(pool, f"import os, subprocess\nchild = {child}\nos.getpid(), child.pid").values
        told: list[Any] = []
        code = "print('of', os.getpid(), flush=True)\nimport time\ntime.sleep(600)"
        going = begin(pool, code, listener=told.append)
        wait_until(lambda: len([event for event in told if event.event["kind"] == "stream"]) == 6)
        ended = threading.Thread(target=lambda: pool.wait(going))
        ended.start()
        pool.resize(remove=[1])
        ended.join(PATIENCE)
        errors = pool.finish(going).errors
        assert {str(error) for error in errors.values()} == {
            f"rank {rank} (node {rank // 2}) is lost: its kernel was replaced by `%sky resize`" for rank in range(6)
        }
        assert is_whole(pool, 2, per_node=2)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pair in ranks for pid in pair))
        assert sorted(path.name for path in pool.hosts[0].folder.glob("n[0-9]*")) == ["n0", "n1"]
        # The node that was the third is the second, with what it had printed.
        text = "".join(page.text for page in pool.page(going.id))
        assert {int(line.split()[1]) for line in text.splitlines() if line.startswith("of ")} == {
            ranks[rank][0] for rank in (0, 1, 4, 5)
        }


def fails_in(nodes: int, mark: Path) -> sky.Plugin:
    """A plugin that cannot be entered in a pool of so many nodes, or that hangs there once the mark is there."""
    folder = str(mark)

    @contextlib.contextmanager
    def around(info: Any) -> Iterator[None]:
        import os
        import time

        if info.total_nodes == nodes and os.path.exists(folder):
            time.sleep(600)
        if info.total_nodes == nodes:
            raise RuntimeError(f"not with {nodes}")
        yield

    return sky.Plugin.create("picky").with_around_process(around)


def ignoring(call: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(PoolError):
        call(*arguments)


def interrupts(pool: Pool, times: int) -> Callable[[], None]:
    """A tick in which a person interrupts: once the new ranks hang, and again on the way back."""
    left = ["changing back", "plugins"][-times:]

    def tick() -> None:
        # There is none yet at the first ticks of a change.
        for phase in pool.phases.facts()[-1:]:
            if left and left[-1] in (phase["phase"], phase["text"]):
                left.pop()
                raise KeyboardInterrupt

    return tick


@pytest.mark.slow
def test_what_fails_or_is_given_up_leaves_the_pool_as_it_was(tmp_path: Path) -> None:
    mark = tmp_path / "hang"
    with local_pool(nodes=2, plugins=(fails_in(3, mark),)) as pool:
        run(pool, "kept = 1")
        before = roots(pool)
        with pytest.raises(BootstrapError, match="not with 3"):
            pool.resize(3)
        assert is_whole(pool, 2)
        assert [phase["state"] for phase in pool.phases.facts()] == ["done", "failed", "done", "done"]
        mark.touch()
        failed: list[BaseException] = []

        def resize() -> None:
            try:
                pool.resize(3)
            except BaseException as error:
                failed.append(error)

        changing = threading.Thread(target=resize)
        changing.start()
        wait_until(lambda: pool.spec.nodes == 3 and pool.phases.facts()[-1]["phase"] == "plugins")
        assert pool.condition == "resizing"
        with pytest.raises(PoolError, match="being resized just now"):
            pool.restart()
        with pytest.raises(PoolError, match="being resized just now"):
            begin(pool, "1")
        assert pool.stop_resizing()
        changing.join(PATIENCE)
        assert "was cancelled" in str(failed[0])
        assert is_whole(pool, 2)
        assert not pool.stop_resizing()
        with pytest.raises(KeyboardInterrupt):
            pool.resize(3, tick=interrupts(pool, 1))
        assert is_whole(pool, 2)
        pool.resize(1)
        assert is_whole(pool, 1)
        assert roots(pool) == before
        # Whoever ends the pool does not wait for what hangs, and nothing is left.
        changing = threading.Thread(target=ignoring, args=(pool.resize, 3))
        changing.start()
        wait_until(lambda: pool.spec.nodes == 3 and pool.phases.facts()[-1]["phase"] == "plugins")
        pool.down()
        changing.join(PATIENCE)
        assert pool.state == "ended"
    assert not pool_folders(pool.id)


@pytest.mark.long  # what it rests on is tested with one interrupt
def test_a_second_interrupt_leaves_the_way_back_and_a_restart_makes_the_pool_anew(tmp_path: Path) -> None:
    mark = tmp_path / "hang"
    mark.touch()
    with local_pool(nodes=2, plugins=(fails_in(3, mark),)) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.resize(3, tick=interrupts(pool, 2))
        assert pool.state == "broken"
        assert "its nodes could not be changed" in pool.broken
        pool.restart()
        assert is_whole(pool, 2)


def test_what_cannot_be_is_refused_before_anything_changes() -> None:
    local = PoolSpec(provider=Local(), nodes=3)
    ids = ["a", "b", "c"]
    wrong: dict[str, Any] = {
        "nodes must be a whole number from 1": {"nodes": 0},
        "by a number of nodes|to a number of nodes": {},
        "to a number of nodes": {"nodes": 2, "remove": [1]},
        "hosts cannot be added to local pools": {"add": ["gpu1"]},
        "has nodes 0 to 2, not 3, 9": {"remove": [3, 9]},
        "node 0 is the head": {"remove": [0, 1]},
    }
    for text, options in wrong.items():
        with pytest.raises(SpecError, match=text):
            resize_plan.of(local, ids, **{"nodes": None, "add": (), "remove": (), **options})
    ssh = PoolSpec(provider=SSH(["a", "b", "c", "d"]), nodes=3)
    with pytest.raises(SpecError, match="6 nodes need 2 more hosts than the pool knows"):
        resize_plan.of(ssh, ids, 6, (), ())
    with pytest.raises(SpecError, match="host 'b' is named more than once"):
        resize_plan.of(ssh, ids, None, ["b"], ())


@pytest.mark.parametrize(
    ("options", "ids", "kept", "hosts"),
    [
        ({"nodes": 4}, "abcd", (0, 1, 2), "abcd"),
        # Who goes by a number may come back by one; who goes by name may not.
        ({"nodes": 1}, "a", (0,), "abcd"),
        ({"remove": [1]}, "ac", (0, 2), "acd"),
        ({"add": ["e"], "remove": [1]}, "ace", (0, 2), "aced"),
        ({"add": ["d"]}, "abcd", (0, 1, 2), "abcd"),
        # One that is gone may be made a node anew.
        ({"add": ["b"], "remove": [1]}, "acb", (0, 2), "acbd"),
    ],
)
def test_hosts_become_nodes_in_their_order(options: Any, ids: str, kept: tuple[int, ...], hosts: str) -> None:
    spec = PoolSpec(provider=SSH(list("abcd"), accept_host_keys={"b": "SHA256:" + 43 * "A"}), nodes=3)
    made = resize_plan.of(spec, list("abc"), **{"nodes": None, "add": (), "remove": (), **options})
    assert ("".join(made.ids), made.kept) == (ids, kept)
    assert "".join(made.spec.provider.hosts) == hosts
    assert made.spec.nodes == len(ids)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=1, max_cost=5.0) as made:
        yield made


def test_a_budget_that_is_raised_while_nodes_are_prepared_or_given_up_stays(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, enter = pool.lifecycle.provisioning.acquire, pool.lifecycle.plugin_setup.enter

    def acquires(*arguments: Any) -> Any:
        pool.raise_budget(20.0)
        return acquire(*arguments)

    async def fails() -> None:
        monkeypatch.setattr(pool.lifecycle.plugin_setup, "enter", enter)
        pool.raise_budget(30.0)
        raise PoolError("no kernels")

    with monkeypatch.context() as patch:
        patch.setattr(pool.lifecycle.provisioning, "acquire", acquires)
        pool.resize(2)
    assert (pool.spec.nodes, pool.spec.max_cost) == (2, 20.0)
    monkeypatch.setattr(pool.lifecycle.plugin_setup, "enter", fails)
    with pytest.raises(PoolError, match="no kernels"):
        pool.resize(1)
    assert (pool.spec.nodes, pool.spec.max_cost) == (2, 30.0)


@pytest.mark.parametrize("again", ["cancelled", "interrupted"])
def test_a_change_that_is_given_up_twice_leaves_the_pool_as_it_was(
    again: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, nodes, go_on = pool.lifecycle.plugin_setup.enter, pool.spec.nodes, threading.Event()
    forth, back, pressed = threading.Event(), threading.Event(), threading.Event()

    async def waits() -> None:
        if not forth.is_set():
            forth.set()
            await asyncio.Event().wait()
        back.set()
        await asyncio.to_thread(go_on.wait)
        await enter()

    def tick() -> None:
        if again == "interrupted" and back.is_set() and not pressed.is_set():
            pressed.set()
            raise KeyboardInterrupt

    failed: list[BaseException] = []

    def resize() -> None:
        try:
            pool.resize(nodes + 1, tick=tick)
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr(pool.lifecycle.plugin_setup, "enter", waits)
    changing = threading.Thread(target=resize)
    changing.start()
    assert forth.wait(PATIENCE)
    assert pool.stop_resizing()
    assert back.wait(PATIENCE)
    assert pool.stop_resizing() if again == "cancelled" else pressed.wait(PATIENCE)
    go_on.set()
    changing.join(PATIENCE)
    assert isinstance(failed[0], PoolError if again == "cancelled" else KeyboardInterrupt)
    assert is_whole(pool, nodes)


@pytest.mark.parametrize("times", [1, 2])
def test_a_change_that_is_interrupted_when_all_ranks_have_changed_is_recorded(
    times: int, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, nodes, go_on, begun = Resizing._end_removed, pool.spec.nodes, threading.Event(), threading.Event()
    left = times

    async def waits(change: Resizing) -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait)
        await end(change)

    def tick() -> None:
        nonlocal left
        if begun.is_set():
            left -= 1
            if not left and times == 1:
                go_on.set()
            if left >= 0:
                raise KeyboardInterrupt

    monkeypatch.setattr(Resizing, "_end_removed", waits)
    monkeypatch.setattr(resize, "_FREE_PATIENCE", 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.resize(nodes + 1, tick=tick)
        assert pool.registry.pool(pool.id).nodes == nodes + 1
        assert is_whole(pool, nodes + 1)
    finally:
        go_on.set()


SCRIPT = """
import os, sys, time
import sky_jupyter as sky
if __name__ == "__main__":
    with sky.Compute(nodes=1, name="killed") as compute:
        compute.resize(3)
        add = sky.function(lambda x: x + base)
        base = 1
        assert add(1) @ compute == [2, 2, 2]
        compute.resize(remove=[1])
        assert add(1) @ compute == [2, 2], "what was sent is sent again"
        print(compute.pool.id, flush=True)
        time.sleep(600)
"""


@contextlib.contextmanager
def killed(path: Path) -> Iterator[str]:
    """A pool that a script resized which is killed then; its id."""
    path.write_text(SCRIPT)
    script = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert script.stdout is not None
        lines = iter(script.stdout.readline, "")
        pool = next(line.strip() for line in lines if len(line.strip()) == 8)
        yield pool
    finally:
        script.send_signal(signal.SIGKILL)
        script.wait()
        assert script.stdout is not None
        script.stdout.close()


@pytest.mark.slow
def test_a_script_that_is_killed_after_it_leaves_nothing(tmp_path: Path) -> None:
    with killed(tmp_path / "script.py") as pool:
        assert pool_folders(pool)
    wait_until(lambda: not pool_folders(pool))


@pytest.mark.slow
def test_a_kept_pool_is_taken_up_as_it_was_left() -> None:
    with local_pool(nodes=1, keep=True) as first:
        first.resize(3)
        first.resize(remove=[1])
        first.release()
    row = Registry().pool(first.id)
    assert row.nodes == 2
    pool = Pool.attach(row)
    try:
        assert is_whole(pool, 2)
        pool.resize(3)
        assert is_whole(pool, 3)
    finally:
        pool.down()
    wait_until(lambda: not pool_folders(first.id))
