"""A notebook that is killed at any moment leaves nothing on its hosts, or the next one is told of it and ends it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks import kills
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.remote import MARKS

pytestmark = MARKS
SEED = int(os.environ.get("SKY_SEED", "5"))
MANY = int(os.environ.get("SKY_KILLS", "40"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        config = made.ssh_config(tmp_path_factory.mktemp("kills") / "config")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SKY_SSH_CONFIG", str(config))
            yield made


def killed(world: World, registry: Path, kill: kills.Kill) -> str:
    """Kill a notebook, and see that nothing is left that nobody is told of, or could end; what came of it, in words."""
    with kills.victim(kill.act, registry) as notebook:
        pool = kill.strike(notebook)
    told = said = ""
    if kill.comes:
        with kills.next_notebook(registry) as following:
            told = following.told
            if kills.NAME in told:
                said = following.down()
                assert "Error" not in said or "there is no pool" in said, (kill, told, said)
            took = kills.until_nothing_remains(world, pool)
    else:
        took = kills.until_nothing_remains(world, pool)
    return f"{kill}: gone after {took:.1f} s; told: {told.strip()!r}; said: {said.strip()!r}"


@pytest.mark.slow
@pytest.mark.parametrize("act", ["start", "grow", "down"])
def test_a_notebook_that_is_killed_leaves_nothing_that_nobody_can_end(world: World, tmp_path: Path, act: str) -> None:
    kill = kills.at_random(random.Random(f"{SEED} {act}"), act)
    print(SEED, killed(world, tmp_path / "registry.sqlite", kill))


@pytest.mark.long  # some seconds each
@pytest.mark.timeout(7200)
def test_notebooks_that_are_killed_at_random_leave_nothing_that_nobody_can_end(world: World, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    for number in range(MANY):
        print(SEED, number, killed(world, tmp_path / "registry.sqlite", kills.at_random(chance)), flush=True)
