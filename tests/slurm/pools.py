"""Pools of a test's cluster, notebooks that are killed with one, and what may be left of them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sky_jupyter as sky
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import sys, time, sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import run
provider = sky.Slurm(login=sys.argv[1], time="10m", offline=True)
pool = Pool(PoolSpec(provider=provider, nodes=2, name="left", idle_timeout=float(sys.argv[2])))
pool.start()
run(pool, "mine = 7")
print("ready", pool.id, flush=True)
time.sleep(1000)
"""


def provider(cluster: Cluster, **options: Any) -> sky.Slurm:
    """As a user would have it who logs in from a laptop."""
    return sky.Slurm(**{"login": cluster.login.name, "time": "10m", "offline": True, **options})


@contextlib.contextmanager
def slurm_pool(
    cluster: Cluster, *, plugins: tuple[Plugin, ...] = (), name: str = "tried", ranks_per_node: int = 1, **options: Any
) -> Iterator[Pool]:
    """A started pool, ended afterwards; `options` are the provider's."""
    place = provider(cluster, **options)
    pool = Pool(PoolSpec(provider=place, nodes=2, ranks_per_node=ranks_per_node, name=name, plugins=plugins))
    pool.start()
    try:
        yield pool
    finally:
        pool.down()


def a_dead_owner(cluster: Cluster, lease: float) -> str:
    """The id of a pool whose notebook was killed."""
    command = [sys.executable, "-c", textwrap.dedent(OWNER), cluster.login.name, str(lease)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    try:
        word, id = owner.stdout.readline().split()
        assert word == "ready"
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    return id


def nothing_is_left(cluster: Cluster) -> None:
    """Wait until no job, process or file of a pool is there, but what docs/slurm.md says to stay."""
    try:
        cluster.wait("nothing is left", lambda: cluster.left() == [])
    except Exception as error:
        raise AssertionError(f"left: {cluster.left()}\n{error}") from None
