"""The end of a run of the tests: what was left out and why, and which command runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.left_out import help_for

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
def test_slow(n): ...

@pytest.mark.slow
@pytest.mark.long
def test_long(): ...

@pytest.mark.skipif(True, reason="needs root, for a disk that can be filled")
def test_skipped(): ...

def test_without_a_package(): pytest.importorskip("no_such_package")

def test_daily(): ...
"""


@pytest.mark.parametrize(
    ("workers", "which", "left_out"),
    [
        ("2", "not slow and not long", "3 left out: marked `slow`: python3 dev.py test --slow"),
        ("0", "slow and not long", "3 left out: the daily run: python3 dev.py test"),
    ],
)
def test_a_run_tells_at_its_end_what_it_left_out_and_how_to_have_it_run(
    tmp_path: Path, workers: str, which: str, left_out: str
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    long: x\n")
    options = ["-p", "tests.left_out", "-p", "no:cacheprovider", "-n", workers, "-m", which]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.partition("left out and skipped")[2].splitlines()
    for line in (left_out, "1 left out: marked `long`: python3 dev.py test --long"):
        assert [one for one in told if one.startswith(line)], done.stdout
    skipped = sorted(line for line in told if " skipped: " in line)
    assert len(skipped) == (2 if which.startswith("not slow") else 0)
    if skipped:
        assert skipped[0].startswith("1 skipped: could not import 'no_such_package'")
        assert skipped[0].endswith("[python3 dev.py test installs it]")
        assert "rootless.py" in skipped[1]


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("needs paramiko (the `ssh` extra)", "python3 dev.py test installs it"),
        ("needs the extra keras", "python3 dev.py test installs it"),
        ("needs py-spy", "python3 dev.py test installs it"),
        ("hosts need root and nft", "as root: apt-get install debootstrap iproute2 nftables openssh-client"),
        ("needs Chromium (Debian: apt-get install chromium fonts-dejavu)", ""),
    ],
)
def test_a_reason_for_a_skip_has_a_command_or_names_one(reason: str, command: str) -> None:
    assert help_for(reason) == command
