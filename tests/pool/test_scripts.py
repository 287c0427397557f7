"""Unchanged scripts on a pool's ranks: their output, exit codes, interrupts, restarts, and what is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.errors import ScriptError, SpecError
from sky_jupyter.node.agent.stack_sampling import spy_path
from sky_jupyter.node.kernel import script_run
from sky_jupyter.node.kernel.script_run import Place, layout
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, CellResult
from sky_jupyter.pool.runs.run import Run
from sky_jupyter.session import script_runs
from sky_jupyter.session.cells import Cell
from sky_jupyter.session.script_runs import Script, run_script

from .pools import local_pool, run, wait_until

SAYS = """
import os, sys
from beside import GREETING
print(GREETING, sys.argv[1:], os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], flush=True)
"""
REFUSE_PORTS = """
import errno
from sky_jupyter.node.kernel import script_run
held = script_run._held
def refuse(addr):
    raise OSError(errno.EADDRNOTAVAIL, "not here")
script_run._held = refuse
"""
SLEEPS = f"{SAYS}\nimport time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as live:
        yield live


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("GREETING = 'hello'\n")
    return tmp_path


def launch(pool: Pool, target: str, *args: str, detach: bool = False, **more: Any) -> Any:
    """Run a script as the magic does; return its result, or its run if nobody waits for it."""
    script = Script(more.pop("verb", "torchrun"), more.pop("kind", "file"), target, args, **more).found()
    namespace: dict[str, Any] = {}
    ranks = list(range(pool.spec.world_size))
    run_script(pool, script, Cell("", "", 1, ranks, ranks, detach=detach, quiet=True), namespace)
    return pool.detached.popitem()[1].run if detach else namespace["_sky"]


def begun(run: Run) -> Run:
    """Wait until each rank's process has said something."""
    wait_until(lambda: all("hello" in "".join(outcome.stdout) for outcome in run.outcomes.values()))
    return run


