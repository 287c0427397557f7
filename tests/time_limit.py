"""Tests that have not begun by a given time are skipped: CI's time has an end, however slow its machine is.

A pytest plugin, which `tests/conftest.py` brings. ``SKY_TESTS_UNTIL`` is that time, in seconds since the epoch. What is
left out differs from run to run: `longest_first` then draws the order of the files.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "SKY_TESTS_UNTIL"
REASON = f"the time for tests is over ({VARIABLE}); python3 dev.py test --all has no limit"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test before its fixtures are made."""
    until = os.environ.get(VARIABLE)
    if until and time.time() > float(until):
        pytest.skip(REASON)
