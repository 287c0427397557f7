"""Machines that are bought are never lost: whatever happens to a start, and whoever dies in it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sky_jupyter.pool.registry import orders
from sky_jupyter.pool.registry.machine_sweep import sweep_machines
from sky_jupyter.pool.registry.registry import Registry, sweep
from tests.providers import starts
from tests.providers.cloud import Cloud
from tests.providers.starts import Start

# So many starts, several beside each other.
DAILY, LONG, BESIDE = 60, 1000, 4
_SWEEPS = 5


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    made = Registry()
    yield made
    made.close()


def seed() -> int:
    """Of the starts: SKY_STARTS_SEED, or another one each time."""
    return int(os.environ.get("SKY_STARTS_SEED") or random.SystemRandom().randrange(1 << 30))


def sweep_all(registry: Registry) -> None:
    """Sweep as the server's reaper does, again and again, until nothing is left to sweep."""
    for _ in range(_SWEEPS):
        sweep(registry)
        sweep_machines(registry)
        if not orders.every(registry):
            return


def strike(registry: Registry, folder: Path, seed: int, count: int) -> None:
    """Do the starts, sweep, and see that no machine is left and that none was bought twice."""
    print(f"SKY_STARTS_SEED={seed}")
    ways = ThreadPoolExecutor(BESIDE)

    def several(way: int) -> list[str]:
        with starts.running(folder, registry.path, seed) as running:
            return [running.run(number) for number in range(way, count, BESIDE)]

    with ways:
        for ended in ways.map(several, range(BESIDE)):
            print(*ended, sep="\n")
    for number in range(count):
        Cloud(Start.of(seed, number).store(folder)).spare_the_sweeper()
    sweep_all(registry)
    left, twice = [], []
    for number in range(count):
        start = Start.of(seed, number)
        cloud = Cloud(start.store(folder))
        if cloud.alive():
            left.append((start, [cloud.calls(pool) for pool in cloud.pools()]))
        # A start is one pool, and has never more machines than nodes, however often it asks for them.
        twice += [(start, cloud.calls(pool)) for pool in cloud.pools() if cloud.most_at_once(pool) > start.nodes]
    assert left == []
    assert twice == []
    assert [row.name for row in registry.pools()] == []
    assert orders.every(registry) == []


def test_no_machine_is_left_or_bought_twice_whatever_happens_to_a_start(registry: Registry, tmp_path: Path) -> None:
    strike(registry, tmp_path, seed(), DAILY)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_no_machine_is_left_or_bought_twice_in_a_thousand_starts(registry: Registry, tmp_path: Path) -> None:
    strike(registry, tmp_path, seed(), LONG)
