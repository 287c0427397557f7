"""A machine's clock that jumps while a cell runs: only the time of day moves, and nothing else may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sky_jupyter.machines.local_machine import LocalProcess
from sky_jupyter.pool.base.events import OutputEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.util import process_identity
from tests.conftest import pool_folders
from tests.faults.clocks import Clock
from tests.magics.notebook import Notebook, notebook
from tests.magics.test_reattach import LOAD, name, the_pool
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually, scheduler_of
from tests.took import Took

__all__ = ["name"]
DAY = 86_400
JUMPS = {"a_day_ahead": DAY, "a_day_back": -DAY, "two_years_ahead": 730 * DAY}
PRINTING = "import time\nfor i in range({count}):\n    print(i); time.sleep(0.05)\ntime.time()"
# Two years are as much ahead, for what is run each time.
LONG = {"a_day_ahead"}
jumps = pytest.mark.parametrize(
    "jump", [pytest.param(JUMPS[name], id=name, marks=[pytest.mark.long] * (name in LONG)) for name in JUMPS]
)
LEASE = 10


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def nodes_clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all pools that are made meanwhile, and not of this process."""
    for variable, value in clock.environment.items():
        monkeypatch.setenv(variable, value)
    return clock


def numbers(text: str) -> list[int]:
    return [int(line) for line in text.split()]


def swept(*, environment: dict[str, str]) -> list[str]:
    """What another process takes for gone."""
    script = "from sky_jupyter.pool.registry.registry import Registry, sweep; print(*sweep(Registry()))"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def host_lives(pool: Pool) -> bool:
    return process_identity.lives(*pool.hosts[0].command.identity)


@pytest.mark.slow
@jumps
def test_a_pool_whose_clock_jumps_loses_no_line_no_connection_and_no_lease(
    nodes_clock: Clock, jump: int, took: Took
) -> None:
    with local_pool(keep=True, name=f"jumps{jump}", idle_timeout=LEASE) as pool:
        seen: list[str] = []
        before = run(pool, "import time; time.time()").head
        current = begin(
            pool,
            PRINTING.format(count=60),
            listener=lambda e: seen.append(e.event.get("text", "")) if isinstance(e, OutputEvent) else None,
        )
        assert eventually(lambda: len(seen) > 4)
        nodes_clock.set(jump)
        jumped = time.monotonic()
        result = pool.attend(current)
        assert [numbers(result.stdout(rank)) for rank in (0, 1)] == [list(range(60))] * 2
        assert [abs(value - before - jump) < 300 for value in result.values] == [True, True]
        assert 2 < result.elapsed < abs(jump)
        assert numbers(pool.log(current.id).stdout(1)) == list(range(60))
        assert run(pool, "large = bytes(3_000_000); large")[1] == bytes(3_000_000)
        took.row(
            "the nodes' clock jumps, a day or two years ahead or back", see="nothing", kept="everything, the lease too"
        )
        # All connections are recreated, by processes whose clock has jumped and by this one.
        pids = run(pool, "import os; os.getpid()").values
        scheduler_of(pool).kill()
        assert run(pool, "os.getpid()").values == pids
        for environment in (nodes_clock.environment, {"LD_PRELOAD": ""}):
            assert pool.spec.name not in swept(environment=environment)
        row = the_pool(pool.spec.name)
        assert (row.owner, row.host_lives, row.owner_lives) == (os.getpid(), True, True)
        # A manager is there: the lease does not end.
        time.sleep(max(0.0, jumped + 1.3 * LEASE - time.monotonic()))
        assert run(pool, "os.getpid()").values == pids
        pool.release()
        released = time.monotonic()
        try:
            assert eventually(lambda: not host_lives(pool), 4 * LEASE)
            assert time.monotonic() - released > 0.7 * LEASE
            assert eventually(lambda: pool_folders(pool.id) == [])
        finally:
            pool.hosts[0].command.kill()


def test_a_clock_that_is_set_back_again_and_again_holds_no_output_back(nodes_clock: Clock) -> None:
    # What a stream of messages waits for is milliseconds ahead: only many jumps meet such a moment.
    with local_pool() as pool:
        current = begin(pool, "import time\nfor i in range(4000):\n    print(i, 'x' * 200); time.sleep(0.001)\n'done'")
        for back in range(1, 4000):
            if current.over.is_set():
                break
            nodes_clock.set(-3600 * back)
            time.sleep(0.002)
        assert eventually(current.over.is_set)
        result = pool.attend(current)
        assert result.values == ["done", "done"]
        assert [numbers(result.stdout(rank).replace("x", "")) for rank in (0, 1)] == [list(range(4000))] * 2


