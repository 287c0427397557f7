"""Bringing a pool's hosts up on other machines, and what the manager does with them from afar."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import secrets
import shlex
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ..errors import BootstrapError, CaptureError, MachineError
from ..machines.tunnel import Tunnel
from ..node.config import HostConfig
from ..spec import PoolSpec
from . import certificates, launch

if TYPE_CHECKING:
    from ..bootstrap.remote import Site

_PATIENCE = 30.0
_REACH = 10
_BESIDE = 16


@dataclass(kw_only=True)
class RemoteHost(launch.Host):
    """A host process on another machine; its ``folder`` and ``blobs`` are this machine's, for keys and what is sent.

    Parameters
    ----------
    site : Site
        The machine.
    there : str
        The pool's folder on it.
    blobs_there : str
        The folder of the payload's blobs on it.
    """

    site: Site
    there: str
    blobs_there: str
    tunnel: Tunnel | None = None
    # Whether the pool's other hosts reach it through the notebook only: files are not to take that way twice.
    apart: bool = False

    @property
    def here(self) -> bool:
        """Its process is not this machine's."""
        return False

    @property
    def away(self) -> str:
        """What keeps us from it; empty where nothing does."""
        return "" if self.site.machine.session.alive else f"the connection to {self.site.machine.target.name} broke"

    def last_words(self, agent: str) -> list[str]:
        """The last lines of an agent's log, to be read below a message."""
        return [f"\n  | {line}" for line in self._tail(f"n{agent.rpartition(' ')[2]}/agent.log")]

    def log(self) -> list[str]:
        """The last lines of the host's own log."""
        return self._tail("host.log")

    def facts(self) -> dict[str, Any]:
        """What a later manager would need; see `launch.adopt`."""
        return {**super().facts(), "machine": self.site.machine.key, "there": self.there}

    def reach(self, address: str) -> str:
        """Where the pool's scheduler is reached from here: through a tunnel."""
        host, _, port = address.rpartition("://")[2].rpartition(":")
        self.tunnel = Tunnel(self.site.machine, host.strip("[]"), int(port))
        return f"tls://127.0.0.1:{self.tunnel.port}"

    def end(self) -> None:
        """Have the host end with all that it started, and wait for it; nothing of it is left there."""
        if self.tunnel is not None:
            self.tunnel.close()
        with contextlib.suppress(MachineError, TimeoutError):
            if self.site.machine.session.alive:
                self.end_process()
        _remove(self.site, self.there, self.blobs_there)
        self.remove_folders()

    def _tail(self, name: str) -> list[str]:
        with contextlib.suppress(MachineError, TimeoutError):
            script = f"tail -n 30 -- {shlex.quote(f'{self.there}/{name}')} 2>/dev/null"
            done = self.site.machine.shell.run(script, timeout=_PATIENCE)
            return done.out.decode("utf-8", "replace").splitlines()
        return []


def start(
    pool: str,
    spec: PoolSpec,
    sites: Sequence[Site],
    env: Mapping[str, str],
    on_host: Callable[[launch.Host], None],
    stop: threading.Event,
) -> str:
    """Start a host on each machine, the head's first; ``on_host`` gets each as soon as it must be ended.

    When ``stop`` is set, no more are started.

    Returns
    -------
    str
        The scheduler's address, as the hosts reach it.
    """
    folder, blobs = launch.make_folders(pool)
    keys = certificates.make(pool).files()
    try:
        for name, data in keys.items():
            launch.LOCAL.put(data, folder / name)
        head = _start_one(pool, spec, sites, 0, (folder, blobs), keys, None, env, on_host, stop)
    except BaseException:
        for made in (folder, blobs):
            shutil.rmtree(made, ignore_errors=True)
        raise
    # Asked while they start: it costs nothing then, and says what Dask would say after half a minute.
    reaching = [functools.partial(_see_that_it_reaches, site, sites[0], head) for site in sites[1:]]
    others = [
        functools.partial(_start_one, pool, spec, sites, node, (folder, blobs), keys, head, env, on_host, stop)
        for node in range(1, len(sites))
    ]
    _all([*reaching, *others])
    return head


