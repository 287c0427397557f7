"""Instances of AWS are connected to over the pool's link, as soon as they have booted, by keys of the pool's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("boto3")
from sky_jupyter.errors import MachineError
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.ssh import pool_keys
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import AWS
from sky_jupyter.providers.base import ConnectionSession
from sky_jupyter.providers.provisioning_types import Offer, Order
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import World, hosts
from tests.pool.pools import run
from tests.pool.remote import wait_until
from tests.providers import aws_world
from tests.providers.aws_hosts import HostedAws
from tests.providers.aws_world import REGION

pytestmark = [pytest.mark.root, pytest.mark.slow]
POOL, ZONE = "0123abcd", "us-east-1b"
KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hosts(0) as made:
        yield made


@pytest.fixture
def aws(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostedAws]:
    pytest.importorskip("paramiko", reason="needs paramiko (the `ssh` extra)")
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "state" / "registry.sqlite"))
    # What is of the user's is neither read nor written.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "config").write_text("Host *\n  ProxyCommand false\n  Port 9\n")
    with aws_world.hosts(world) as made:
        yield made


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link.start(tmp_path / "link") as made:
        yield made
        made.end()


def test_machines_are_verified_at_first_contact_and_have_host_keys_of_their_own_afterwards(
    aws: HostedAws, link: Link, tmp_path: Path
) -> None:
    provider = AWS()
    offer = Offer("t3.medium", 0.1, region=REGION, zones=(ZONE,), market="on-demand")
    ids = provider.create(PoolSpec(provider=provider, nodes=2), 2, Order(POOL, "t0", offer, ZONE, 2e9))
    keys = pool_keys.make(POOL)
    told: list[str] = []
    session = ConnectionSession(open_link=lambda: link, tell=told.append)
    machines = provider.connect(ids, session)
    assert told == []
    assert [machine.name for machine in machines] == list(ids)
    assert [machine.address for machine in machines] == [aws.host(id).private for id in ids]
    assert [machine.run("whoami; sudo -n whoami").out.split() for machine in machines] == [[b"ubuntu", b"root"]] * 2
    shown = [aws.host(id).read(f"{KEY_FILE}.pub").decode().split()[:2] for id in ids]
    assert [[key.split() for key in keys.trusted(id)] for id in ids] == [[one] for one in shown]
    assert len({*map(tuple, shown), tuple(keys.first_host[1].split())}) == 3
    assert [path.name for path in (tmp_path / "home" / ".ssh").iterdir()] == ["config"]

    # A later notebook connects to them by what is recorded, and to one that has another address by asking EC2.
    facts = {id: machine.facts() for id, machine in zip(ids, machines, strict=True)}
    for machine in machines:
        machine.close()
    moved = {**facts[ids[1]], "target": {**facts[ids[1]]["target"], "host": "192.0.2.1"}}
    again = provider.connect(ids, ConnectionSession(open_link=lambda: link, known={**facts, ids[1]: moved}))
    assert [machine.run("hostname -i").status for machine in again] == [0, 0]
    assert [machine.address for machine in again] == [aws.host(id).private for id in ids]
    assert provider.describe(ids)[0].addresses[0] == facts[ids[0]]["target"]["host"]

    for machine in again:
        machine.close()
    provider.destroy(ids)
    with pytest.raises(MachineError, match=ids[0]):
        provider.connect(ids[:1], session)
    provider.forget(POOL)
    wait_until(lambda: not aws.alive())
    assert os.listdir(tmp_path / "state" / "machine_keys") == []


START_AND_VANISH = """
import os
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import AWS
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import run

pool = Pool(PoolSpec(provider=AWS(instance_type="t3.medium"), nodes=2, name="kept", keep=True))
pool.start()
run(pool, "x = 41")
os._exit(0)
"""


def test_another_notebook_attaches_without_asking_aws_and_the_pool_grows_and_ends(
    aws: HostedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", START_AND_VANISH], check=True, env=environment)
    registry = Registry()
    try:
        [row] = registry.pools()
    finally:
        registry.close()
    before = len(aws.calls())
    # An attachment needs no log-in.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "expired")
    pool = Pool.attach(row)
    try:
        assert run(pool, "x + 1").values == [42, 42]
        assert [call["action"] for call in aws.calls()[before:] if call["action"] != "DescribeInstances"] == []
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", aws_world.CALLER)
        pool.resize(3)
        assert run(pool, "import socket; socket.gethostname()").values == [aws.host(id).name for id in pool.ids]
    finally:
        pool.down()
    assert pool.unended == []
    left = aws.left()
    assert left.pop("groups") == 1
    assert not any(left.values())
    assert list((tmp_path / "state" / "machine_keys").iterdir()) == []
