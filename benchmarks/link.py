"""A tunnel of the link while a cell holds the GIL of the notebook's process, beside the same while that is idle.

A busy cell takes a processor too: where there are few, the tunnel's ends miss that one. So a process
that has nothing to do with the link is busy in a third job, for what is the processor's part in it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.machines.sshd import MISSING, Server, serve

from .measure import Figures, Options, Row, by_turns, rows

BUSY, IDLE, BESIDE = "a busy kernel", "an idle kernel", "an idle kernel, another process busy"
MEGABYTES, QUICK_MEGABYTES = 256, 64
_SCRIPT = Path(__file__).with_name("scripts") / "tunnel.py"


def measure(options: Options) -> list[Row]:
    """Rows of the busy kernel beside the idle one; none where there is no sshd."""
    missing = MISSING or ("" if importlib.util.find_spec("paramiko") else "needs paramiko (the `ssh` extra)")
    if missing:
        print(f"link: nothing is measured: {missing}")
        return []
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    with tempfile.TemporaryDirectory(prefix="bench-link-") as name, serve(Path(name) / "sshd") as server:
        with tunnel(server, Path(name)) as port, meter(port, megabytes << 20) as ask:
            jobs = {BUSY: lambda: busy(ask), IDLE: lambda: idle(ask), BESIDE: lambda: beside(ask)}
            samples = by_turns(jobs, options.times(9, quick=3))
    limit = None if options.quick else 1.1
    found = []
    for what, figure, unit in [
        (f"{megabytes} MB up a tunnel", "up", "s"),
        (f"{megabytes} MB down a tunnel", "down", "s"),
        ("100 bytes there and back", "median", "ms"),
        ("the same, 95 of 100 within", "p95", "ms"),
    ]:
        found += rows(what, samples, figure, ours=BUSY, unit=unit, peers=[IDLE], best=limit)
        found += rows(what, samples, figure, ours=BUSY, unit=unit, peers=[BESIDE])
    return found


@contextlib.contextmanager
def tunnel(server: Server, folder: Path) -> Iterator[int]:
    """The local port of a tunnel to the far end; this process is the link's owner."""
    from sky_jupyter.machines.link.client import Link
    from sky_jupyter.machines.ssh import targets

    known = folder / "known"
    known.write_text(server.known_line())
    plain = targets.resolve(f"127.0.0.1:{server.port}", keys=[str(server.key)], files=[])
    target: Any = replace(plain, known_hosts=(str(known),), system_known_hosts=(), agent=None)
    far = subprocess.Popen([sys.executable, str(_SCRIPT), "far"], stdout=subprocess.PIPE, text=True)
    link = Link.start(folder / "link")
    try:
        assert far.stdout is not None
        yield link.tunnel(link.connect(target), "127.0.0.1", int(far.stdout.readline())).port
    finally:
        link.end()
        far.kill()
        far.wait()


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
