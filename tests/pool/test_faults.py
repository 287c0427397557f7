"""What breaks, and what is left: kernels, agents, schedulers, hosts and owners that end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError, PoolError, RankDied
from sky_jupyter.node.protocol import rpc
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent
from sky_jupyter.pool.hosts import launch
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from sky_jupyter.util import process_identity
from tests.conftest import marked_processes, pool_folders
from tests.pool.pools import begin, local_pool, run, underway
from tests.tiers import daily
from tests.took import Took


def eventually(true: Callable[[], Any], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def kernel_of(pool: Pool, rank: int) -> psutil.Process:
    return psutil.Process(pool.status()[rank // pool.spec.ranks_per_node]["ranks"][rank]["pid"])


def named_children(pool: Pool) -> dict[str, psutil.Process]:
    """The scheduler and the agents of a pool, by the order in which the host starts them."""
    host = psutil.Process(pool.hosts[0].command.process.pid)  # type: ignore[attr-defined]
    children = sorted(host.children(), key=lambda process: process.pid)
    return dict(zip(["forkserver", "scheduler", "agent 0", "agent 1"], children, strict=True))


def test_a_killed_rank_is_named_with_its_signal_while_the_others_go_on(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with local_pool() as pool:
        ended: list[int] = []

        def listen(event: Any) -> None:
            if isinstance(event, OutputEvent) and event.event["kind"] == "end":
                ended.append(event.rank)
                go.touch()

        waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n'survived'"
        current = underway(pool, waits, listener=listen)
        kernel_of(pool, 1).send_signal(signal.SIGKILL)
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        # Rank 0 works on until the other's end is told.
        assert ended == [1, 0]
        assert isinstance(caught.value.errors[1], RankDied)
        assert "rank 1 (node 1)" in str(caught.value.errors[1])
        assert "killed by SIGKILL (9)" in str(caught.value.errors[1])
        assert caught.value.result[0] == "survived"


@pytest.mark.slow
def test_only_the_dead_rank_is_replaced_where_ranks_do_not_depend_on_each_other() -> None:
    with local_pool() as pool:
        run(pool, "mine = 'kept'")
        with pytest.raises(CellError):
            run(pool, "import os\nos._exit(3)", ranks=[1])
        with pytest.raises(CellError) as caught:
            run(pool, "mine")
        assert caught.value.result[0] == "kept"
        assert isinstance(caught.value.errors[1], NameError)


@pytest.mark.slow
def test_all_ranks_enter_anew_where_the_loss_of_one_breaks_a_plugin() -> None:
    plugin = Plugin("together", collective=True)
    with local_pool(plugins=(plugin,)) as pool:
        job = run(pool, "import sky_jupyter as sky; sky.instance_info().job_id").head
        with pytest.raises(CellError) as caught:
            run(pool, "import os\nos.abort()", ranks=[0])
        assert "SIGABRT" in str(caught.value.errors[0])
        again = run(pool, "import sky_jupyter as sky; sky.instance_info().job_id").values
        assert len(set(again)) == 1
        assert again[0] != job
        assert pool.take_restarted() == {0, 1}


def test_the_last_words_of_a_crashed_kernel_are_shown() -> None:
    with local_pool(nodes=1) as pool:
        with pytest.raises(CellError) as caught:
            run(pool, "import ctypes\nctypes.string_at(0)")
        assert "SIGSEGV" in str(caught.value.errors[0])
        assert "Segmentation fault" in str(caught.value.errors[0])


def test_a_killed_agent_fails_the_run_on_its_ranks_and_is_made_anew_by_itself(
    took: Took, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "1")
    # Nodes of a pool that outlives its notebook keep a file of the active runs.
    with local_pool(keep=True, idle_timeout=600.0) as pool:
        active = [pool.hosts[0].folder / f"n{node}" / "running" for node in range(2)]
        run(pool, "name = 'kept'")
        before = run(pool, "import os; os.getpid()").values
        current = underway(pool, "import time; time.sleep(600)", grace=0.2)
        assert eventually(lambda: all(current.id in path.read_text() for path in active))
        named_children(pool)["agent 1"].kill()
        began = time.monotonic()
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        told = time.monotonic() - began
        assert "node 1 is lost: its agent ended (killed by SIGKILL (9))" in str(caught.value.errors[1])
        assert eventually(lambda: not any(current.id in path.read_text() for path in active))
        after = run(pool, "import os; os.getpid()").values
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert run(pool, "name", ranks=[0]).values == ["kept"]
        assert pool.take_restarted() == {1}
        assert eventually(lambda: not psutil.pid_exists(before[1]))
        assert pool.runs()[current.id]["over"]
    took.row(
        "an agent is killed",
        see="`node N is lost: its agent ended (killed by SIGKILL (9))`; new kernels are told",
        kept="every name of the others, and the run's output on the nodes",
        told=told,
    )


def scheduler_of(pool: Pool) -> psutil.Process:
    """The process that listens at the scheduler's port, as soon as there is one."""
    port = int(pool.scheduler_address.rpartition(":")[2])
    host = psutil.Process(pool.hosts[0].command.identity[0])
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in host.children():
                if port in [c.laddr.port for c in process.net_connections() if c.status == "LISTEN"]:
                    return process
        assert time.monotonic() < end
        time.sleep(0.05)


