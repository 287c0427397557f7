"""Pools on two hosts of a world, for tests, and what may be left of them there and here."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.conftest import pool_folders
from tests.hosts.world import Host

MARKS = [
    pytest.mark.root,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]
PATIENCE = 90.0


def provider(**options: Any) -> sky.SSH:
    return sky.SSH(**{"hosts": ["host0", "host1"], "offline": True, **options})


@contextlib.contextmanager
def ssh_pool(listener: Callable[[Any], None] = lambda event: None, **options: Any) -> Iterator[Pool]:
    """A started pool on both hosts, ended afterwards."""
    pool = Pool(PoolSpec(**{"provider": provider(), "nodes": 2, **options}))
    pool.start(listener)
    try:
        yield pool
    finally:
        pool.down()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def left(host: Host) -> tuple[list[Any], list[str], set[int]]:
    """What a pool has left on a host: processes, files outside of the cache, ports."""
    files = [path for path in host.files() if "/sky-" in path and "/.cache/sky_jupyter/" not in path]
    return host.processes("ada"), files, host.ports() - {host.port}


def is_clean(host: Host) -> bool:
    return left(host) == ([], [], set())


def links(pool: str) -> list[psutil.Process]:
    """The link processes of a pool."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        ours = "sky_jupyter.machines.link" in command and f"sky-{pool}-" in command
        if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def nothing_here(pool: str) -> bool:
    """Whether neither a link nor a folder of the pool is on this machine."""
    return not links(pool) and not pool_folders(pool)
