"""Random input: all of it is taken, or refused in words. ``SKY_FUZZ_SECONDS`` says how long each long one takes."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from tests.attacks.fuzz import TARGETS, trial

TRIALS = {"registry": 40}
SECONDS = float(os.environ.get("SKY_FUZZ_SECONDS", "60"))


@pytest.mark.parametrize("target", TARGETS)
def test_some_random_input_is_taken_or_refused_in_words(target: str, tmp_path: Path) -> None:
    for seed in range(TRIALS.get(target, 200)):
        trial(target, seed, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("target", TARGETS)
def test_much_random_input_is_taken_or_refused_in_words(target: str, tmp_path: Path) -> None:
    end = time.monotonic() + SECONDS
    for seed in itertools.count(1_000_000):
        trial(target, seed, tmp_path)
        if time.monotonic() > end:
            print(f"{target}: seeds 1000000 to {seed}")
            return