PRINTING = "import time\nfor i in range({count}):\n    print(i); time.sleep(0.1)\n'done'"


@pytest.mark.slow
def test_kernels_that_are_replaced_twice_at_once_are_one_each() -> None:
    def family() -> int:
        return len(psutil.Process(pool.hosts[0].command.identity[0]).children(recursive=True))

    async def replace_them_twice(pause: float) -> None:
        assert pool.control is not None
        first = asyncio.ensure_future(pool.control.ask(rpc.RESTART_KERNELS))
        # The first ones are being forked.
        await asyncio.sleep(pause)
        await asyncio.gather(first, pool.control.ask(rpc.RESTART_KERNELS))
        await pool.lifecycle.plugin_setup.enter()

    code = "import sys\nfor i in range(400): print(i, file=sys.stderr if i % 3 else sys.stdout)"
    with local_pool(ranks_per_node=2) as pool:
        before = family()
        for pause in (0.0, 0.01, 0.03, 0.1):
            loop().call(replace_them_twice(pause), timeout=60)
            result = run(pool, code)
            for rank in result.ranks:
                assert result.stdout(rank).split() == [str(i) for i in range(400) if i % 3 == 0]
                assert result.stderr(rank).split() == [str(i) for i in range(400) if i % 3]
            assert eventually(lambda: family() == before)


def test_a_restart_ends_a_repair_that_is_under_way_while_another_waits_for_it(tmp_path: Path) -> None:
    hold = tmp_path / "hold"

    @contextlib.contextmanager
    def held_once(info: Any) -> Iterator[None]:
        with contextlib.suppress(FileNotFoundError):
            hold.unlink()
            time.sleep(600)
        yield

    with local_pool(plugins=(Plugin("held", around_process=held_once),)) as pool:
        kernels = [kernel_of(pool, rank) for rank in (0, 1)]
        hold.touch()
        for kernel in kernels:
            kernel.kill()
        assert eventually(lambda: not hold.exists() and len(pool.supervisor.repairs._repairs) == 2)
        pool.restart()
        assert not pool.supervisor.repairs.mending
        assert pool.state == "ready"
        assert run(pool, "40 + 2").values == [42, 42]


def test_a_killed_scheduler_costs_nothing(took: Took) -> None:
    with local_pool() as pool:
        pids = run(pool, "import os; os.getpid()").values
        current = begin(pool, PRINTING.format(count=20))
        assert eventually(lambda: all(outcome.stdout for outcome in current.outcomes.values()))
        scheduler_of(pool).kill()
        result = pool.attend(current)
        assert result.values == ["done", "done"]
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(i) for i in range(20)]] * 2
        scheduler_of(pool).kill()
        killed = time.monotonic()
        assert run(pool, "os.getpid()").values == pids
        back = time.monotonic() - killed
        assert pool.take_restarted() == set()
    took.row(
        "the scheduler is killed", see="nothing; a cell that is begun just then waits", kept="everything", back=back
    )


@pytest.mark.slow
def test_a_function_call_outlives_the_scheduler_and_runs_once(tmp_path: Path) -> None:
    marks = tmp_path / "marks"

    def slow() -> str:
        with marks.open("a") as file:
            file.write("x")
        time.sleep(2)
        return "done"

    with sky.Compute(nodes=2, name="calls") as compute:
        assert compute.pool is not None
        killer = threading.Timer(0.7, scheduler_of(compute.pool).kill)
        killer.start()
        assert sky.function(slow)() >> compute == "done"
        killer.join()
        assert marks.read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["agent", "scheduler"])
