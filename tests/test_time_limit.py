"""Tests that begin after a given time are skipped, and say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import time_limit


def test_tests_that_begin_too_late_are_skipped_before_their_fixtures_are_made(tmp_path: Path) -> None:
    shutil.copy(time_limit.__file__, tmp_path / "limit.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_late.py").write_text(
        "import pytest\n@pytest.fixture\ndef costly(): raise AssertionError\ndef test_late(costly): ...\n"
    )

    def run(until: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "limit", "-p", "no:cacheprovider", "-rs"]
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": "", time_limit.VARIABLE: until}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout

    status, printed = run("1")
    assert status == 0
    assert "1 skipped" in printed
    assert time_limit.REASON in " ".join(printed.split())
    for no_limit in ("", "99999999999"):
        assert run(no_limit)[0] == 1
