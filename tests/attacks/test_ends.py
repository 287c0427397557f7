"""However a rank's process ends: what a plain kernel writes at its end is written, and nothing stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.providers import Local
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.attacks import traces
from tests.conftest import MARK, marked_processes, pool_folders
from tests.pool.pools import begin, local_pool, run, wait_until
from tests.tiers import daily

pytest.importorskip("joblib", reason="needs the extra joblib: pip install 'sky-jupyter[joblib]'")
RANK = "__import__('sky_jupyter').instance_info().rank"
# A machine that has much else to do takes longer than the usual 2 s.
PATIENT = Options(exit_timeout=60.0, console=False)


def leave_traces(pool: Pool, folder: Path) -> None:
    """Run all programs on all ranks."""
    for program in traces.PROGRAMS:
        run(pool, program.cell(folder, RANK))


class Live:
    """A pool of two ranks for whoever needs one: made anew where the last test has ended it."""

    def __init__(self) -> None:
        self.pool: Pool | None = None

    def get(self) -> Pool:
        if self.pool is None or self.pool.state != "ready" or self.pool.spec.nodes != 2:
            self.close()
            self.pool = Pool(PoolSpec(provider=Local(), nodes=2, options=PATIENT))
            self.pool.start()
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.down()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.close()


def ends_its_block(pool: Pool) -> None:
    """What the end of a `with` block does."""
    compute = sky.Compute(nodes=2, options=PATIENT)
    compute.pool, compute._own = pool, True
    compute.close()


def agents_are_killed(pool: Pool) -> None:
    for agent in {node["pid"] for node in pool.status().values()}:
        os.kill(agent, signal.SIGKILL)


ENDS: dict[str, Callable[[Pool], object]] = {
    "restart": lambda pool: pool.restart(),
    "restart of each rank": lambda pool: [pool.restart(ranks=[rank]) for rank in (0, 1)],
    "agents killed": agents_are_killed,
    "resize": lambda pool: pool.resize(3),
    "down": lambda pool: pool.down(),
    "with": ends_its_block,
    "host told to end": lambda pool: os.kill(pool.hosts[0].command.identity[0], signal.SIGTERM),
}


@pytest.mark.parametrize("end", daily(["with"], ENDS))
def test_an_orderly_end_of_the_ranks_writes_all_and_leaves_nothing(live: Live, tmp_path: Path, end: str) -> None:
    pool = live.get()
    leave_traces(pool, tmp_path)
    ENDS[end](pool)
    assert traces.faults(tmp_path, (0, 1)) == []


@pytest.mark.slow
def test_a_file_of_a_cell_is_written_when_the_pool_ends(tmp_path: Path) -> None:
    """The sample of the above that runs every day."""
    with local_pool(nodes=1, options=PATIENT) as pool:
        chosen = [one for one in traces.PROGRAMS if one.name in ("file", "atexit", "shared_memory")]
        for program in chosen:
            run(pool, program.cell(tmp_path, RANK))
    assert [fault for program in chosen for fault in program.faults(tmp_path, (0,))] == []


@pytest.mark.slow
def test_the_pools_time_that_is_over_ends_the_ranks_in_order_too(tmp_path: Path) -> None:
    pool = Pool(PoolSpec(provider=Local(), nodes=1, ttl=30.0, options=PATIENT))
    pool.start()
    try:
        leave_traces(pool, tmp_path)
        assert traces.faults(tmp_path, (0,), patience=90) == []
    finally:
        pool.down()


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_no_shared_memory(live: Live, tmp_path: Path) -> None:
    pool = live.get()
    for program in traces.PROGRAMS:
        if program.outlives_a_kill:
            run(pool, program.cell(tmp_path, RANK))
    for pid in run(pool, "import os; os.getpid()").values:
        os.kill(pid, signal.SIGKILL)
    assert traces.faults(tmp_path, (0, 1), killed=True) == []


def test_what_runs_is_interrupted_and_its_finally_blocks_run_before_the_pool_ends(tmp_path: Path) -> None:
    path, on = tmp_path / "file", tmp_path / "on"
    with local_pool(nodes=1, options=PATIENT) as pool:
        code = (
            f"import pathlib, time\nfile = open({str(path)!r}, 'w')\ntry:\n    pathlib.Path({str(on)!r}).touch()\n"
            "    time.sleep(600)\nfinally:\n    file.write('done')"
        )
        begin(pool, code)
        wait_until(on.exists)
        pool.down()
    assert path.read_text() == "done"


# -- handlers that take long --------------------------------------------------------------------------------


def test_who_takes_long_to_end_is_told_and_killed_when_its_time_is_over() -> None:
    with local_pool(options=Options(exit_timeout=4)) as pool:
        run(pool, "import atexit, time\natexit.register(time.sleep, 600)", ranks=[1])
        pids = run(pool, "import os; os.getpid()").values
        said: list[str] = []
        pool.down(said.append)
        # On a busy machine the other one may be at it as well after half a second.
        assert re.match(
            r"ending: rank(s 0-1 still run their| 1 still runs its) exit handlers \(0\.5 s of 4 s\)", said[0]
        ), said
        assert said[1].startswith("rank 1 did not end within 4 s and was killed")
        assert not any(map(psutil.pid_exists, pids))
        assert pool_folders(pool.id) == []


@pytest.mark.slow
def test_a_cell_that_heeds_no_interrupt_is_told_apart_from_exit_handlers(tmp_path: Path) -> None:
    # A busy machine takes its time to tell what the rank is at; the interrupt ends the wait.
    with local_pool(nodes=1, options=Options(exit_timeout=60)) as pool:
        code = (
            "import pathlib, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            f"pathlib.Path({str(tmp_path / 'on')!r}).touch()\nsum(range(10**13))"
        )
        begin(pool, code)
        wait_until((tmp_path / "on").exists)
        said: list[str] = []

        def press(text: str) -> None:
            said.append(text)
            threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)).start()

        with pytest.raises(KeyboardInterrupt):
            pool.down(press)
        assert said[0].startswith("ending: rank 0 does not respond to the interrupt (0.5 s of 60 s)")


def test_an_interrupt_of_that_wait_kills_at_once_and_leaves_nothing() -> None:
    with local_pool(nodes=1, options=Options(exit_timeout=600)) as pool:
        run(pool, "import atexit, time\natexit.register(time.sleep, 600)")
        (pid,) = run(pool, "import os; os.getpid()").values

        def press(text: str) -> None:
            threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)).start()

        with pytest.raises(KeyboardInterrupt):
            pool.down(press)
        wait_until(lambda: not psutil.pid_exists(pid) and not pool_folders(pool.id))


# -- kernels that end by themselves -------------------------------------------------------------------------


def test_the_end_of_an_idle_kernel_is_noticed_when_it_comes_and_the_next_cell_runs(live: Live) -> None:
    pool = live.get()
    run(pool, "mine = 1")
    pids = run(pool, "import os; os.getpid()").values
    pool.take_news(), pool.take_restarted()
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: pool.supervisor.restarted == {1} and not pool.supervisor.repairs.mending)
    assert run(pool, "'mine' in globals()").values == [True, False]
    (news,) = pool.take_news()
    assert news.startswith("the kernel of rank 1 ended while it was idle: killed by SIGKILL (9)")
    assert "a new kernel is made for rank 1" in news


@pytest.mark.slow
def test_a_kernel_that_ends_while_nobody_manages_the_pool_is_replaced_by_who_takes_it_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with local_pool(keep=True) as first:
        pids = run(first, "mine = 1\nimport os; os.getpid()").values
        first.release()
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pids[1]))
        pool = Pool.attach(Registry().pool(first.id))
        try:
            assert run(pool, "'mine' in globals()").values == [True, False]
            # News for the next cell, or told to the one that waits just then.
            assert "the kernel of rank 1 ended while it was idle" in caplog.text
        finally:
            pool.down()


@pytest.mark.parametrize("call", ["exit()", "quit()", "exit"])
def test_exit_in_a_cell_is_not_called_done_and_costs_no_name(live: Live, call: str) -> None:
    pool = live.get()
    run(pool, "mine = 2")
    with pytest.raises(CellError) as failed:
        run(pool, call)
    assert all("exit() ends this cell only" in str(failed.value.errors[rank]) for rank in (0, 1))
    assert run(pool, "mine").values == [2, 2]


@pytest.mark.parametrize(
    "code",
    ["import os; os.environ.clear()", "import sys; sys.stdout = None", "import sys; sys.stderr = None; del sys.stdout"],
)
def test_a_rank_goes_on_without_its_environment_or_its_streams(live: Live, code: str) -> None:
    pool = live.get()
    with contextlib.suppress(CellError):
        # IPython does not get through a cell that deletes one of them; what counts is the next.
        run(pool, code)
    value = list(range(1000))
    assert run(pool, f"print('unseen')\nlen(value) + {RANK}", {"value": value}).values == [1000, 1001]
    pool.restart()


# -- the notebook's own end ---------------------------------------------------------------------------------

CELL = "get_ipython().run_cell_magic('sky', '--nodes 1 --exit-timeout 60', {code!r})"


@contextlib.contextmanager
def notebook() -> Iterator[tuple[KernelManager, Callable[[str], None], str]]:
    """A notebook's kernel, how to run code in it, and the mark of what it starts."""
    mark = uuid.uuid4().hex
    manager = KernelManager(kernel_name="python3", shutdown_wait_time=120.0)
    manager.start_kernel(env={**os.environ, MARK: mark})
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)

        def execute(code: str) -> None:
            reply = client.execute_interactive(code, timeout=120, output_hook=lambda _: None)
            assert reply["content"]["status"] == "ok", reply["content"]

        yield manager, execute, mark
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["shutdown", "restart", "killed", pytest.param("plain", marks=pytest.mark.long)])
def test_the_notebooks_end_ends_the_ranks_as_a_plain_kernels_end_does(tmp_path: Path, end: str) -> None:
    """`plain` runs the programs in the notebook's kernel itself: what is asked of ranks is what that does."""
    with notebook() as (manager, execute, mark):
        if end != "plain":
            execute("%load_ext sky_jupyter")
        for program in traces.PROGRAMS:
            if not program.plain and end == "plain":
                continue
            execute(program.cell(tmp_path, "0") if end == "plain" else CELL.format(code=program.cell(tmp_path, RANK)))
        if end == "killed":
            manager.signal_kernel(signal.SIGKILL)
        elif end == "restart":
            manager.restart_kernel(now=False)
        else:
            manager.shutdown_kernel(now=False)
        assert traces.faults(tmp_path, (0,)) == []
        until = time.monotonic() + 60
        while marked_processes(mark) and time.monotonic() < until:
            time.sleep(0.05)
        assert marked_processes(mark) == []