def test_who_stands_still_is_named_and_what_ran_meanwhile_is_all_there(
    who: str, took: Took, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "1")
    with local_pool() as pool:
        notices: list[str] = []
        current = begin(
            pool,
            PRINTING.format(count=90),
            listener=lambda e: notices.append(e.text) if isinstance(e, NoticeEvent) else None,
        )
        process = psutil.Process(pool.status()[1]["pid"]) if who == "agent" else scheduler_of(pool)
        process.suspend()
        stopped = time.monotonic()
        try:
            name = "node 1" if who == "agent" else "the pool"
            assert eventually(lambda: any(f"{name} does not answer" in text for text in notices))
            told = time.monotonic() - stopped
        finally:
            process.resume()
        result = pool.attend(current)
        # Who looks at the process may tell later that it goes on.
        assert f"{name} answers again" in notices
        assert result.values == ["done", "done"]
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(i) for i in range(90)]] * 2
        assert pool.take_restarted() == set()
    took.row(
        f"{'an agent' if who == 'agent' else 'the scheduler'} stands still (SIGSTOP) and goes on",
        see=f"`{'node N' if who == 'agent' else name} does not answer; trying again`, then that it answers",
        kept="everything",
        told=told,
    )


@pytest.mark.slow
def test_a_node_that_stands_still_can_be_given_up_and_a_restart_makes_the_pool_anew() -> None:
    with local_pool() as pool:
        agent = psutil.Process(pool.status()[1]["pid"])
        agent.suspend()
        current = begin(pool, "import time; time.sleep(600)")
        assert eventually(lambda: 1 in pool.control.silent)  # type: ignore[union-attr]
        pool.interrupt(current)
        pool.interrupt(current, hard=True)
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        assert "you cancelled it" in str(caught.value.errors[1])
        pool.restart()
        assert run(pool, "40 + 2").values == [42, 42]


def test_a_killed_host_takes_everything_with_it() -> None:
    with local_pool() as pool:
        host = psutil.Process(pool.hosts[0].command.process.pid)  # type: ignore[attr-defined]
        family = [host, *host.children(recursive=True)]
        assert len(family) >= 6
        host.kill()
        assert eventually(lambda: not any(process.is_running() for process in family[1:]))
        with pytest.raises(PoolError, match="broken"):
            eventually(lambda: run(pool, "1") and False)
    assert pool_folders(pool.id) == []


