"""The program ``sky-jupyter`` beside a notebook that manages a pool, and after that notebook has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.access import kernel_requests
from sky_jupyter.access.log_pages import KernelPages, LocalPages, follow
from sky_jupyter.access.pool_access import PoolAccess
from sky_jupyter.cli.main import main
from sky_jupyter.cli.script_command import RunEnds
from sky_jupyter.errors import PoolError
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.registry.rows import PoolRow
from sky_jupyter.pool.runs.journal_pages import Page
from sky_jupyter.pool.runs.log_reader import newest
from tests.magics.notebook import Notebook, notebook
from tests.pool.pools import wait_until

NAME = "terminal"
CELL = """%%sky --detach
import os, time
rank = sky.instance_info().rank
print("before", rank, flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
print("after", rank)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("notebook")) as page:
        cell = page.run(f"%load_ext sky_jupyter\nimport sky_jupyter as sky\n%sky up --nodes 2 --keep --name {NAME}")
        assert cell.status == "ok", cell.outputs
        yield page
        main(["down", NAME])


@pytest.fixture
def access() -> Iterator[PoolAccess]:
    access = PoolAccess()
    yield access
    access.close()


@pytest.fixture
def going(page: Notebook, tmp_path: Path, access: PoolAccess) -> Iterator[Path]:
    """A file; once it is there, the cell that runs on the pool ends. Both ranks have printed a line."""
    go = tmp_path / "go"
    try:
        begin(page, access, go)
        yield go
    finally:
        go.touch()
        page.run("%sky wait")


def begin(page: Notebook, access: PoolAccess, go: Path) -> None:
    """Begin the cell, and wait until both ranks have printed."""
    assert page.run(CELL.format(go=str(go))).status == "ok"
    row = access.find(NAME)

    def both_have_begun() -> bool:
        _, found = output(["logs", NAME, "--json"])
        return ["before" in rank["text"] for rank in json.loads(found)["ranks"]] == [True, True]

    wait_until(lambda: access.runs(row) and "while not" in access.run(row).code)
    wait_until(lambda: len(LocalPages(row).homes(access.run(row).id)) == 2)
    wait_until(both_have_begun)


def output(words: list[str]) -> tuple[int, str]:
    """What the program prints, run in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "sky_jupyter", *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_what_a_notebook_runs_is_seen_and_stays_its_own(
    page: Notebook, going: Path, access: PoolAccess, capsys: pytest.CaptureFixture[str]
) -> None:
    before = access.find(NAME)
    found = asked(capsys, "pools")["pools"]
    (pool,) = [one for one in found if one["name"] == NAME]
    assert (pool["nodes"], pool["keep"], pool["state"]) == (2, True, "ready")
    assert f"process {before.owner}" in pool["manager"]["who"]
    (run,) = [one for one in asked(capsys, "runs", NAME)["runs"] if one["state"] == "running"]
    assert (run["id"], run["pool"]) == (pool["running"][0]["id"], NAME)
    assert [rank["text"] for rank in asked(capsys, "logs")["ranks"]] == ["before 0\n", "before 1\n"]
    assert [rank["rank"] for rank in asked(capsys, "logs", run["id"][:6], "--rank", "1")["ranks"]] == [1]
    assert "time.sleep" in asked(capsys, "where", NAME)["text"]
    assert main(["pools"]) == main(["runs"]) == main(["logs", NAME]) == 0
    told = capsys.readouterr().out
    assert f"{NAME}  {before.id}  2 local" in told
    assert "── rank 1\nbefore 1\n" in told
    after = access.find(NAME)
    assert (after.owner, after.generation) == (before.owner, before.generation)


SCRIPT = """
import os, sys
print(sys.argv[1:], os.environ["RANK"], flush=True)
sys.exit(3 if "--fail" in sys.argv and os.environ["RANK"] == "1" else 0)
"""


def test_a_script_runs_from_a_terminal_by_the_notebook_that_manages_the_pool(page: Notebook, tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SCRIPT)
    line = ["torchrun", "--pool", NAME, "--nnodes", "2", str(tmp_path / "says.py"), "{x}", "--epochs", "3"]
    status, found = output(line)
    assert status == 0, found
    assert sorted(found.splitlines()) == [f"{rank}: ['{{x}}', '--epochs', '3'] {rank}" for rank in (0, 1)]
    status, found = output(["run", "--pool", NAME, str(tmp_path / "says.py"), "--fail"])
    assert status == 3
    assert "1: ['--fail'] 1" in found
    assert "sky-jupyter: rank 1: says.py ended with exit code 3\n" in found
    page.run("%sky wait")


class Ends:
    """Pages of a run, whose rank 1 has failed long before the output ends."""

    def __init__(self, *ends: dict[str, Any]) -> None:
        output = [{"kind": "stream", "rank": 0, "name": "stdout", "text": f"{line}\n"} for line in range(300)]
        self.events = tuple({"seq": seq, **event} for seq, event in enumerate([*ends, *output]))

    def page(self, id: str, rank: int | None = None, start: int = 0, count: int = 1, **where: Any) -> list[Page]:
        """Return the events from there on."""
        end = len(self.events)
        first = start if start >= 0 else max(0, end + start)
        return [Page(0, first, end, end, True, self.events[first:])]

    def homes(self, id: str) -> dict[int, int]:
        """Return the ranks' node."""
        return {0: 0, 1: 0}


