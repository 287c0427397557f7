"""Forks of a process that has a pool: whoever is not the one that made it is told so at once, and harms nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.attacks import forks


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What each use of the program's pool came to."""
    done = subprocess.run([sys.executable, "-m", "tests.attacks.forks"], stdout=-1, stderr=-2, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stdout
    return {line["use"]: line for line in lines if "use" in line} | {"owner": lines[0]["owner"]}


@pytest.mark.parametrize("use", forks.uses(None))
def test_a_fork_that_uses_the_pool_is_told_whose_it_is(told: dict[str, Any], use: str) -> None:
    assert told[use]["error"] == "PoolError"
    whose = f"pool 'forked' belongs to process {told['owner']}; a forked process cannot use it"
    assert told[use]["text"].startswith(whose)


def test_a_fork_that_leaves_the_pool_does_not_end_it_and_has_pools_of_its_own(told: dict[str, Any]) -> None:
    assert [told[use].get("error") for use in ("close", "block")] == [None, None]
    assert [told[use].get("value") for use in ("own", "here")] == [42, 42], told