def _see_that_it_reaches(site: Site, head: Site, address: str) -> None:
    """Have a host connect to the scheduler of another.

    Raises
    ------
    BootstrapError
        When it cannot, with its own words.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    code = f"import socket; socket.create_connection(({host.strip('[]')!r}, {port}), {_REACH})"
    done = site.machine.shell.run(f"{shlex.quote(site.interpreter)} -I -S -c {shlex.quote(code)}", timeout=_PATIENCE)
    if done.status:
        told = done.out.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise BootstrapError(
            "agent",
            f"{site.machine.target.name} does not reach {head.machine.target.name} at {host}:{port} ({told}): the "
            "hosts of a pool talk to each other at their private addresses; open all ports between them",
            node=site.node,
        )


def _start_one(
    pool: str,
    spec: PoolSpec,
    sites: Sequence[Site],
    node: int,
    here: tuple[Path, Path],
    keys: Mapping[str, bytes],
    scheduler: str | None,
    env: Mapping[str, str],
    on_host: Callable[[launch.Host], None],
    stop: threading.Event,
) -> str:
    """Start the host of one node; returns the scheduler's address."""
    site = sites[node]
    if stop.is_set():
        raise BootstrapError("agent", "stopped", node=node)
    name = f"sky-{pool}-{secrets.token_hex(4)}"
    folder, blobs = f"{site.facts.runtime}/{name}", f"{site.facts.shared}/{name}"
    if blobs == folder:
        blobs = f"{folder}/blobs"
    config = HostConfig(
        pool=pool,
        nodes=[node],
        total_nodes=spec.nodes,
        ranks_per_node=spec.ranks_per_node,
        addresses=[one.address for one in sites],
        preload=[module for plugin in spec.plugins for module in plugin.preload],
        cwd=site.facts.home,
        blobs=blobs,
        scheduler=scheduler,
        owner=None,
        idle_timeout=spec.lease,
        journal=spec.journal,
    )
    contents = {**keys, "host.json": json.dumps(asdict(config)).encode()}
    try:
        site.machine.put_all({PurePosixPath(folder, name): data for name, data in contents.items()})
        command = site.machine.exec(
            [site.interpreter, "-m", "sky_jupyter.node.host", folder],
            env={**site.variables(), **env},
            cwd=folder,
            log=PurePosixPath(folder, "host.log"),
        )
    except BaseException as error:
        _remove(site, folder, blobs)
        if isinstance(error, MachineError):
            raise BootstrapError("files", str(error), node=node) from None
        raise
    host = RemoteHost(command, [node], *here, queue.Queue(), site=site, there=folder, blobs_there=blobs)
    host.hear()
    on_host(host)
    return host.await_start()


def end_all(hosts: Iterable[launch.Host]) -> None:
    """End hosts side by side; one that cannot be ended keeps none of the others."""

    def one(host: launch.Host) -> None:
        with contextlib.suppress(Exception):
            host.end()

    _all([functools.partial(one, host) for host in hosts])


def send(hosts: Iterable[launch.Host], folder: Path) -> None:
    """Send a run's small blobs to each host, below the name of their folder, with one command.

    Raises
    ------
    CaptureError
        When a host has no room for them.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    if not paths:
        return

    def one(host: RemoteHost) -> None:
        target = PurePosixPath(host.blobs_there, folder.name)
        try:
            host.site.machine.put_all({target / path.name: path.read_bytes() for path in paths})
        except MachineError as error:
            if error.reason != "full":
                raise
            raise CaptureError(
                f"the cell needs {sum(path.stat().st_size for path in paths) / 1e6:.1f} MB of the notebook's values on "
                f"{error.host}, and there is no room: make large values inside the cell"
            ) from None

    _all([functools.partial(one, host) for host in hosts if isinstance(host, RemoteHost)])


def discard(hosts: Iterable[launch.Host], folder: Path, *, parts: bool = False) -> None:
    """Remove a run's blobs from hosts, and with ``parts`` those of broken transfers; nobody waits for it."""
    for host in hosts:
        if isinstance(host, RemoteHost):
            places = [host.blobs_there, f"{host.there}/blobs"]
            names = [folder.name, "arriving"] if parts else [folder.name]
            paths = dict.fromkeys(f"{place}/{name}" for place in places for name in names)
            threading.Thread(target=_remove, args=(host.site, *paths), name="sky-discard", daemon=True).start()


def relative(manifest: dict[str, list[list[str]]], folder: Path) -> dict[str, list[list[str]]]:
    """A manifest whose paths begin in the nodes' folder of blobs, wherever each has that."""
    values = [[name, str(Path(path).relative_to(folder.parent))] for name, path in manifest["values"]]
    return {**manifest, "values": values}


def _remove(site: Site, *folders: str) -> None:
    if site.machine.session.alive:
        with contextlib.suppress(MachineError, TimeoutError):
            site.machine.shell.run(f"rm -rf -- {shlex.join(folders)}", timeout=_PATIENCE)


def _all(calls: Sequence[Callable[[], Any]]) -> None:
    """Call all side by side and wait for all; the first that failed is raised."""
    if not calls:
        return
    with ThreadPoolExecutor(min(len(calls), _BESIDE), thread_name_prefix="sky-hosts") as several:
        for future in [several.submit(call) for call in calls]:
            future.result()