def processes(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command line names a file of this test."""
    here = f"{folder}/"
    return [one for one in psutil.process_iter(["cmdline"]) if any(here in word for word in one.info["cmdline"] or ())]


def test_each_rank_runs_it_with_torchruns_variables_and_the_modules_beside_it(pool: Pool, folder: Path) -> None:
    (folder / "says.py").write_text(SAYS)
    result: CellResult = launch(pool, "says.py", "--epochs", "3")
    assert [result.stdout(rank) for rank in (0, 1)] == [f"hello ['--epochs', '3'] {rank} of 2 0\n" for rank in (0, 1)]


def test_a_module_runs_and_the_ranks_names_stay_as_they_are(pool: Pool, folder: Path) -> None:
    (folder / "says.py").write_text(f"{SAYS}\nkept = 'the script'\n")
    run(pool, "kept = 'the rank'")
    (folder / "says.py").write_text(SAYS)
    (folder / "package").mkdir()
    (folder / "package" / "part.py").write_text(
        "import __main__, os\nprint(__name__, os.environ['MASTER_ADDR'])\nkept = 1"
    )
    where = f"import os; os.chdir({str(folder)!r})"
    run(pool, where)
    assert launch(pool, "package.part", kind="module").stdout(1) == "__main__ 127.0.0.1\n"
    assert run(pool, "kept").values == ["the rank"] * 2


def test_an_exit_code_is_an_error_of_its_rank_with_the_last_lines(pool: Pool, folder: Path) -> None:
    (folder / "fails.py").write_text(
        "import os, sys\nif os.environ['RANK'] == '1':\n    print('no data', file=sys.stderr)\n    sys.exit(3)\n"
    )
    with pytest.raises(CellError, match="rank 1 of 2") as caught:
        launch(pool, "fails.py")
    error = caught.value.errors[1]
    assert isinstance(error, ScriptError)
    assert (error.exit_code, error.process) == (3, 1)
    assert str(error) == "fails.py ended with exit code 3\n  | no data"
    assert list(caught.value.errors) == [1]


def test_an_interrupt_reaches_the_processes_and_the_kernels_stay(pool: Pool, folder: Path) -> None:
    (folder / "waits_for_it.py").write_text(
        f"{SAYS}\nimport time\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('saved', flush=True)\n"
    )
    before = run(pool, "import os; os.getpid()").values
    started = begun(launch(pool, "waits_for_it.py", detach=True))
    pool.press(started)
    assert started.over.wait(60)
    assert [outcome.status for outcome in started.outcomes.values()] == ["interrupted"] * 2
    assert all("saved" in "".join(outcome.stdout) for outcome in started.outcomes.values())
    pool.supervisor.discard(started)
    assert run(pool, "os.getpid()").values == before


def test_a_second_interrupt_kills_processes_that_ignore_the_first(pool: Pool, folder: Path) -> None:
    (folder / "deaf.py").write_text(f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{SLEEPS}")
    before = run(pool, "import os; os.getpid()").values
    started = begun(launch(pool, "deaf.py", detach=True))
    pool.press(started)
    pool.press(started)
    assert started.over.wait(60)
    assert processes(folder) == []
    pool.supervisor.discard(started)
    assert run(pool, "os.getpid()").values == before


def test_processes_end_with_their_rank(folder: Path) -> None:
    (folder / "orphans.py").write_text(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', __file__ + '.child'])\n"
        f"{SLEEPS}"
    )
    with local_pool(nodes=1) as alone:
        (pid,) = run(alone, "import os; os.getpid()").values
        started = begun(launch(alone, "orphans.py", detach=True))
        assert len(processes(folder)) == 2
        os.kill(pid, signal.SIGKILL)
        assert started.over.wait(60)
        assert "SIGKILL" in str(started.outcomes[0].end.get("text"))
        wait_until(lambda: not processes(folder))
        alone.supervisor.discard(started)


def test_more_processes_than_ranks_say_which_they_are(pool: Pool, folder: Path) -> None:
    (folder / "says.py").write_text(SAYS)
    result = launch(pool, "says.py", per_node=2)
    assert sorted(result.stdout(1).splitlines()) == ["[2]: hello [] 2 of 4 0", "[3]: hello [] 3 of 4 1"]


def test_a_line_without_end_of_one_of_several_processes_is_shown_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script_run, "_LONGEST", 1000)
    out, into = os.pipe()
    stream = script_run._Stream(os.fdopen(out, "rb", buffering=0), "stdout", "[0]: ", set())
    for _ in range(3):
        os.write(into, b"x" * 600)
        assert stream.take()
    assert capsys.readouterr().out == f"[0]: {'x' * 1200}\n"
    os.close(into)
    assert not stream.take()
    assert capsys.readouterr().out == f"[0]: {'x' * 600}\n"
    stream.pipe.close()


def test_a_script_that_runs_again_under_one_name_takes_nothing_from_its_first_time(pool: Pool, folder: Path) -> None:
    (folder / "port.py").write_text("import os\nprint(os.environ['TORCHELASTIC_RUN_ID'], os.environ['MASTER_PORT'])\n")
    for _ in range(3):
        result = launch(pool, "port.py", id="mine")
        assert result.stdout(0).startswith("mine ")
        assert result.stdout(0) == result.stdout(1)


BARS = """
import os, sys, time
for done in range(4):
    sys.stderr.write(f"\\r bar {done}")
    sys.stderr.flush()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("\\nend", file=sys.stderr)
"""


def test_bars_of_several_processes_are_shown_while_they_are_drawn(pool: Pool, folder: Path) -> None:
    (folder / "bars.py").write_text(BARS)
    run = launch(pool, "bars.py", str(folder / "go"), per_node=2, detach=True)

    def shown(process: int, text: str) -> bool:
        return f"[{process}]: {text}" in "".join(run.outcomes[process // 2].stderr)

    wait_until(lambda: all(shown(process, " bar 2\r") for process in range(4)))
    assert not any(shown(process, " bar 3") for process in range(4))
    (folder / "go").touch()
    assert run.over.wait(60)
    assert all(shown(process, " bar 3\n") and shown(process, "end\n") for process in range(4))
    pool.supervisor.discard(run)


def test_a_failure_starts_all_processes_again_as_often_as_was_said(pool: Pool, folder: Path) -> None:
    (folder / "once.py").write_text(
        "import os, sys\nprint(os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    sys.exit('no data')\n"
    )
    result = launch(pool, "once.py", restarts=1)
    assert [result.stdout(rank).split() for rank in (0, 1)] == [["0", "1"]] * 2
    # The first rank says it, whichever rank's process it was.
    assert result.stderr(0) == "once.py ended with exit code 1 (process 1); start 2 of 2\n"


def test_a_first_rank_without_a_port_fails_all_ranks_with_its_reason(pool: Pool, folder: Path) -> None:
    (folder / "says.py").write_text(SAYS)
    run(pool, REFUSE_PORTS)
    try:
        with pytest.raises(CellError) as caught:
            launch(pool, "says.py")
    finally:
        run(pool, "script_run._held = held")
    errors = caught.value.errors
    assert {type(error) for error in errors.values()} == {ScriptError}
    assert {str(error) for error in errors.values()} == {"rank 0 has no port at 127.0.0.1: [Errno 99] not here"}
    assert 0 in errors


def test_what_cannot_be_is_said_before_anything_runs(pool: Pool, folder: Path) -> None:
    with pytest.raises(SpecError, match=r"missing\.py is not there"):
        launch(pool, "missing.py")
    (folder / "says.py").write_text(SAYS)
    with pytest.raises(SpecError, match="asks for 3 nodes, and pool default has 2"):
        launch(pool, "says.py", nodes=(3, 4))
    with pytest.raises(SpecError, match="was not asked for accelerators"):
        launch(pool, "says.py", per_node="gpu")


def test_where_shows_the_scripts_own_line(pool: Pool, folder: Path) -> None:
    if spy_path() is None:
        pytest.skip("py-spy, which looks at a script's processes, is not installed")
    (folder / "sits.py").write_text(SLEEPS)
    started = begun(launch(pool, "sits.py", detach=True))
    # py-spy may have no time on a busy machine.
    wait_until(lambda: "sits.py:7" in str(pool.where()))
    pool.press(started)
    assert started.over.wait(60)
    pool.supervisor.discard(started)


def test_processes_are_laid_out_as_torchrun_counts_them() -> None:
    assert layout([0, 1, 2, 3], 2) == {
        0: [Place(0, 0, 2, 0)],
        1: [Place(1, 1, 2, 0)],
        2: [Place(2, 0, 2, 1)],
        3: [Place(3, 1, 2, 1)],
    }
    assert {rank: [one.rank for one in places] for rank, places in layout([0, 1, 2, 3], 2, 3).items()} == {
        0: [0, 1],
        1: [2],
        2: [3, 4],
        3: [5],
    }
    assert {rank: len(places) for rank, places in layout([0, 1, 2, 3], 4, 2).items()} == {0: 1, 1: 1, 2: 0, 3: 0}


def test_accelerates_own_configuration_is_found_where_accelerate_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for folder in (".cache/huggingface", "xdg/huggingface", "mine"):
        (tmp_path / folder / "accelerate").mkdir(parents=True)
        (tmp_path / folder / "accelerate" / "default_config.yaml").write_text(folder)
    asked = Script(verb="accelerate launch", kind="file", target="train.py", accelerate=True)
    assert script_runs._config(asked) == ".cache/huggingface"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert script_runs._config(asked) == "xdg/huggingface"
    monkeypatch.setenv("HF_HOME", "~/mine")
    assert script_runs._config(asked) == "mine"
