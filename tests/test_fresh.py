"""One failed test of a module does not make those after it fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
from sky_jupyter.pool.lifecycle.state_machine import PoolState
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec

made = []

@pytest.fixture(scope="module")
def pool():
    pool = Pool(PoolSpec(provider=Local()))
    made.append(pool)
    yield pool
    pool.lifecycle.states.to(PoolState.BROKEN, "it has ended")

@pytest.fixture(scope="module")
def user(pool):
    yield [pool]

@pytest.fixture(scope="module")
def other():
    if len(made) < 4:
        made.append(None)
        raise OSError("not yet")
    yield "made at the second attempt"

def test_first(user): assert made == user

def test_that_shares_what_is_sound(user): assert made == user

def test_that_fails(user): assert not user

def test_after_it(pool, user): assert user == [pool] and made[1] is pool and made[0].broken

def test_that_breaks_the_pool_and_does_not_fail(pool): pool.lifecycle.states.to(PoolState.BROKEN, "its head is gone")

def test_after_that(pool, user): assert user == [pool] and made[2] is pool

def test_what_cannot_be_made(other): ...

def test_what_is_made_at_the_second_attempt(other): ...

def test_that_others_were_not_made_anew(other, pool): assert len(made) == 4 and made[2] is pool
"""


def test_a_shared_pool_is_made_anew_after_a_test_has_failed_or_where_it_is_broken(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-rA", "-p", "tests.fresh", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    lost = sorted(
        line.partition("::")[2].split()[0] for line in done.stdout.splitlines() if line[:6] in ("FAILED", "ERROR ")
    )
    assert lost == ["test_that_fails", "test_what_cannot_be_made"], done.stdout + done.stderr
    assert "7 passed" in done.stdout
