"""Whatever happens to a start of machines at AWS, nothing of it is left, and each machine is in the bill."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.pool.registry import cost_rows
from sky_jupyter.pool.registry.registry import Registry
from tests.providers import aws_world, starts
from tests.providers.aws_world import AwsWorld

# So many starts, several beside each other.
SLOW, LONG, BESIDE = 6, 1000, 4


@pytest.fixture
def aws() -> Iterator[AwsWorld]:
    with aws_world.light() as made:
        yield made


@pytest.fixture
def registry(aws: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    made = Registry()
    yield made
    made.close()


def strike(aws: AwsWorld, registry: Registry, folder: Path, seed: int, count: int) -> None:
    """Do the starts, sweep, and see that nothing is left that costs money."""
    aws.configure(capacity=10 * count)
    starts.do_all(folder, registry.path, seed, count, BESIDE, "tests.providers.aws_starts")
    aws.calm()
    starts.sweep_up(registry)
    # The security group is kept: one a VPC and user.
    left = aws.left()
    assert left.pop("groups") <= 1
    assert {name: number for name, number in left.items() if number} == {}
    made = {one["id"] for one in aws.instances()}
    assert len(made) > count / 2
    billed = {row.machine for row in cost_rows.every(registry)}
    assert made - billed == set()
    assert [row for row in cost_rows.every(registry) if row.ended is None or row.dollars is None] == []


@pytest.mark.slow
def test_nothing_is_left_at_aws_whatever_happens_to_a_start(aws: AwsWorld, registry: Registry, tmp_path: Path) -> None:
    strike(aws, registry, tmp_path, int(os.environ.get("SKY_STARTS_SEED") or 2026), SLOW)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_is_left_at_aws_after_many_starts(aws: AwsWorld, registry: Registry, tmp_path: Path) -> None:
    seed = int(os.environ.get("SKY_STARTS_SEED") or random.SystemRandom().randrange(1 << 30))
    strike(aws, registry, tmp_path, seed, int(os.environ.get("SKY_STARTS") or LONG))
