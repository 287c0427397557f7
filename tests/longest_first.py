"""The files of tests that take longest begin first: else one worker has such a file at the end, and the others nothing.

A pytest plugin, which `tests/conftest.py` brings. `durations.json` says what files of ten seconds and more took, their
daily and their slow tests. With ``SKY_DURATIONS=1`` in the environment, a run writes down there what its files took.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("durations.json")
TIERS = ("daily", "slow")
# What takes less is not worth a line.
LEAST = 10.0

Durations = dict[str, dict[str, float]]


def read(path: Path = TABLE) -> Durations:
    """Return the seconds of each file by tier."""
    found: Durations = json.loads(path.read_text(encoding="utf-8"))
    return found


def merge(known: Mapping[str, Mapping[str, float]], took: Mapping[str, Mapping[str, float]]) -> Durations:
    """Return what is known, with what was measured in its place; short ones are left out, the longest come first."""
    merged = {}
    for file in {**known, **took}:
        tiers = {**known.get(file, {}), **took.get(file, {})}
        if kept := {tier: round(tiers[tier]) for tier in TIERS if tiers.get(tier, 0) >= LEAST}:
            merged[file] = kept
    return dict(sorted(merged.items(), key=lambda row: (-sum(row[1].values()), row[0])))


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Recorder:
    """Sums up what the tests of each file take, and writes it down at the end."""

    def __init__(self) -> None:
        self.took: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = "slow" if "slow" in report.keywords else "daily"
        self.took[file_of(report.nodeid)][tier] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = {file: tiers for file, tiers in read().items() if TABLE.parents[1].joinpath(file).exists()}
        TABLE.write_text(json.dumps(merge(known, self.took), indent=1) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record where that is asked for; the workers of xdist tell the process that started them."""
    if os.environ.get("SKY_DURATIONS") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files of what is selected, and leave the order within each: xdist deals them out as they come."""
    durations = read()
    seconds: dict[str, float] = {}
    for item in items:
        file, tier = file_of(item.nodeid), "slow" if item.get_closest_marker("slow") else "daily"
        seconds[file] = max(seconds.get(file, 0), durations.get(file, {}).get(tier, 0))
    items.sort(key=lambda item: -seconds[file_of(item.nodeid)])
