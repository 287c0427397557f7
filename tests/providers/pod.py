"""Machines that can only start a command with pipes, and connect to a port: what the API of a cluster offers of a pod.

They have no SSH and no link. A pod is a host of `tests.hosts` that is entered by its namespaces: that stands for the
exec API, and a helper in its network for the port-forward API. The provider is found as a third party's is, by an
entry point; its file has all of what another distribution would have.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sky_jupyter.errors import MachineError, ProvisionError
from sky_jupyter.machines.ssh.shell_machine import ShellMachine
from sky_jupyter.providers.base import ConnectionSession, MachineRecord, Offer, Order
from sky_jupyter.spec.pool_spec import PoolSpec

if TYPE_CHECKING:
    from tests.hosts.world import Host

# The API's address, so to speak: a JSON file with each pod's first process, address and user.
API = "SKY_TEST_PODS"
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"}
_PORT_FORWARD = """
import os, socket, sys, threading
try:
    far = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
except OSError as error:
    sys.exit(str(error))
far.settimeout(None)
os.write(1, b"+")
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


class Exec:
    """A command in a pod with its three streams; `Pipes` of `ShellMachine`, and `Stream` of forwards."""

    def __init__(self, argv: Sequence[str], env: dict[str, str]) -> None:
        # (As sockets, so that who waits for a stream is woken when it is closed.)
        pairs = [socket.socketpair() for _ in range(3)]
        self._in, self._out, self._err = (near for near, _ in pairs)
        try:
            far = [other for _, other in pairs]
            self.process = subprocess.Popen(
                list(argv), stdin=far[0], stdout=far[1], stderr=far[2], env=env, start_new_session=True
            )
        finally:
            for _, other in pairs:
                other.close()
        self.closed = False
        threading.Thread(target=self.process.wait, name="pod-exec", daemon=True).start()

    def recv(self, size: int, /) -> bytes:
        return self._out.recv(size)

    def recv_stderr(self, size: int, /) -> bytes:
        return self._err.recv(size)

    def send_all(self, data: bytes, /) -> None:
        self._in.sendall(data)

    def shutdown_write(self) -> None:
        self._in.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True
        for near in (self._in, self._out, self._err):
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
            near.close()


class Pod(ShellMachine):
    """One pod."""

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        self.name, self.key, self.address = name, f"pod {name}", str(facts["address"])
        self._enter = ["nsenter", f"--target={facts['pid']}"]
        # The container's own variables: each exec has them.
        self._env = {"HOME": f"/home/{facts['user']}", "USER": str(facts["user"]), **facts.get("env", {})}
        self._ids = [f"--setuid={facts['uid']}", f"--setgid={facts['uid']}"]
        if self.open_shell("true").process.wait():
            raise MachineError(name, "closed", "there is no such pod any more")

    def open_shell(self, command: str) -> Exec:
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", *self._ids]
        # Each exec is a session of its own.
        argv = [*self._enter, *spaces, "--", "setsid", "--wait", "/bin/sh", "-c", f"cd; {command}"]
        return Exec(argv, {**_ENVIRONMENT, **self._env})

    def status(self, pipes: Exec) -> int:
        return pipes.process.wait()

    def open_stream(self, host: str, port: int) -> Exec:
        made = Exec([*self._enter, "--net", sys.executable, "-c", _PORT_FORWARD, host, str(port)], dict(os.environ))
        if made.recv(1) != b"+":
            why = made.recv_stderr(1000).decode(errors="replace").strip()
            made.close()
            raise MachineError(str(self.name), "refused", f"{host}:{port} cannot be reached: {why}")
        return made


def announce(hosts: Iterable[Host], api: Path, **more: Any) -> None:
    """Have hosts be pods of the API at this path; ``more`` are facts of all of them, such as ``uid`` and ``env``."""
    found = {
        f"pod-{number}": {"pid": host.pid, "address": host.private, "user": host.users[0], "uid": 1000, **more}
        for number, host in enumerate(hosts)
    }
    api.write_text(json.dumps(found))


def _pods() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(Path(os.environ[API]).read_text())
    return found


@dataclass(frozen=True)
class Pods:
    """Nodes in pods that are there.

    Parameters
    ----------
    names : tuple of str
        Those of the pods, in the order of the nodes; all unless given.
    image_packages : bool
        Whether what their image has installed counts.
    shared_memory : int
        Bytes that they were asked to have in /dev/shm.
    """

    names: tuple[str, ...] = ()
    image_packages: bool = False
    shared_memory: int = 0

    kind = "pods"
    provisions = False
    survives_manager = True
    offline = True
    supported_options = ()
    notice = ""

    def default_nodes(self) -> int:
        return len(self._all())

    def _all(self) -> tuple[str, ...]:
        return self.names or tuple(sorted(_pods()))

    def offers(self, spec: PoolSpec) -> list[Offer]:
        return [Offer("pods", 0.0)]

    def create(self, spec: PoolSpec, count: int, order: Order) -> list[str]:
        names = self._all()
        if count > len(names):
            raise ProvisionError(f"there are {len(names)} pods, and {count} are wanted")
        return list(names[:count])

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        return []

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        return [MachineRecord(id, "running" if id in _pods() else "unknown") for id in ids]

    def destroy(self, ids: Sequence[str]) -> None:
        """They were there before."""

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> list[Pod]:
        pods = _pods()
        for id in ids:
            if id not in pods:
                raise MachineError(id, "closed", "there is no such pod")
        return [Pod(id, pods[id]) for id in ids]

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        return [name for name in self._all() if name not in ids]

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> Pods:
        chosen = (*ids, *add)
        return replace(self, names=(*chosen, *(name for name in self._all() if name not in (*chosen, *remove))))

    def __str__(self) -> str:
        return "pods"
