"""Packages of a pool's nodes beside the notebook's: what differs is told, and put right where that is asked for."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..bootstrap import environment, sync
from ..node.packages import FOLDER
from . import remote
from .events import Listener, NoticeEvent, ProgressEvent, ignore
from .loop import Tick, loop, no_tick, wait_ticking

if TYPE_CHECKING:
    from .manager import Pool

_PATIENCE = 60.0


class PoolPackages:
    """One a pool, made with it.

    Attributes
    ----------
    sync : bool
        Whether nodes are given what they lack with each run.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.sync = False
        # What the hosts' folders were when they were asked, and what each node answered.
        self._asked: tuple[str, ...] = ()
        self._nodes: dict[int, dict[str, Any]] = {}
        self._added: dict[str, str] = {}
        self._told: set[str] = set()

    def check(
        self, modules: Iterable[str], listener: Listener, on_send: Listener = ignore, tick: Tick = no_tick, *, put: bool
    ) -> dict[str, Any]:
        """Tell of what the modules' distributions are here and not there, or put it right; what ranks are told.

        Parameters
        ----------
        modules : iterable of str
            Full names of what is imported, and is not local code.
        put : bool
            Whether what is lacking is installed.

        Raises
        ------
        BootstrapError
            When it cannot be installed.
        """
        if not self._may_differ:
            return {}
        self._forget_if_new()
        wanted = sync.behind(modules)
        if self._differences(wanted) and (put or self.sync):
            self._install(wanted, on_send, tick)
            listener(NoticeEvent(f"installed on the nodes: {', '.join(sorted(self._added.values()))}"))
        elif text := self._news(self._differences(wanted)):
            listener(NoticeEvent(f"{text}. `%%sky --sync` installs on the nodes what the notebook has"))
        return {"packages": sorted(self._added.values())} if self._added else {}

    def frozen(self) -> str:
        """The nodes' environment as requirements.

        Raises
        ------
        PoolError
            When the pool cannot be asked.
        """
        self._nodes = {}
        nodes = self._there()
        head = nodes[0]
        lines = [f"# Python {head['python']}; pool {self.pool.spec.name}, {self.pool.spec.nodes} nodes"]
        lines += [requirement for name, (_, requirement) in sorted(head["packages"].items()) if name != "sky-jupyter"]
        for node, its in nodes.items():
            names = sorted(head["packages"].keys() | its["packages"].keys())
            other = [name for name in names if head["packages"].get(name) != its["packages"].get(name)]
            if other:
                told = ", ".join((its["packages"].get(name) or ["", f"no {name}"])[1] for name in other)
                lines.append(f"# node {node} differs: {told}")
        return "\n".join(lines)

    # -- parts -------------------------------------------------------------------------------------

    @functools.cached_property
    def _may_differ(self) -> bool:
        """Whether the nodes run in another environment than this process."""
        spec = self.pool.spec
        return spec.provider.kind != "local" or not environment.is_own(spec.full_image)

    def _forget_if_new(self) -> None:
        """Forget what was asked of hosts that are gone: the pool was made anew."""
        hosts = tuple(
            host.there if isinstance(host, remote.RemoteHost) else str(host.folder) for host in self.pool.hosts
        )
        if hosts != self._asked:
            self._asked, self._nodes, self._added, self._told = hosts, {}, {}, set()

    def _there(self) -> dict[int, dict[str, Any]]:
        """What each node has."""
        if not self._nodes:
            self.pool._must_live()
            assert self.pool.control is not None
            self._nodes = loop().call(self.pool.control.ask("packages"), timeout=_PATIENCE)
        return self._nodes

    def _differences(self, wanted: Mapping[str, str]) -> dict[str, dict[str, list[int]]]:
        """By distribution and version there, empty where it is missing, the nodes; only what is not as here."""
        found: dict[str, dict[str, list[int]]] = {}
        for name, version in wanted.items() if wanted else ():
            for node, its in sorted(self._there().items()):
                there = its["packages"].get(name, [""])[0]
                if sync.differs(version, there):
                    found.setdefault(f"{name} {version}", {}).setdefault(there, []).append(node)
        return found

    def _news(self, differences: Mapping[str, Mapping[str, list[int]]]) -> str:
        """What is to be told: what is missing each time, other versions once."""
        told = []
        for name, versions in differences.items():
            for there, nodes in versions.items():
                where = "on the nodes" if len(nodes) == self.pool.spec.nodes else f"on {_label(nodes)}"
                text = f"{name} here, {there or 'missing'} {where}"
                if not there or text not in self._told:
                    told.append(text)
                    self._told.add(text)
        return "; ".join(told)

    def _install(self, wanted: Mapping[str, str], on_send: Listener, tick: Tick) -> None:
        stop = threading.Event()

        def say(line: str) -> None:
            on_send(ProgressEvent("packages", line, 0, 0))

        lacking: set[str] = set()
        for its in self._there().values():
            versions = {name: version for name, (version, _) in its["packages"].items()}
            lacking.update(sync.additions(wanted, versions))
        requirements = sorted(lacking)
        try:
            wait_ticking(loop().submit(asyncio.to_thread(self._put, requirements, say, stop)), tick)
        except BaseException:
            stop.set()
            raise
        self._added.update({item.partition("==")[0]: item for item in requirements})
        self._nodes = {}

    def _put(self, requirements: list[str], say: Any, stop: threading.Event) -> None:
        """Install on all machines; in a thread."""
        hosts = [host for host in self.pool.hosts if isinstance(host, remote.RemoteHost)]
        if not hosts:
            head = self._nodes[0]
            sync.install_here(head["interpreter"], str(self.pool.hosts[0].folder / FOLDER), requirements, say, stop)
            return
        spec = self.pool.spec
        places = [(host.python, f"{host.there}/{FOLDER}") for host in hosts]
        machines: list[Any] = [host.machine for host in hosts]
        crew = sync.Addition(machines, spec, places, offline=spec.provider.offline, stop=stop)
        crew.install(requirements, say)


def _label(nodes: list[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
