"""Pools whose nodes have IPv6 addresses only."""

from __future__ import annotations

import socket

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.pool.hosts.reachability import place
from tests.plugins.world import needs
from tests.pool.pools import local_pool, run

REDUCE = {
    "jax": "import jax, jax.numpy as jnp\nfrom jax.experimental.multihost_utils import process_allgather\n"
    "float(process_allgather(jnp.ones(1) * (rank + 1)).sum())",
    "torch": "import torch, torch.distributed as dist\nt = torch.ones(1) * (rank + 1); dist.all_reduce(t); float(t)",
}
RANK = "import sky_jupyter as sky\nrank = sky.instance_info().rank\n"


@pytest.fixture(autouse=True)
def _only_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback ({error}); enable it: sysctl net.ipv6.conf.lo.disable_ipv6=0")
    monkeypatch.setattr(LocalMachine, "address", "::1")


def test_a_pool_on_an_ipv6_address_runs_cells_calls_and_dask() -> None:
    with local_pool() as pool:
        assert run(pool, RANK + "rank").values == [0, 1]
        assert place(pool.scheduler_there)[0] == "::1"
        host = psutil.Process(pool.hosts[0].command.identity[0])
        children = [host, *host.children(recursive=True)]
        listening = {c.laddr.ip for p in children for c in p.net_connections("tcp") if c.status == "LISTEN"}
        assert "::1" in listening
        assert not listening & {"::", "0.0.0.0"}
        assert pool.lifecycle.workers.client().submit(abs, -2).result() == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCE)
def test_frameworks_meet_on_ipv6_addresses(name: str) -> None:
    needs(name)
    with local_pool(plugins=(getattr(sky.plugins, name)(),)) as pool:
        assert run(pool, RANK + REDUCE[name]).values == [3.0, 3.0]