def test_a_scripts_status_is_of_the_rank_that_failed_however_much_others_print() -> None:
    failed = {"kind": "end", "rank": 1, "status": "error", "raised": {"state": {"exit_code": 7}}}
    interrupted = {"kind": "end", "rank": 0, "status": "interrupted"}
    well = {"kind": "end", "rank": 0, "status": "ok"}
    for ends, status in (((failed, interrupted), 7), ((well,), 1), ((well, {**well, "rank": 1}), 0)):
        source = RunEnds(Ends(*ends))
        assert len(list(follow(source, "run", None, pytest.fail))) == 300
        assert source.status([0, 1]) == status


def test_a_wrong_line_of_a_script_is_told_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchrun", "--tee", "3", "train.py"]) == 2
    assert "--tee cannot hold on a pool" in capsys.readouterr().err
    assert main(["torchrun", "missing.py"]) == 1
    assert "missing.py is not there" in capsys.readouterr().err
    assert main(["torchrun", "--help"]) == 0
    assert "--nproc-per-node" in capsys.readouterr().out


def test_a_follower_gets_each_line_as_it_is_printed_and_ends_with_the_run(going: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "sky_jupyter", "logs", "-f", NAME], stdout=subprocess.PIPE, text=True
    )
    with program:
        try:
            assert program.stdout is not None
            assert sorted([program.stdout.readline(), program.stdout.readline()]) == [
                "0: before 0\n",
                "1: before 1\n",
            ]
            going.touch()
            assert sorted(program.stdout.read().splitlines()) == ["0: after 0", "1: after 1"]
        except BaseException:
            # It would be waited for until the cell has ended.
            program.kill()
            raise
    assert program.returncode == 0


def test_a_kernel_brings_the_output_that_is_not_on_this_machine(going: Path, access: PoolAccess) -> None:
    row = access.find(NAME)
    run = access.run(row).id
    far = KernelPages(lambda content: access.ask(row, content))
    assert far.homes(run) == LocalPages(row).homes(run) == {0: 0, 1: 1}
    assert {rank: tail.text() for rank, tail in newest(far, run, [0, 1], 1000).items()} == {
        0: "before 0\n",
        1: "before 1\n",
    }
    pieces = list(follow(far, run, 10, going.touch))
    assert sorted(pieces) == [(0, "after 0\n"), (0, "before 0\n"), (1, "after 1\n"), (1, "before 1\n")]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["where", "terminul"], 1, "no pool 'terminul' is running; did you mean 'terminal'?; running: terminal"),
        (["logs", NAME, "--run", "none"], 1, "pool 'terminal' has no run 'none'"),
        (["logs", NAME, "--rank", "7"], 1, "has no such rank"),
        (["attach", NAME], 1, "is managed by"),
        (["down", "nothing"], 1, "there is no pool 'nothing'"),
        (["down"], 2, "the following arguments are required: POOL"),
        (["logs", "--last", "x"], 2, "'x' is not a number from 1 to 1000000"),
        (["logs", "--rank", "a"], 2, "'a' are not ranks"),
        (["dwon"], 2, "invalid choice"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    page: Notebook, capsys: pytest.CaptureFixture[str], words: list[str], status: int, told: str
) -> None:
    if words[:2] == ["logs", NAME]:
        page.run("%%sky\n1")
    if status == 2:
        with pytest.raises(SystemExit, match="2"):
            main(words)
    else:
        assert main(words) == status
    shown = capsys.readouterr().err
    assert told in shown
    assert len(shown.splitlines()) == 1 or status == 2
    assert "Traceback" not in shown


