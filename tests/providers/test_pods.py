"""Pools in pods, which only start commands and forward ports: their machines, and a provider of a third party."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.machines.base import Machine
from sky_jupyter.magics.parsing import parse
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers.base import Provider
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS, is_clean, links, wait_until
from tests.providers.conformance import MachineConformance, ProviderConformance
from tests.providers.distribution import install
from tests.providers.pod import API, Pod, Pods, announce

pytestmark = MARKS


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two pods: hosts that are entered by their namespaces, and whose sshd nobody talks to."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    api = tmp_path_factory.mktemp("api") / "pods.json"
    with hosts(2, python=True, warm=True) as world, pytest.MonkeyPatch.context() as patch:
        announce(world, api)
        patch.setenv(API, str(api))
        # No SSH is to be had.
        patch.setenv("SKY_SSH_CONFIG", "/nonexistent")
        yield world


class TestPod(MachineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, pods: World) -> Iterator[Machine]:
        machine = Pod("pod-0", json.loads(Path(os.environ[API]).read_text())["pod-0"])
        yield machine
        machine.close()


class TestPods(ProviderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, pods: World) -> Provider:
        return Pods()


@pytest.mark.slow
def test_a_pool_of_a_third_partys_provider_runs_in_pods_without_ssh_and_link(
    pods: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    spec = parse("--provider pods --nodes 2", cell=True).spec()
    assert (spec.provider, spec.nodes) == (Pods(), 2)
    pool = Pool(spec)
    pool.start()
    try:
        result = run(
            pool, "import socket\nimport sky_jupyter as sky\nprint(socket.gethostname())\nsky.instance_info().rank"
        )
        assert [result.stdout(rank) for rank in (0, 1)] == ["host0\n", "host1\n"]
        assert run(pool, "len(large)", {"large": bytes(9 << 20)}).values == [9 << 20] * 2
        assert links(pool.id) == []
        (tmp_path / "up").write_text("sent")
        pool.put(tmp_path / "up", "up")
        assert run(pool, "open('up').read()").values == ["sent"] * 2
        pool.get("up", tmp_path / "down", [1])
        assert [path.read_text() for path in tmp_path.glob("down*") if path.is_file()] == ["sent"]
    finally:
        pool.down()
    assert pool.unsure == []
    wait_until(lambda: is_clean(pods[0]) and is_clean(pods[1]))
