"""A disk that is full under the journal: what runs goes on, is shown, and says what is not kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.magics.notebook import notebook
from tests.magics.test_reattach import LOAD, kill, name, the_pool, up
from tests.pool.test_faults import eventually
from tests.took import Took

__all__ = ["name"]
pytestmark = [pytest.mark.root]
NOTICE = "the disk of this node is full: output is shown, but not kept"
GAP = r"… [\d.]+ \w+ of output dropped \(the disk of this node is full\) …"


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a file system of its own with 16 MB, with a path that is short enough for sockets."""
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("needs root and mount, for a disk that can be filled")
    folder = Path(tempfile.mkdtemp(prefix="skydisk", dir="/tmp"))
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        folder.rmdir()
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        # Whatever still has a file open there.
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


CELL = """%%sky
import os, subprocess, sys, time
for i in range({count}):
    print('line', i)
    time.sleep(0.01)
print('to stderr', file=sys.stderr, flush=True)
time.sleep(0.3)
os.write(1, b'native ' * 1000 + b'\\n')
subprocess.run(['echo', 'of a subprocess'])
{end}"""


def lines(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^line (\d+)(?: \.+)?$", text, re.MULTILINE)]


def numbers(folder: Path) -> list[tuple[Path, list[int]]]:
    """The numbers of the events in the journals of each node."""
    paths = sorted(folder.glob("n*/journal/*.jsonl.0*"))
    return [(path, [int(number) for number in re.findall(r'"seq":(\d+)', path.read_text())]) for path in paths]


def test_a_run_on_a_full_disk_is_shown_whole_and_says_what_is_not_kept(
    tmp_path: Path, disk: Path, name: str, took: Took
) -> None:
    with notebook(tmp_path, TMPDIR=str(disk), XDG_RUNTIME_DIR="") as page:
        up(page, name)
        folder = Path(the_pool(name).folders[0])
        assert folder.parent == disk
        before = page.run(CELL.format(count=5, end="'before'"))
        assert NOTICE not in before.run
        filled: list[float] = []
        filler: list[Path] = []

        def in_the_middle(cell: Any) -> bool:
            if not filled and cell.displays and "line 20" in cell.run:
                filler.append(fill(disk))
                filled.append(time.monotonic())
            return False

        # The disk is full in the middle of a run, and from the start of the next.
        for count in (300, 100):
            cell = page.run(CELL.format(count=count, end="'the end'"), until=in_the_middle)
            assert filled
            assert cell.status == "ok", cell.outputs
            assert page.value("_sky.values") == ["the end", "the end"]
            for rank in (0, 1):
                text = page.value(f"_sky.stdout({rank})")
                assert lines(text) == list(range(count))
                assert "native native" in text
                assert "of a subprocess" in text
                assert page.value(f"_sky.stderr({rank})") == "to stderr\n"
                assert cell.run.count(f"node {rank}: {NOTICE}") == 1
        # Who comes later is shown what there is, and told of what there is not.
        runs = re.findall(r"^(\w{8}) ", page.run("%sky runs").stream(), re.MULTILINE)
        newest, middle, first = runs[:3]
        logged = page.run(f"%sky logs {middle} --rank 0").stream()
        assert lines(logged)[:20] == list(range(20))
        assert re.search(GAP, logged)
        assert lines(page.run(f"%sky logs {first} --rank 0").stream()) == list(range(5))
        assert re.search(GAP, page.run(f"%sky logs {newest} --rank 0").stream())
        # Large values come through memory.
        page.run("%%sky\n'v' * 2_000_000")
        assert page.value("[len(value) for value in _sky]") == [2_000_000, 2_000_000]
        # With room again, output is kept again.
        filler[0].unlink()
        page.run(CELL.format(count=50, end="'after'"))
        assert page.value("_sky.values") == ["after", "after"]
        logged = page.run("%sky logs --rank 1").stream()
        assert lines(logged) == list(range(50))
        assert not re.search(GAP, logged)
        for path, found in numbers(folder):
            assert len(found) == len(set(found)), path
        page.run("%sky down")
    took.row(
        "the disk under the journal is full", see="all output, and that it is not kept", kept="the run, its result"
    )


@pytest.mark.slow
def test_who_takes_a_run_up_on_a_full_disk_is_told_what_is_missing_and_sees_its_end(
    tmp_path: Path, disk: Path, name: str
) -> None:
    environment = {"TMPDIR": str(disk), "XDG_RUNTIME_DIR": ""}
    with notebook(tmp_path, **environment) as page:
        up(page, name)
        page.run("%%sky\nmine = 7")
        page.client.execute(
            "%%sky\nimport os, time\nfor i in range(100): print('line', i, '.' * 500); time.sleep(0.05)\n"
            f"while os.path.exists('{disk}/wait'): time.sleep(0.05)\n"
            "for i in range(100, 110): print('line', i); time.sleep(0.05)\nmine += 1; mine"
        )
        (disk / "wait").touch()
        folder = Path(the_pool(name).folders[0])
        assert eventually(lambda: sum('"line ' in path.read_text() for path in folder.glob("n*/journal/*.0*")) == 2)
        filler = fill(disk)
        time.sleep(1)
        kill(page)
    with notebook(tmp_path, **environment) as page:
        told = page.run(LOAD).stream()
        assert f"pool {name}: 2 local nodes, kept, runs" in told
        request = page.client.execute(f"%sky attach {name}")
        time.sleep(4)
        filler.unlink()
        # A moment later, it is tried again.
        time.sleep(1.5)
        (disk / "wait").unlink()
        while page.client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != request:
            pass
        assert page.value("_sky.values") == [8, 8]
        for rank in (0, 1):
            text = page.value(f"_sky.stdout({rank})")
            found = lines(text)
            assert found[0] == 0
            assert found[-10:] == list(range(100, 110))
            assert found == sorted(set(found))
            assert 10 < len(found) < 110
            assert len(re.findall(GAP, text)) == 1, text
        page.run("%%sky\nmine")
        assert page.value("_sky.values") == [8, 8]
        page.run("%sky down")


@pytest.mark.slow
def test_on_a_full_disk_ranks_are_replaced_and_a_pool_that_cannot_be_made_says_why(
    tmp_path: Path, disk: Path, name: str
) -> None:
    with notebook(tmp_path, TMPDIR=str(disk), XDG_RUNTIME_DIR="") as page:
        up(page, name)
        filler = fill(disk)
        killed = page.run(
            "%%sky\nimport os, signal, sky_jupyter as sky\n"
            "if sky.instance_info().rank: os.kill(os.getpid(), signal.SIGKILL)"
        )
        assert killed.status == "error"
        again = page.run("%%sky\n1")
        assert again.status == "ok", again.error
        assert page.value("_sky.values") == [1, 1]
        assert page.run("%sky restart").status == "ok"
        page.run("%%sky\n2")
        assert page.value("_sky.values") == [2, 2]
        refused = page.run("%sky up --name other")
        assert refused.error_name == "BootstrapError"
        assert "No space left on device; set TMPDIR to another disk" in refused.error
        assert len(list(disk.glob("sky-*"))) == 1
        filler.unlink()
        assert page.run("%sky up --name other").status == "ok"
        page.run("%sky down --name other")
        page.run(f"%sky down --name {name}")
        assert [str(path) for path in disk.rglob("sky-*")] == []
