"""A tunnel of the link while a cell holds the GIL of the notebook's process, beside the same while that is idle.

A busy cell takes a processor too: where there are few, the tunnel's ends miss that one. So a process
that has nothing to do with the link is busy in a third job, for what is the processor's part in it.

On loopback nothing but the processors limits the tunnel, so one that is missing shows: there the budget
is for the third job. A good line of a home is the other half: a host of its own, behind a link of `RATE`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.hosts.world import Kind, World, hosts, missing
from tests.machines.sshd import MISSING, serve

from .measure import Figures, Options, Row, by_turns, rows

BUSY, IDLE, BESIDE = "a busy kernel", "an idle kernel", "an idle kernel, another process busy"
MEGABYTES, QUICK_MEGABYTES = 256, 64
RATE, RATE_MEGABYTES = "200mbit", 64
_SCRIPT = Path(__file__).with_name("scripts") / "tunnel.py"


def measure(options: Options) -> list[Row]:
    """Rows of the busy kernel beside the idle one; none where there is no sshd."""
    lacks = MISSING or ("" if importlib.util.find_spec("paramiko") else "needs paramiko (the `ssh` extra)")
    if lacks:
        print(f"link: nothing is measured: {lacks}")
        return []
    with tempfile.TemporaryDirectory(prefix="bench-link-") as name:
        folder = Path(name)
        with serve(folder / "sshd") as server:
            (folder / "known").write_text(server.known_line())
            here = [sys.executable, str(_SCRIPT), "far"]
            plain = (f"127.0.0.1:{server.port}", {"keys": [str(server.key)], "files": []})
            with tunnel(folder, *plain, far=here) as port:
                found = compared(port, "a tunnel", QUICK_MEGABYTES if options.quick else MEGABYTES, BESIDE, options)
        if lacks := missing():
            print(f"link: nothing is measured at {RATE}: {lacks}")
            return found
        with hosts(Kind(python=True)) as world:
            world.link(rate=RATE)
            with tunnel(folder, "host0", {"files": [_config(world, folder)]}, far=_far(world)) as port:
                return found + compared(port, f"a tunnel at {RATE}", RATE_MEGABYTES, IDLE, options)


def _config(world: World, folder: Path) -> Path:
    """What OpenSSH is told of the hosts; the keys that it knows are where `tunnel` looks."""
    (folder / "known").write_text(world.known_hosts)
    return world.ssh_config()


def _far(world: World) -> list[str]:
    """The command that runs the far end on the host; it goes when the host does."""
    world[0].write("/tmp/tunnel.py", _SCRIPT.read_text())
    return ["ssh", "-F", str(world.ssh_config()), "host0", "python3", "/tmp/tunnel.py", "far"]


def compared(port: int, what: str, megabytes: int, against: str, options: Options) -> list[Row]:
    """The three jobs by turns, through one tunnel; the budget is ``against`` one of them."""
    with meter(port, megabytes << 20) as ask:
        jobs = {BUSY: lambda: busy(ask), IDLE: lambda: idle(ask), BESIDE: lambda: beside(ask)}
        samples = by_turns(jobs, options.times(9, quick=3))
    found = []
    for text, figure, unit in [
        (f"{megabytes} MB up {what}", "up", "s"),
        (f"{megabytes} MB down {what}", "down", "s"),
        (f"100 bytes there and back, {what}", "median", "ms"),
        ("the same, 95 of 100 within", "p95", "ms"),
    ]:
        for peer in (IDLE, BESIDE):
            limit = 1.1 if peer == against and not options.quick else None
            found += rows(text, samples, figure, ours=BUSY, unit=unit, peers=[peer], best=limit)
    return found


@contextlib.contextmanager
def tunnel(folder: Path, host: str, how: dict[str, Any], *, far: Sequence[str]) -> Iterator[int]:
    """The local port of a tunnel to the far end; this process is the link's owner."""
    from sky_jupyter.machines.link.client import Link
    from sky_jupyter.machines.ssh import resolve_target as targets

    plain = targets.resolve(host, **how)
    target: Any = replace(plain, known_hosts=(str(folder / "known"),), system_known_hosts=(), agent=None)
    other = subprocess.Popen(far, stdout=subprocess.PIPE, text=True)
    link = Link.start(folder / "link")
    try:
        assert other.stdout is not None
        yield link.tunnel(link.connect(target), "127.0.0.1", int(other.stdout.readline())).port
    finally:
        link.end()
        other.kill()
        other.wait()


@contextlib.contextmanager
def meter(port: int, size: int) -> Iterator[Callable[[], threading.Thread]]:
    """What starts a measurement in the near end; the thread that it gives has the figures when it ends."""
    near = subprocess.Popen(
        [sys.executable, str(_SCRIPT), "near", str(port), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask() -> threading.Thread:
        assert near.stdin is not None
        near.stdin.write("\n")
        near.stdin.flush()
        return _Reader(near)

    try:
        yield ask
    finally:
        near.kill()
        near.wait()


class _Reader(threading.Thread):
    """Waits for the figures."""

    def __init__(self, near: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._near, self.figures = near, Figures()
        self.start()

    def run(self) -> None:
        assert self._near.stdout is not None
        self.figures = json.loads(self._near.stdout.readline())


def busy(ask: Callable[[], Any]) -> Figures:
    """This process computes, and gives the GIL away only when it is asked to."""
    reader = ask()
    while reader.is_alive():
        sum(range(10_000))
    return dict(reader.figures)


def idle(ask: Callable[[], Any]) -> Figures:
    """This process waits."""
    reader = ask()
    reader.join()
    return dict(reader.figures)


def beside(ask: Callable[[], Any]) -> Figures:
    """This process waits, and another one computes."""
    other = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"])
    try:
        return idle(ask)
    finally:
        other.kill()
        other.wait()
