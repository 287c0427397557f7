"""A host over SSH beside OpenSSH's own client: much data each way, one command, and a connection.

The host is an sshd of our own on a loopback port, so that nothing but the two clients differs. A login's
own files run with each command, and take their time for either client alike.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.machines.sshd import MISSING, Server, serve

from .measure import Figures, Options, Row, by_turns, clock, rows

OURS, THEIRS = "ours", "OpenSSH"
MEGABYTES, QUICK_MEGABYTES = 500, 64
COMMANDS = 10


def measure(options: Options) -> list[Row]:
    """Rows of ours beside OpenSSH's; none where there is no sshd."""
    missing = MISSING or ("" if importlib.util.find_spec("paramiko") else "needs paramiko (the `ssh` extra)")
    if missing:
        print(f"ssh: nothing is measured: {missing}")
        return []
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    whole = not options.quick
    with tempfile.TemporaryDirectory(prefix="bench-ssh-") as name:
        folder = Path(name)
        (folder / "data").write_bytes(os.urandom(1 << 20) * megabytes)
        with serve(folder / "sshd") as server, multiplexed(server, folder) as client:
            jobs = {OURS: lambda: ours(server, folder), THEIRS: lambda: theirs(client, folder)}
            samples = by_turns(jobs, options.times(5, quick=2))
    what = f"{megabytes} MB"
    return [
        *rows(f"{what} up", samples, "up", ours=OURS, best=1.2 if whole else None),
        *rows(f"{what} down", samples, "down", ours=OURS, best=1.2 if whole else None),
        *rows(
            "one command on a standing connection", samples, "exec", ours=OURS, unit="ms", best=1.5 if whole else None
        ),
        *rows("a connection and its first command", samples, "connect", ours=OURS, unit="ms"),
        *rows("a file of 10 KB on a standing connection", samples, "put", ours=OURS, unit="ms"),
    ]


def ours(server: Server, folder: Path) -> Figures:
    """A new connection, and what is done with it."""
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.machines.ssh import resolve_target as targets
    from sky_jupyter.machines.ssh.machine import SSHMachine

    known = folder / "known"
    known.write_text(server.known_line())
    plain = targets.resolve(f"127.0.0.1:{server.port}", keys=[str(server.key)], files=[])
    target: Any = replace(plain, known_hosts=(str(known),), system_known_hosts=(), agent=None)
    figures: Figures = {}
    with clock(figures, "connect", 1000):
        machine = SSHMachine.connect(target)
        machine.session.run("true")
    with machine:
        machine.put({folder / "first": b""})
        with clock(figures, "up"):
            file_transfer.upload(machine, folder / "data", folder / "up")
        with clock(figures, "down"):
            file_transfer.download(machine, folder / "up", folder / "down")
        with clock(figures, "exec", 1000 / COMMANDS):
            for _ in range(COMMANDS):
                machine.session.run("true")
        with clock(figures, "put", 1000 / COMMANDS):
            for number in range(COMMANDS):
                machine.put({folder / f"put{number}": bytes(10_000)})
    clear(folder)
    return figures


def theirs(client: list[str], folder: Path) -> Figures:
    """The same by ssh; its bulk data on connections of their own, as a shared one is slower."""
    figures: Figures = {}
    alone = [*client[:-1], "-S", "none", client[-1]]
    with clock(figures, "connect", 1000):
        subprocess.run([*alone, "true"], check=True)
    with clock(figures, "up"), open(folder / "data", "rb") as source:
        subprocess.run([*alone, f"cat >{folder / 'up'}"], stdin=source, check=True)
    with clock(figures, "down"), open(folder / "down", "wb") as target:
        subprocess.run([*alone, f"cat {folder / 'up'}"], stdin=subprocess.DEVNULL, stdout=target, check=True)
    with clock(figures, "exec", 1000 / COMMANDS):
        for _ in range(COMMANDS):
            subprocess.run([*client, "true"], stdin=subprocess.DEVNULL, check=True)
    with clock(figures, "put", 1000 / COMMANDS):
        for number in range(COMMANDS):
            subprocess.run([*client, f"cat >{folder / f'put{number}'}"], input=bytes(10_000), check=True)
    clear(folder)
    return figures


@contextlib.contextmanager
def multiplexed(server: Server, folder: Path) -> Iterator[list[str]]:
    """An ssh command that uses a standing connection."""
    known = folder / "known-to-ssh"
    known.write_text(server.known_line())
    options = ["-F", "none", "-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=none"]
    options += ["-o", "IdentitiesOnly=yes", "-i", str(server.key), "-p", str(server.port)]
    control = str(folder / "control")
    client = ["ssh", *options, "-S", control, "127.0.0.1"]
    subprocess.run(
        ["ssh", *options, "-M", "-S", control, "-f", "-N", "127.0.0.1"], check=True, stderr=subprocess.DEVNULL
    )
    try:
        yield client
    finally:
        subprocess.run(["ssh", *options, "-S", control, "-O", "exit", "127.0.0.1"], stderr=subprocess.DEVNULL)


def clear(folder: Path) -> None:
    """Remove what was written, so that each turn writes new files."""
    for name in ("up", "down", *(f"put{number}" for number in range(COMMANDS))):
        (folder / name).unlink(missing_ok=True)
