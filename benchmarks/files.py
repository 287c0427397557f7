"""A file to the four hosts of a pool over a slow link, beside scp to each of them, all at once.

The hosts are machines of namespaces, and the link between them and this machine is slowed down with tc;
among themselves they are as fast as the machine is. Needs root.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hosts.world import World, hosts, missing

from .measure import Figures, Options, Row, by_turns, clock, rows

OURS, THEIRS = "ours", "scp to each host"
HOSTS = 4
RATE = "100mbit"
MEGABYTES, QUICK_MEGABYTES = 50, 20


def measure(options: Options) -> list[Row]:
    """Rows of ours beside scp; none where no hosts can be made."""
    why = missing() or ("" if importlib.util.find_spec("paramiko") else "needs paramiko (the `ssh` extra)")
    if why:
        print(f"files: nothing is measured: needs {why}")
        return []
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    with tempfile.TemporaryDirectory(prefix="bench-files-") as name, hosts(HOSTS, python=True) as world:
        folder = Path(name)
        with pool_on(world, folder) as pool:
            world.link(rate=RATE)
            jobs = {
                OURS: lambda: ours(world, pool, fresh(folder, megabytes)),
                THEIRS: lambda: theirs(world, folder / "config", fresh(folder, megabytes)),
            }
            samples = by_turns(jobs, options.times(3, quick=1))
    what = f"{megabytes} MB to {HOSTS} hosts at {RATE}"
    # In megabytes of 2 ** 20, as the file's size: more than it by a tenth would be sent twice in part.
    return [
        *rows(what, samples, "put", ours=OURS, best=None if options.quick else 0.4),
        *rows(f"{what}, on the wire", samples, "wire", ours=OURS, unit="MB", most=1.1 * megabytes),
    ]


@contextlib.contextmanager
def pool_on(world: World, folder: Path) -> Iterator[Any]:
    """A started pool on all hosts."""
    import sky_jupyter as sky
    from sky_jupyter.pool.pool import Pool
    from sky_jupyter.spec.pool_spec import PoolSpec

    os.environ["SKY_SSH_CONFIG"] = str(world.ssh_config(folder / "config"))
    os.environ.pop("SSH_AUTH_SOCK", None)
    names = [host.name for host in world]
    pool = Pool(PoolSpec(provider=sky.SSH(names, offline=True), nodes=len(names)))
    pool.start()
    try:
        yield pool
    finally:
        pool.down()
        del os.environ["SKY_SSH_CONFIG"]


def fresh(folder: Path, megabytes: int) -> Path:
    """A file that no host has."""
    path = folder / "data"
    path.write_bytes(os.urandom(1 << 20) * megabytes)
    return path


def ours(world: World, pool: Any, path: Path) -> Figures:
    """`pool.put`, until all hosts have it."""
    figures: Figures = {}
    with wire(world, figures), clock(figures, "put"):
        pool.put(path, "by-us")
    return figures


def theirs(world: World, config: Path, path: Path) -> Figures:
    """One scp a host, all at the same time."""
    figures: Figures = {}
    with wire(world, figures), clock(figures, "put"):
        copies = [subprocess.Popen(["scp", "-q", "-F", str(config), str(path), f"{h.name}:by-scp"]) for h in world]
        if any(copy.wait() for copy in copies):
            raise RuntimeError("scp failed")
    return figures


@contextlib.contextmanager
def wire(world: World, figures: Figures) -> Iterator[None]:
    """Count the megabytes that cross the link."""
    before = sum(host.wire_bytes() for host in world)
    yield
    figures["wire"] = (sum(host.wire_bytes() for host in world) - before) / (1 << 20)
