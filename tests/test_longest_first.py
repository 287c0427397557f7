"""The order of files in a run of the tests, and the table that it comes from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import longest_first
from tests.longest_first import merge


def test_the_longest_file_of_a_tier_begins_and_each_keeps_its_own_order(tmp_path: Path) -> None:
    """In a project of three files, with a copy of the plugin that has a table of its own."""
    shutil.copy(longest_first.__file__, tmp_path / "order.py")
    (tmp_path / "durations.json").write_text(
        json.dumps({"test_a.py": {"slow": 90}, "test_b.py": {"daily": 20}, "test_c.py": {"daily": 40, "slow": 10}})
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n")
    for name in "abc":
        text = "import pytest\ndef test_2(): ...\ndef test_1(): ...\n@pytest.mark.slow\ndef test_slow(): ...\n"
        (tmp_path / f"test_{name}.py").write_text(text)

    def order(which: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-p", "order", "-p", "no:cacheprovider", "-v", "-m", which]
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": "", "SKY_DURATIONS": ""}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split()[0] for line in done.stdout.splitlines() if "::" in line]

    assert order("not slow") == [f"test_{name}.py::test_{number}" for name in "cba" for number in (2, 1)]
    assert order("slow") == [f"test_{name}.py::test_slow" for name in "acb"]


def test_what_a_run_took_replaces_what_was_known_of_its_tier() -> None:
    known = {"a": {"daily": 30.0, "slow": 100.0}, "b": {"daily": 12.0}, "c": {"daily": 50.0}}
    took = {"a": {"slow": 20.4}, "b": {"daily": 3.0}, "d": {"daily": 11.0}}
    assert merge(known, took) == {"a": {"daily": 30, "slow": 20}, "c": {"daily": 50}, "d": {"daily": 11}}
    assert list(merge(known, took)) == ["a", "c", "d"]
