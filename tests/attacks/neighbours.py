"""What another user of a machine finds of a pool: its sockets and files, and a process of that user's to try them."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.pool.pool import Pool

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user: run the tests as root")

# Runs as the other user, with what any system has. It says of each place what it got there.
_NEIGHBOUR = r"""
import json, os, socket, sys

def knock(kind, place):
    plain = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
    with plain:
        plain.settimeout(5)
        plain.connect(place if kind == "unix" else tuple(place))
        # A greeting of ZeroMQ's, a request of HTTP's: who takes either answers.
        plain.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03GET / HTTP/1.1\r\n\r\n" + b"\0" * 64)
        return plain.recv(1000).hex()

def read(kind, place):
    if os.path.isdir(place):
        return repr(os.listdir(place))
    with open(place, "rb") as file:
        return file.read(100).hex()

said = []
for kind, place in json.load(sys.stdin):
    try:
        said.append(["got", (read if kind == "file" else knock)(kind, place)])
    except OSError as error:
        said.append([type(error).__name__, str(error)])
json.dump(said, sys.stdout)
"""


def family(pool: Pool) -> list[psutil.Process]:
    """All processes of a local pool."""
    host = psutil.Process(pool.hosts[0].command.process.pid)  # type: ignore[attr-defined]
    return [host, *host.children(recursive=True)]


def role(process: psutil.Process) -> str:
    """Which process of a pool this is, by the log that it writes: ``scheduler``, ``agent``, ``rank1``, ``host``..."""
    for descriptor in (2, 1):
        target = os.readlink(f"/proc/{process.pid}/fd/{descriptor}")
        if target.endswith(".log"):
            return Path(target).stem
    # A rank puts a pipe in the place of its outputs.
    logs = {Path(file.path).stem for file in process.open_files() if file.path.endswith(".log")}
    return next((name for name in sorted(logs) if name.startswith("rank")), "unknown")


def listening(pool: Pool) -> dict[tuple[str, int], str]:
    """Where the pool's processes take connections or datagrams of the network, and which process does."""
    found = {}
    for process in family(pool):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                found[(connection.laddr.ip, connection.laddr.port)] = role(process)
    return found


def sockets(pool: Pool) -> set[str]:
    """The names of the unix sockets that the pool's processes listen on, abstract ones with an ``@``."""
    return {
        connection.laddr
        for process in family(pool)
        for connection in process.net_connections("unix")
        if connection.laddr
    }


def files(pool: Pool) -> list[Path]:
    """The pool's folders and all that is in them."""
    folders = {Path(host.folder) for host in pool.hosts} | {Path(host.blobs) for host in pool.hosts}
    return sorted({path for folder in folders for path in (folder, *folder.rglob("*"))})


def tried_by_neighbour(places: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, str]]:
    """What the user ``nobody`` gets at each place, of which the kind is ``tcp``, ``unix`` or ``file``."""
    places = list(places)
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        # One that other users may run, whatever folder the tests' own is in.
        [next(path for path in ("/usr/bin/python3", sys.executable) if os.path.exists(path)), "-c", _NEIGHBOUR],
        input=json.dumps(places),
        capture_output=True,
        text=True,
        cwd="/",
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        check=True,
    )
    said = json.loads(done.stdout)
    return {f"{kind} {place}": tuple(one) for (kind, place), one in zip(places, said, strict=True)}