def test_a_connection_file_is_found_however_it_is_given(tmp_path: Path) -> None:
    for words in (["-f", "/a/k.json"], ["--f=/a/k.json"], ["x", "--IPKernelApp.connection_file=/a/k.json"]):
        assert kernel_requests.connection_file(["python", "-m", "ipykernel_launcher", *words]) == "/a/k.json"
    assert kernel_requests.connection_file(["python", "-f"]) is None
    assert kernel_requests.connection_of(os.getpid()) is None


def test_a_dead_notebooks_pool_is_looked_at_and_ended_and_goes_on_meanwhile(
    page: Notebook, access: PoolAccess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page.run("%%sky\nprint('of the dead')")
    go = tmp_path / "go"
    assert page.run(CELL.format(go=str(go))).status == "ok"
    # Its kernel is killed only when the registry has it.
    wait_until(lambda: "while not" in access.run(access.find(NAME)).code)
    page.manager.signal_kernel(signal.SIGKILL)
    wait_until(lambda: not access.find(NAME).owner_lives)
    assert [one["manager"] for one in asked(capsys, "pools")["pools"] if one["name"] == NAME] == [None]
    assert "ranks 0-1 sleep at Cell In[" in asked(capsys, "where", NAME)["text"]
    row: PoolRow = access.find(NAME)
    # An agent's look, unlike that of the program, attaches to no pool.
    with pytest.raises(PoolError, match=f"no notebook manages pool '{NAME}'"):
        access.where(row)
    assert access.find(NAME).generation == row.generation
    assert (row.owner, row.state) == (0, "ready")
    assert [rank["text"] for rank in asked(capsys, "logs", NAME)["ranks"]] == ["before 0\n", "before 1\n"]
    go.touch()
    assert main(["logs", "-f", NAME]) == 0
    assert "0: after 0\n" in capsys.readouterr().out
    (tmp_path / "says.py").write_text(SCRIPT)
    status, found = output(["torchrun", "--pool", NAME, str(tmp_path / "says.py"), "--fail"])
    assert status == 3, found
    assert "['--fail'] 0" in found
    assert not access.find(NAME).owner_lives
    assert asked(capsys, "down", NAME) == {"message": f"pool {NAME}: ended", "done": True}
    assert NAME not in [one["name"] for one in asked(capsys, "pools")["pools"]]


def test_a_scripts_pool_is_listed_and_who_has_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry()
    registry.intend("5c4197", "of-a-script", "local", 1, False)
    try:
        assert "of-a-script" in [one["name"] for one in asked(capsys, "pools")["pools"]]
        for verb in ("where", "down"):
            assert main([verb, "of-a-script"]) == 1
            told = capsys.readouterr().err
            assert f"process {os.getpid()}" in told
            assert "which is not a notebook's kernel" in told
    finally:
        registry.update("5c4197", "ended")
        registry.close()


@pytest.mark.slow
def test_attach_opens_an_ipython_that_manages_the_pool_and_lets_go_of_it(tmp_path: Path, access: PoolAccess) -> None:
    import pexpect

    with notebook(tmp_path) as page:
        page.run("%load_ext sky_jupyter\n%sky up --nodes 1 --keep --name left-behind")
        page.run("%%sky\nkept = 6 * 7")
    wait_until(lambda: not access.find("left-behind").owner_lives)
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "dumb"}
    terminal = pexpect.spawn(
        sys.executable, ["-m", "sky_jupyter", "attach", "left-behind"], env=environment, timeout=120, encoding="utf-8"
    )
    try:
        terminal.expect("1 local node attached")
        terminal.expect(r"In \[\d+\]: ")
        assert access.find("left-behind").owner == terminal.pid
        terminal.sendline("%sky pull kept")
        terminal.expect("kept: int from rank 0")
        terminal.sendline("exit")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
        row = access.find("left-behind")
        assert main(["down", "left-behind"]) == 0
    assert row.owner == 0


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)