def test_the_end_of_a_pool_leaves_nothing_not_even_daemons_of_the_user() -> None:
    daemon = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import os, time\\nos.setsid()\\n"
    daemon += "if os.fork() == 0: time.sleep(600)'], start_new_session=True).wait()"
    with local_pool() as pool:
        run(pool, daemon)
        host = psutil.Process(pool.hosts[0].command.process.pid)  # type: ignore[attr-defined]
        family = [host, *host.children(recursive=True)]
        listening = [c.laddr for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert len(pool_folders(pool.id)) == 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    assert pool_folders(pool.id) == []


OWNER = """
import os, sys, time
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec
pool = Pool(PoolSpec(provider=Local(), nodes=2))
pool.start()
print(pool.id, flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end", daily(["os._exit(1)"], ["time.sleep(600)", "sys.exit()", "os._exit(1)", "raise SystemError"])
)
def test_a_pool_ends_with_its_owner_however_that_ends(end: str) -> None:
    mark = f"{os.environ['SKY_TEST']}-{abs(hash(end))}"
    command = [sys.executable, "-c", OWNER.format(end=end)]
    owner = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "SKY_TEST": mark}, text=True
    )
    assert owner.stdout is not None
    pool = owner.stdout.readline().strip()
    if "sleep" in end:
        assert len(marked_processes(mark)) >= 6
        owner.kill()
    owner.wait(60)
    owner.stdout.close()
    assert eventually(lambda: not marked_processes(mark))
    assert eventually(lambda: not pool_folders(pool))


def refuse(info: Any) -> Any:
    if info.rank == 1:
        raise RuntimeError("no such device on this rank")
    raise_nothing: Any = __import__("contextlib").nullcontext()
    return raise_nothing


@pytest.mark.slow
def test_a_plugin_that_fails_on_one_rank_is_named_and_nothing_is_left() -> None:
    pool = Pool(PoolSpec(provider=Local(), nodes=2, plugins=(Plugin("picky", around_process=refuse),)))
    with pytest.raises(BootstrapError) as caught:
        pool.start()
    assert caught.value.phase == "plugins"
    assert caught.value.node == 1
    assert "no such device on this rank" in str(caught.value)
    assert pool.state == "ended"
    assert pool_folders(pool.id) == []


def test_a_package_that_does_not_exist_fails_in_the_phase_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    pool = Pool(PoolSpec(provider=Local(), image=Image(pip=("no-such-package-anywhere",))))
    with pytest.raises(BootstrapError, match="no-such-package-anywhere") as caught:
        pool.start()
    assert caught.value.phase == "environment"
    assert pool_folders(pool.id) == []
    assert [path for path in (tmp_path / "sky_jupyter").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_an_interrupt_while_a_pool_starts_leaves_nothing() -> None:
    script = textwrap.dedent("""
        import contextlib, signal, time
        from sky_jupyter.plugins import Plugin
        from sky_jupyter.pool.pool import Pool
        from sky_jupyter.providers import Local
        from sky_jupyter.spec.pool_spec import PoolSpec

        # Tests that run in the background may have been started with interrupts ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def wait(info):
            time.sleep(600)

        pool = Pool(PoolSpec(provider=Local(), nodes=2, plugins=(Plugin("slow", around_process=wait),)))
        print(pool.id, flush=True)
        try:
            pool.start(lambda event: print(getattr(event, "phase", ""), flush=True))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    mark = f"{os.environ['SKY_TEST']}-starting"
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "SKY_TEST": mark}, text=True
    )
    assert owner.stdout is not None
    pool = owner.stdout.readline().strip()
    while owner.stdout.readline().strip() != "plugins":
        pass
    time.sleep(0.3)
    owner.send_signal(signal.SIGINT)
    rest = owner.stdout.read()
    assert owner.wait(60) == 0
    owner.stdout.close()
    assert rest.strip().endswith("interrupted")
    assert eventually(lambda: not marked_processes(mark))
    assert pool_folders(pool) == []


@pytest.mark.slow
def test_two_pools_live_beside_each_other() -> None:
    with local_pool(name="first") as first, local_pool(name="second", nodes=1, ranks_per_node=2) as second:
        runs = [begin(pool, "import time; time.sleep(0.2); import os; os.getpid()") for pool in (first, second)]
        pids = [value for pool, current in zip((first, second), runs, strict=True) for value in pool.attend(current)]
        assert len(set(pids)) == 4


def test_broadcasts_from_two_threads_do_not_mix() -> None:
    with local_pool() as pool:
        results: list[list[Any]] = []
        threads = [
            threading.Thread(target=lambda n=n: results.append(run(pool, f"[{n}] * 2").values)) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [[[n, n], [n, n]] for n in range(8)]


def test_a_start_that_is_given_up_as_its_host_begins_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, make = Pool(PoolSpec(provider=Local())), launch.make_folders
    begun, given_up = threading.Event(), threading.Event()

    def late(id: str) -> Any:
        begun.set()
        given_up.wait()
        return make(id)

    def tick() -> None:
        if begun.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(launch, "make_folders", late)
    with pytest.raises(KeyboardInterrupt):
        pool.start(tick=tick)
    # The hosts that were there have ended: this one comes after that.
    given_up.set()
    assert eventually(lambda: pool.hosts)
    assert eventually(lambda: not process_identity.lives(*pool.hosts[0].command.identity))
    assert eventually(lambda: not pool_folders(pool.id))


def test_a_start_that_cannot_be_recorded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    pool = Pool(PoolSpec(provider=Local(), nodes=1))
    pool.registry.patience = 0.2
    other = sqlite3.connect(pool.registry.path, isolation_level=None, check_same_thread=False)

    def lock(event: Any) -> None:
        if getattr(event, "phase", "") == "plugins" and not other.in_transaction:
            other.execute("BEGIN IMMEDIATE")

    with contextlib.closing(other), pytest.raises(PoolError, match="database is locked"):
        pool.start(lock)
    assert pool.state == "ended"
    assert not process_identity.lives(*pool.hosts[0].command.identity)
    assert pool_folders(pool.id) == []
