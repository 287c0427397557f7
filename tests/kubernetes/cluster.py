"""A real Kubernetes to test on: API server, scheduler, kubelet and containers of its own, with Trainer's kinds.

    with cluster.running() as cluster:
        space = cluster.space("people")
        provider = sky.Kubeflow(namespace=space.name, kubeconfig=space.kubeconfig("ada"))

The API server, the garbage collector, the scheduler, the kubelet, containerd and runc are Kubernetes 1.20's own and
Debian's; Trainer's, JobSet's and the Job's controllers are stood in for by `controllers`. Pods are on a network that
only the cluster reaches, as with real ones; there is no kube-proxy (use pods' addresses), and names are those of pods
alone. The laptop is the process that calls: it reaches the API server, by a door for each namespace that can be cut.

One cluster is shared by all processes of a run of tests, and ends with it. Needs root, and the programs that
``python3 dev.py kubernetes`` builds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hosts import world
from tests.kubernetes import authority, binaries, containers, keeper, warden
from tests.kubernetes.rest import Rest
from tests.kubernetes.space import Space

FOREVER = 1e12
ROOT = Path(__file__).resolve().parents[2]


class ClusterError(Exception):
    """The cluster could not be made, or did not do what it was asked to; the message says why."""


class Cluster:
    """A cluster that runs; made by `running` or `of_run`.

    Attributes
    ----------
    folder : Path
        What its programs write, with their ``logs``.
    network : str
        What the addresses begin with at which the laptop reaches it.
    rest : Rest
        The API server, as its administrator.
    """

    def __init__(self, folder: Path, network: str) -> None:
        self.folder, self.network = folder, network
        settings = json.loads((folder / "settings.json").read_text())
        self._admin: str = settings["admin"]
        self.authority = folder / "pki" / "ca.crt"
        self.rest = Rest(self.server(), self.authority, self._admin)

    def server(self, address: str = "", port: int = keeper.PORT) -> str:
        return f"https://{address or f'{self.network}.254'}:{port}"

    def space(self, name: str = "", *, labels: dict[str, str] | None = None) -> Space:
        """Make a namespace, in which the user ``ada`` may do what `docs/kubeflow.md` says that she has to.

        Parameters
        ----------
        name : str
            Its name; drawn unless given.
        labels : dict of str
            Its labels; see `admission` for what they change.
        """
        name = name or f"test-{secrets.token_hex(4)}"
        self.rest.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        return Space(self, name, self.ask("open_door"))

    def kubectl(self, *words: str) -> str:
        """What kubectl prints, as the administrator."""
        return self.run_kubectl(self.admin_config(), *words)

    def run_kubectl(self, config: Path, *words: str) -> str:
        program = binaries.place() / "bin" / "kubectl"
        command = [str(program), "--kubeconfig", str(config), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def admin_config(self) -> Path:
        """A kubeconfig file of its administrator."""
        path = self.folder / "laptop-admin.conf"
        if not path.exists():
            half = path.with_suffix(f".{os.getpid()}")
            half.touch(mode=0o600)
            half.write_text(authority.kubeconfig(self.server(), self.authority, {"token": self._admin}))
            half.rename(path)
        return path

    def give_token(self, user: str, *groups: str, lasts: float = FOREVER) -> str:
        """A token with which the API server knows this user, for so many seconds."""
        token = f"{user}-{secrets.token_urlsafe()}"
        self._change_tokens({token: {"user": user, "groups": list(groups), "until": time.time() + lasts}})
        return token

    def expire(self, token: str) -> None:
        """The API server knows a token no longer."""
        self._change_tokens({token: None})

    def _change_tokens(self, changes: dict[str, dict[str, Any] | None]) -> None:
        path = self.folder / "tokens.json"
        with (self.folder / "tokens.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = json.loads(path.read_text()) if path.exists() else {}
            known.update(changes)
            half = path.with_suffix(".half")
            half.touch(mode=0o600)
            half.write_text(json.dumps({token: one for token, one in known.items() if one}))
            half.rename(path)

    def ask(self, do: str, *arguments: object) -> Any:
        """Have the keeper do something; see `keeper.Keeper`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "keeper.sock"))
            connection.sendall(json.dumps({"do": do, "with": arguments}).encode() + b"\n")
            with connection.makefile() as answers:
                line = answers.readline()
        if not line:
            raise ClusterError(f"the cluster has ended; what it said was in {self.folder}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer["result"]


def missing() -> str:
    """What has to be there before a cluster can be made; empty where nothing is missing."""
    if lacks := world.missing():
        return lacks
    if not binaries.built():
        return "its programs, which are built once (minutes) by: python3 dev.py kubernetes"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "control groups as Kubernetes 1.20 knows them (version 1)"
    return ""


@contextlib.contextmanager
def running(*, owner: int = 0) -> Iterator[Cluster]:
    """A cluster that is there until the block ends, and the process `owner` lives, this one unless given."""
    folder, cluster = _start(owner or os.getpid())
    try:
        yield cluster
    finally:
        end(folder)


def of_run(shared: Path, owner: int) -> Cluster:
    """The cluster of a run of tests, started by whoever comes first; `shared` is a folder that all of them have."""
    with (shared / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = shared / "cluster.json"
        if known.exists():
            folder, network = json.loads(known.read_text())
            return Cluster(Path(folder), network)
        folder, cluster = _start(owner)
        known.write_text(json.dumps([str(folder), cluster.network]))
        return cluster


def _start(owner: int) -> tuple[Path, Cluster]:
    warden.sweep()
    folder = warden.runs() / secrets.token_hex(4)
    folder.mkdir()
    containers.copy(folder / "containerd")
    command = [sys.executable, "-m", "tests.kubernetes.warden", str(owner), str(folder), str(binaries.place())]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True)
    answer = json.loads(done.stdout or b'{"error": "the warden ended, with nothing said"}')
    if "error" in answer:
        raise ClusterError(answer["error"])
    return folder, Cluster(folder, answer["result"])


def end(folder: Path) -> None:
    """End a cluster, and wait until nothing is left of it."""
    lock = folder.with_suffix(".lock")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int(lock.read_text()), 15)
    while lock.exists():
        time.sleep(0.02)