CELL = "%%sky\n" + PRINTING.format(count=60)


def jump_in_a_cell(page: Notebook, clock: Clock, jump: int) -> None:
    """Run a cell in whose middle the clock jumps; all of it has to be there, in order."""
    state = [False]

    def take(message: dict[str, object]) -> None:
        # Shown for the first time: it runs.
        if message["msg_type"] == "update_display_data" and not state[0]:
            state[0] = True
            clock.set(jump)

    reply = page.client.execute_interactive(CELL, output_hook=take, timeout=60, stop_on_error=False)
    assert reply["content"]["status"] == "ok"
    assert state == [True]
    lines = page.value("[_sky.stdout(rank).split() for rank in _sky.ranks]")
    assert lines == [[str(i) for i in range(60)]] * 2
    assert 2 < page.value("_sky.elapsed") < abs(jump)


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["notebook", "machine"])
@jumps
def test_a_notebook_whose_clock_jumps_goes_on_and_hands_its_pool_over(
    clock: Clock, jump: int, whose: str, tmp_path: Path, name: str
) -> None:
    with notebook(tmp_path, **clock.environment) as page, notebook(tmp_path) as other:
        if whose == "notebook":
            # What it starts has the right time.
            page.run("import os; del os.environ['LD_PRELOAD']")
        page.run(LOAD)
        made = page.run(f"%sky up --nodes 2 --keep --idle-timeout 10s --name {name}")
        assert made.status == "ok", made.outputs
        page.run("%%sky\nmine = 7")
        jump_in_a_cell(page, clock, jump)
        page.run("%%sky\nprint('the newest')\nmine")
        assert page.value("_sky.values") == [7, 7]
        assert "the newest" in page.run("%sky logs").stream()
        assert re_elapsed(page.run("%sky runs").stream())
        # Another process, with the right time, does not take the pool for dead, nor its manager.
        told = other.run(LOAD).stream()
        assert f"pool {name}: 2 local nodes, kept" in told
        assert other.run(f"%sky attach {name}").error_name == "PoolError"
        taken = other.run(f"%sky attach {name} --take-over")
        assert taken.status == "ok", taken.outputs
        other.run("%%sky\nmine")
        assert other.value("_sky.values") == [7, 7]
        # The first one has to have noticed.
        assert eventually(lambda: page.run(f"%sky attach {name} --take-over").status == "ok")
        page.run("%%sky\nmine")
        assert page.value("_sky.values") == [7, 7]
        page.run("%sky down")


def re_elapsed(table: str) -> bool:
    """No run took less than no time."""
    return bool(table) and " -" not in table


@pytest.mark.root
def test_processes_keep_their_identity_when_the_machines_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, for another /proc/stat")
    # From it psutil counts when a process was born; it moves with the clock.
    facts = Path("/proc/stat").read_text().splitlines(keepends=True)
    moved = [f"btime {int(line.split()[1]) + DAY}\n" if line.startswith("btime ") else line for line in facts]
    (tmp_path / "stat").write_text("".join(moved))
    script = (
        "import psutil, sys\nfrom sky_jupyter.machines.local_machine import LocalProcess\n"
        "from sky_jupyter.pool.registry.registry import Registry, sweep\n"
        "pid, started, born = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])\n"
        "assert psutil.Process(pid).create_time() - born > 80_000\n"
        "assert LocalProcess(pid, started).alive\n"
        "rows = Registry().pools()\n"
        "assert rows and all(row.host_lives and row.owner_lives for row in rows), rows\n"
        "assert sweep(Registry()) == []\n"
    )
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    with local_pool(nodes=1) as pool:
        pid, started = pool.hosts[0].command.identity
        assert LocalProcess(pid, started).alive
        born = psutil.Process(pid).create_time()
        command = ["unshare", "-m", "sh", "-c", f'mount --bind {tmp_path}/stat /proc/stat && exec "$@"', "sh"]
        command += [sys.executable, "-c", script, str(pid), str(started), str(born)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert run(pool, "1 + 1").values == [2]
        assert sweep(Registry()) == []
