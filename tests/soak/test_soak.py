"""A soak: minutes of random cells, errors, interrupts, kills, restarts and reattachments on four ranks.

``SKY_SOAK_SECONDS`` says how long (60), ``SKY_SOAK_SEED`` which one: always the same unless given.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.world import needs
from tests.programs import ROOT

needs("torch")

SECONDS = float(os.environ.get("SKY_SOAK_SECONDS") or 60)
SEED = int(os.environ.get("SKY_SOAK_SEED") or 20_261_122)
# Beside its time: the pool's start, warming up, and the end, on a machine that does other things too.
PATIENCE = SECONDS * 2 + 300
_FAREWELL = 60
_TOLD = 12_000


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The driver, under way; it ends its pool before it ends."""
    options = ["--seconds", str(SECONDS), "--seed", str(SEED), "--folder", str(tmp_path)]
    with (tmp_path / "driver.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.driver", *options], cwd=ROOT, stdout=log, stderr=log, text=True
        )
    yield process
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 2 * _FAREWELL)
def test_a_pool_outlives_whatever_happens_and_loses_keeps_and_leaves_nothing(
    driver: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = f"SKY_SOAK_SEED={SEED} SKY_SOAK_SECONDS={SECONDS:g} python3 dev.py test tests/soak"
    with capsys.disabled():
        print(f"\nsoak: {again}", flush=True)
    try:
        status = driver.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        driver.terminate()
        status = driver.wait(_FAREWELL)
    told = (tmp_path / "driver.log").read_text(errors="replace")
    if status:
        pytest.fail(f"repeat it with\n  {again}\n{told[-_TOLD:]}", pytrace=False)
    print(told[-_TOLD:])
