"""Steps of a job use the folder of their own waiter, and nothing that another user of the node has put there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sky_jupyter.machines.batch import waiter


def said(script: str) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", script], input="", capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def a_folder(path: Path) -> Path:
    path.mkdir()
    (path / "ready").touch()
    (path / "power").write_text("5\n")
    (path / "env").write_text("echo stolen\n")
    return path


@pytest.fixture(params=["link", "owner"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder where that of a job would be, which somebody else has made."""
    path = tmp_path / "sky-job-7.0.n1"
    if request.param == "link":
        path.symlink_to(a_folder(tmp_path / "elsewhere"))
    elif os.geteuid():
        pytest.skip("needs root")
    else:
        os.chown(a_folder(path), 65534, 65534)
    return path


def test_a_folder_that_somebody_else_has_made_is_not_used(theirs: Path) -> None:
    assert said(waiter.ready(str(theirs), "7.0", "n1")) == (7, f"{theirs} belongs to somebody else\n")
    assert said(waiter.within(str(theirs), "echo mine")) == (0, "mine\n")
    assert said(waiter.handover(str(theirs)))[0] == 1
    assert said(waiter.ending(str(theirs))) == (0, "")
    assert (theirs / "power").read_text() == "5\n"


def test_a_later_start_of_somebody_else_s_does_not_end_this_one(theirs: Path) -> None:
    later = theirs.rename(theirs.with_name("sky-job-7.9.n1"))
    own = a_folder(theirs.with_name("sky-job-7.1.n1"))
    (own / "ready").unlink()
    script = waiter.ready(str(own), "7.1", "n1").replace("sleep 0.1", f"touch '{own}/ready'")
    assert said(script) == (0, "sky-ready\n")
    assert later.exists()


@pytest.mark.parametrize(("left", "expected"), [("7.0.n1", 0), ("7.2.n1", 8), ("7.10.n1", 8), ("7.2.m.n1", 0)])
def test_only_a_later_start_ends_an_earlier_one(left: str, expected: int, tmp_path: Path) -> None:
    a_folder(tmp_path / f"sky-job-{left}")
    own = a_folder(tmp_path / "sky-job-7.1.n1")
    (own / "ready").unlink()
    script = waiter.ready(str(own), "7.1", "n1").replace("sleep 0.1", f"touch '{own}/ready'")
    assert said(script)[0] == expected
    assert said(waiter.within(str(own), "echo mine")) == (0, "stolen\nmine\n")


def test_a_node_that_is_given_up_before_its_waiter_has_made_the_power_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tools = tmp_path / "sky-job-7.0.n1", tmp_path / "bin"
    tools.mkdir()
    # What the waiter does just before it makes that file.
    (tools / "mkfifo").write_text(f'#!/bin/sh\n{shutil.which("mkfifo")} "$@" && echo 0 > {folder}/power\n')
    (tools / "mkfifo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    status, text = said(waiter.script(None, str(folder), "exec cat"))
    assert (status, "its pool has ended" in text) == (0, True), text
    assert not folder.exists()
