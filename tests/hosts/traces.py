"""What a pool leaves behind: on its hosts, and on the machine of the notebook."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.hosts.world import Host

PATIENCE = 60.0
CACHE = "/.cache/sky_jupyter/"


def left(host: Host) -> tuple[list[Any], list[str], set[int]]:
    """What is on a host that the next pool does not use again: processes, files, ports."""
    files = [path for path in host.files() if "/sky-" in path and CACHE not in path]
    # What is half made has such a name until it is whole.
    files += [path for path in host.files() if CACHE in path and (".tmp-" in path or ".probe-" in path)]
    return host.processes("ada"), files, host.ports() - {host.port}


def wait_until_clean(hosts: Iterable[Host]) -> None:
    """Wait until nothing is left on hosts; those that are powered off are left out."""
    for host in hosts:
        end = time.monotonic() + PATIENCE
        while host.pid and (found := left(host)) != ([], [], set()):
            assert time.monotonic() < end, f"left on {host.name}: {found}"
            time.sleep(0.1)


@dataclass
class Here:
    """What this process and its children have on this machine."""

    folders: set[Path] = field(default_factory=set)
    children: dict[int, str] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    threads: set[threading.Thread] = field(default_factory=set)

    @classmethod
    def now(cls) -> Here:
        """As it is."""
        own = psutil.Process()
        places = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")}
        places |= {Path(os.environ["XDG_RUNTIME_DIR"])} if os.environ.get("XDG_RUNTIME_DIR") else set()
        found = cls(threads=set(threading.enumerate()))
        for place in filter(Path.is_dir, places):
            # (Worlds of hosts are the tests' own, and others' pools have other owners.)
            found.folders |= {path for path in place.glob("sky-*") if not path.name.startswith("sky-hosts-")}
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if os.readlink(f"/proc/{process.pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
                    continue  # a host's
                command = " ".join(process.cmdline())
                # Worlds of hosts are the tests' own; Python's tracker is one for as long as this process lives.
                if "tests/hosts/" not in command and "resource_tracker" not in command:
                    found.children[process.pid] = command
        found.ports = {one.laddr.port for one in own.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        return found

    def more_than(self, before: Here) -> list[str]:
        """What there is besides what was there before, in words."""
        own = [
            thread.name for thread in self.threads - before.threads if thread.name.startswith(("sky-ssh", "Thread-"))
        ]
        return [
            *(f"process {pid}: {self.children[pid]}" for pid in self.children.keys() - before.children.keys()),
            *(f"port {port}" for port in self.ports - before.ports),
            *(f"thread {name}" for name in own),
        ]


@contextlib.contextmanager
def nothing_left(hosts: Iterable[Host], pools: list[str]) -> Iterator[None]:
    """Fail the test where what is done inside leaves anything on hosts, or here; ``pools`` are the pools' ids."""
    before = Here.now()
    yield
    wait_until_clean(hosts)
    end = time.monotonic() + PATIENCE
    while True:
        now = Here.now()
        found = now.more_than(before)
        found += [str(path) for path in now.folders - before.folders for id in pools if f"sky-{id}" in path.name]
        if not found:
            return
        if time.monotonic() > end:
            pytest.fail(f"left on this machine: {', '.join(found)}")
        time.sleep(0.1)
