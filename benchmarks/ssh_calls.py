"""Calls to two hosts over SSH, beside the network's own round trip: 100 bytes to a program there and back, by ssh -L.

The hosts are machines of namespaces, and a relay delays what goes there and back. Needs root.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.hosts.world import hosts, missing

from .measure import Figures, Options, Row, by_turns, rows
from .peer_script import Script, running

OURS, PEER = "ours", "100 bytes there and back"
JOBS = {"one": "f(x) >> pool", "all": "f(x) @ pool", "futures": "f(x) > pool, 200 in flight, each"}
# Seconds that a packet takes longer, each way.
DELAYS = {"": 0.0, " at 25 ms each way": 0.025}
TIMES, QUICK_TIMES = 50, 10
_PORT = 7007
_ECHO = f"""
import socket
with socket.create_server(("127.0.0.1", {_PORT})) as server:
    print("ready", flush=True)
    made = server.accept()[0]
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := made.recv(1 << 16):
        made.sendall(data)
"""


def measure(options: Options) -> list[Row]:
    """Rows of ours beside the round trip; none where no hosts can be made."""
    why = missing() or ("" if importlib.util.find_spec("paramiko") else "paramiko (the `ssh` extra)")
    if why:
        print(f"ssh-calls: nothing is measured: needs {why}")
        return []
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-calls-") as name, hosts(2, python=True) as world:
        config = world.ssh_config(Path(name) / "config")
        settings = {"SKY_SSH_CONFIG": str(config), "SSH_AUTH_SOCK": "", "SKY_BENCHMARK_HOSTS": "host0,host1"}
        with (
            mock.patch.dict(os.environ, settings),
            running(Path(sys.executable), "sky_calls.py") as script,
            echo(config) as connection,
        ):
            script.start(2)
            for text, delay in DELAYS.items():
                world.link(delay=delay)
                times = options.times(TIMES, quick=QUICK_TIMES)
                jobs = {
                    OURS: lambda times=times: ours(script, times),
                    PEER: lambda times=times: trips(connection, times),
                }
                by_turns(jobs, 1)
                found += compared(text, by_turns(jobs, options.times(5, quick=2)), is_slow=delay > 0)
            script.end()
    return found


def compared(text: str, samples: dict[str, dict[str, list[float]]], *, is_slow: bool) -> list[Row]:
    """Return the rows; where the network is slow, a call is to take one round trip more than its own at most."""
    found = []
    for job, what in JOBS.items():
        best = 2.0 if is_slow and job != "futures" else None
        found += rows(f"{what}{text}", samples, job, ours=OURS, unit="ms", best=best)
    return found


def ours(script: Script, times: int) -> Figures:
    """Milliseconds a call."""
    figures = {job: script.do(job, times=times, size=0) / times * 1e3 for job in ("one", "all")}
    return {**figures, "futures": script.do("futures", times=200, size=0) / 200 * 1e3}


def trips(connection: socket.socket, times: int) -> Figures:
    """Milliseconds a round trip, for each job of ours."""
    began = time.perf_counter()
    for _ in range(times):
        connection.sendall(bytes(100))
        left = 100
        while left:
            left -= len(connection.recv(left))
    return dict.fromkeys(JOBS, (time.perf_counter() - began) / times * 1e3)


@contextlib.contextmanager
def echo(config: Path) -> Iterator[socket.socket]:
    """A connection through OpenSSH's tunnel to a program on the first host that sends all back."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["ssh", "-F", str(config), "-L", f"127.0.0.1:{port}:127.0.0.1:{_PORT}", "host0", "python3", "-u", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as far:
        assert far.stdin is not None
        assert far.stdout is not None
        far.stdin.write(_ECHO)
        far.stdin.close()
        try:
            far.stdout.readline()
            with socket.create_connection(("127.0.0.1", port)) as made:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield made
        finally:
            far.kill()
