"""Accelerators of hosts: the same on all, as asked for, and shared out among the ranks.

No host here has any: `tests.node.smi` stands in for the driver's tool, and prints what that prints.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError
from sky_jupyter.node.system.gpus import VISIBLE
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import Accelerator, Image, PoolSpec
from tests.hosts.traces import wait_until_clean
from tests.hosts.world import Kind, World, hosts, skip_unless_hosts_run
from tests.node import smi
from tests.pool.pools import run

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]

TOOL = "/usr/local/bin/nvidia-smi"
SEEN = "import os; os.environ.get('CUDA_VISIBLE_DEVICES')"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three hosts; a login on the last one finds CUDA_VISIBLE_DEVICES set, as by its administrator."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, Kind(sshd=(f"SetEnv {VISIBLE}=6,7,4,5",)), python=True, warm=True) as made:
        yield made


@pytest.fixture(autouse=True)
def _config(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path / "config")))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield
    wait_until_clean(world)


def give(world: World, *kinds: Sequence[str]) -> None:
    """Have each host's driver say that it has these."""
    for host, mine in zip(world, kinds, strict=False):
        host.write(TOOL, smi.script(mine), mode=0o755)


def pool_of(*names: str, **options: Any) -> Pool:
    if "accelerator" in options:
        options["accelerator"] = Accelerator.parse(options["accelerator"])
    return Pool(PoolSpec(provider=sky.SSH(names, offline=True), nodes=len(names), **options))


def values(pool: Pool, *codes: str) -> list[list[Any]]:
    """What cells give on a pool that is started for them."""
    pool.start()
    try:
        return [run(pool, code).values for code in codes]
    finally:
        pool.down()


def refusal(*names: str, **options: Any) -> str:
    pool = pool_of(*names, **options)
    with pytest.raises(BootstrapError) as caught:
        pool.start()
    assert (pool.state, caught.value.phase) == ("ended", "system")
    return str(caught.value)


@pytest.mark.slow
def test_ranks_of_a_host_share_its_devices(world: World) -> None:
    give(world, [smi.A100] * 4, [smi.A100] * 4)
    info = "from sky_jupyter import instance_info\ni = instance_info(); i.accelerators, i.accelerator"
    seen, infos = values(pool_of("host0", "host1", ranks_per_node=2, accelerator="A100:4"), SEEN, info)
    assert seen == ["0,1", "2,3"] * 2
    assert infos == [(4, smi.A100)] * 4


@pytest.mark.slow
def test_what_a_host_has_chosen_narrows_the_set(world: World) -> None:
    give(world, [smi.A100] * 4, [smi.A100] * 4, [smi.A100] * 8)
    assert values(pool_of("host0", "host2", ranks_per_node=2), SEEN) == [["0,1", "2,3", "6,7", "4,5"]]


@pytest.mark.slow
def test_hosts_without_devices_are_as_before(world: World) -> None:
    give(world, [], [])
    assert values(pool_of("host0", "host1", ranks_per_node=3), SEEN) == [[None] * 6]


@pytest.mark.slow
def test_hosts_with_other_devices_are_refused_and_those_of_all_are_named(world: World) -> None:
    give(world, [smi.A100] * 4, [smi.A100] * 2)
    text = refusal("host0", "host1")
    assert "on node 1 (host1): it has other accelerators than host0" in text
    assert "host0: 4 x NVIDIA A100-SXM4-80GB; host1: 2 x NVIDIA A100-SXM4-80GB" in text
    give(world, [smi.A100] * 2, [smi.H100] * 2)
    assert "host0: 2 x NVIDIA A100-SXM4-80GB; host1: 2 x NVIDIA H100 80GB HBM3" in refusal("host0", "host1")
    give(world, [smi.A100] * 4, [smi.A100] * 2)
    chosen = Image(env={VISIBLE: "0,1"})
    assert values(pool_of("host0", "host1", image=chosen), SEEN) == [["0,1"] * 2]


def test_accelerators_that_are_asked_for_and_not_there_are_refused(world: World) -> None:
    give(world, [smi.A100] * 8, [])
    text = refusal("host0", "host1", accelerator="A100:8")
    assert "on node 1 (host1): the pool needs A100:8 on each node" in text
    assert "host0: 8 x NVIDIA A100-SXM4-80GB; host1: no accelerator that nvidia-smi shows" in text
    assert "the pool needs H100 on each node" in refusal("host0", accelerator="H100")


@pytest.mark.long  # waits 20 s for the driver
def test_a_driver_that_hangs_is_told_and_has_no_devices(world: World) -> None:
    world[0].write(TOOL, "#!/bin/sh\nsleep 1000\n", mode=0o755)
    pool, told = pool_of("host0"), []
    pool.start(lambda event: told.append(getattr(event, "text", "")))
    try:
        assert run(pool, SEEN).values == [None]
    finally:
        pool.down()
    assert any("its nvidia-smi does not answer" in line for line in told)
    give(world, [])


@pytest.mark.slow
def test_ranks_that_cannot_have_equal_shares_are_refused(world: World) -> None:
    give(world, [smi.A100] * 4)
    told = "3 ranks cannot share 4 x NVIDIA A100-SXM4-80GB equally: have 1 or 2 or 4 of them"
    assert told in refusal("host0", ranks_per_node=3)
    # Who wants processors alone says so.
    none = Image(env={VISIBLE: ""})
    assert values(pool_of("host0", ranks_per_node=3, image=none), SEEN) == [[""] * 3]
