"""What became of each test of a run, written down for `dev.py`, which tries failed tests once more.

A pytest plugin, which `dev.py` brings with ``-p``; the variable `FILE` names the file. With pytest-xdist the process
that starts the workers writes it. The cache of `--last-failed` would not do: crashes look like failures there, and a
run that was broken off leaves what an earlier one wrote.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = "SKY_OUTCOMES"


class Outcomes:
    """Names of the tests that failed and passed, of files whose end did, and which crashes there were."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.passed: set[str] = set()
        # In their order.
        self.failed: dict[str, None] = {}
        self.crashes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):
            # pytest-xdist makes this one of a worker that is gone.
            self.crashes.append(str(report.longrepr))
        elif report.failed:
            # What a file's fixtures find at its end, such as leaks, may be another of its tests' doing.
            self.failed[report.nodeid if report.when != "teardown" else report.nodeid.partition("::")[0]] = None
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """Note a worker that ended, of pytest-xdist, if that was no orderly end."""
        if error is not None:
            self.crashes.append(f"a worker ended: {error}")

    def pytest_sessionfinish(self) -> None:
        told = {
            "failed": list(self.failed),
            "passed": sorted(self.passed - self.failed.keys()),
            "crashes": self.crashes,
        }
        self.file.write_text(json.dumps(told), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run, in the process that was started."""
    if (file := os.environ.get(FILE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(file).absolute()), "sky-outcomes")
