"""Comparison of nodes' and notebook's packages, and installation."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ...bootstrap import local_environment, package_sync
from ...bootstrap.satisfied_requirements import parse
from ...bootstrap.uv import OnLine
from ...errors import BootstrapError, NodeLost
from ...node.kernel.added_packages import FOLDER
from ...node.protocol import rpc
from ...util.redaction import without_secrets
from ..base.event_loop import Tick, loop, no_tick, wait_ticking
from ..base.events import Listener, NoticeEvent, ProgressEvent, ignore
from ..context import TransferContext

if TYPE_CHECKING:
    from ...spec.image import Image
    from ...spec.pool_spec import PoolSpec


class PackagesContext(TransferContext, Protocol):
    """The pool with a spec that can be replaced."""

    def change_spec(self, spec: PoolSpec) -> None:
        """Replace the spec, for later managers as well."""
        ...


class PoolPackages:
    """Packages of one pool's nodes; made with it.

    ``sync`` is whether packages that the nodes lack are installed with each run.
    """

    def __init__(self, pool: PackagesContext) -> None:
        self.pool = pool
        self.sync = False
        # The hosts' folders at the last request, and each node's answer.
        self._asked: tuple[str, ...] = ()
        self._nodes: dict[int, dict[str, Any]] = {}
        self._added: dict[str, str] = {}
        self._told: set[str] = set()
        # Requirements added to the live pool, and those that its nodes are known to have.
        self._more: list[str] = []
        self._sure: set[str] = set()

    def add(self, requirements: Sequence[str], on_send: Listener = ignore, tick: Tick = no_tick) -> list[str]:
        """Install requirements on the nodes; return what was installed.

        They go into the pool's own folder, as its environment may be shared with other pools or the notebook.

        Parameters
        ----------
        requirements : sequence of str
            Requirements as in `Image.pip`, to which they are added.
        on_send : callable
            Receives the progress.
        tick : callable
            Called every poll.

        Returns
        -------
        list of str
            Installed requirements.

        Raises
        ------
        BootstrapError
            If they cannot be installed; the pool is as before.
        NodeLost
            If all nodes are lost.
        PoolError
            If the nodes' packages cannot be listed.
        """
        self._forget_if_new()
        wanted = [text for text in requirements if text not in self._sure]
        installed: list[str] = []
        if wanted:
            nodes = self._some_there()
            self._added.update({item.partition("==")[0]: item for its in nodes.values() for item in its["added"]})
            versions = [{name: version for name, (version, _) in its["packages"].items()} for its in nodes.values()]
            lacking = [text for text in wanted if any(package_sync.lacking([text], there) for there in versions)]
            if lacking:
                # A package that only some nodes have is installed on all.
                there = dict(set(versions[0].items()).intersection(*(one.items() for one in versions)))
                installed = self._with_uv(functools.partial(self._put_more, nodes, lacking, there), on_send, tick)
            if len(nodes) == self.pool.spec.nodes:
                # A lost node that comes back may lack them.
                self._sure.update(wanted)
        self._more += [text for text in requirements if text not in self._more]
        self._note_image(requirements)
        return installed

    def check(
        self,
        modules: Iterable[str],
        listener: Listener,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
        *,
        put: bool,
        again: bool = True,
    ) -> dict[str, Any]:
        """Compare the packages of modules; report or install.

        Parameters
        ----------
        modules : iterable of str
            Full names of imported modules that are not local code.
        listener : callable
            Receives notices.
        on_send : callable
            Receives the progress.
        tick : callable
            Called every poll.
        put : bool
            Whether to install what differs.
        again : bool
            Whether to report missing packages that were reported before.

        Returns
        -------
        dict
            Content of the run's request: the packages added to the nodes.

        Raises
        ------
        BootstrapError
            If they cannot be installed.
        """
        self._forget_if_new()
        if not self._sure.issuperset(self._more):
            # Nodes that have joined since may lack it.
            self.add(self._more, on_send, tick)
        if not self._is_other:
            return self._news_for_ranks()
        wanted = package_sync.behind(modules)
        if self._differences(wanted) and (put or self.sync):
            self._install(wanted, on_send, tick)
            listener(NoticeEvent(f"installed on the nodes: {', '.join(sorted(self._added.values()))}"))
        elif text := self._news(self._differences(wanted), again=again):
            listener(NoticeEvent(f"{text}. `%%sky --sync` installs on the nodes what the notebook has"))
        return self._news_for_ranks()

    def _news_for_ranks(self) -> dict[str, Any]:
        return {"packages": sorted(self._added.values())} if self._added else {}

    def _note_image(self, requirements: Sequence[str]) -> None:
        """Add requirements to the pool's image, for nodes that join later."""
        pool = self.pool
        pip = pool.spec.image.pip
        if more := tuple(text for text in requirements if text not in pip):
            pool.change_spec(replace(pool.spec, image=replace(pool.spec.image, pip=(*pip, *more))))

    def frozen(self) -> str:
        """Return the nodes' environment as requirements.

        Raises NodeLost if all nodes are lost, PoolError if the pool does not answer.
        """
        self._nodes = {}
        nodes = self._some_there()
        head = nodes[min(nodes)]
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

    @property
    def may_differ(self) -> bool:
        """Whether `check` has work: packages were added, or the environments differ."""
        return bool(self._more) or self._is_other

    @functools.cached_property
    def _is_other(self) -> bool:
        """Whether the nodes' environment is not the notebook's own."""
        spec = self.pool.spec
        return spec.provider.survives_manager or not local_environment.is_own(spec.full_image)

    def _forget_if_new(self) -> None:
        """Forget the answers of hosts that have been replaced."""
        hosts = tuple(host.there for host in self.pool.hosts)
        if hosts != self._asked:
            self._asked, self._nodes, self._added, self._told = hosts, {}, {}, set()
            self._sure = set()

    def _there(self) -> dict[int, dict[str, Any]]:
        """Return each node's packages, without nodes that are lost."""
        if self._nodes:
            return self._nodes
        self.pool.require_live()
        control = self.pool.control
        while True:
            lost = set(control.lost)
            try:
                found = loop().call(
                    control.ask(rpc.LIST_PACKAGES, [node for node in range(self.pool.spec.nodes) if node not in lost])
                )
            except NodeLost:
                # It was lost meanwhile: the others are asked again.
                if control.closing or control.lost <= lost:
                    raise
                continue
            if not lost:
                self._nodes = found
            return found

    def _some_there(self) -> dict[int, dict[str, Any]]:
        """Return `_there`; raise NodeLost if all nodes are lost."""
        if not (found := self._there()):
            raise self.pool.control.is_lost(0)
        return found

    def _differences(self, wanted: Mapping[str, str]) -> dict[str, dict[str, list[int]]]:
        """Return differing distributions, by version and node."""
        found: dict[str, dict[str, list[int]]] = {}
        for name, version in wanted.items() if wanted else ():
            for node, its in sorted(self._there().items()):
                there = its["packages"].get(name, [""])[0]
                if package_sync.differs(version, there):
                    found.setdefault(f"{name} {version}", {}).setdefault(there, []).append(node)
        return found

    def _news(self, differences: Mapping[str, Mapping[str, list[int]]], *, again: bool) -> str:
        """Describe new differences; with ``again``, also all missing packages."""
        told = []
        for name, versions in differences.items():
            for there, nodes in versions.items():
                where = "on the nodes" if len(nodes) == self.pool.spec.nodes else f"on {_label(nodes)}"
                text = f"{name} here, {there or 'missing'} {where}"
                if (again and not there) or text not in self._told:
                    told.append(text)
                    self._told.add(text)
        return "; ".join(told)

    def _install(self, wanted: Mapping[str, str], on_send: Listener, tick: Tick) -> None:
        lacking: set[str] = set()
        nodes = self._some_there()
        for its in nodes.values():
            versions = {name: version for name, (version, _) in its["packages"].items()}
            lacking.update(package_sync.additions(wanted, versions))
        self._with_uv(functools.partial(self._put, nodes, sorted(lacking)), on_send, tick)

    def _with_uv(
        self, work: Callable[[OnLine, threading.Event], list[str]], on_send: Listener, tick: Tick
    ) -> list[str]:
        """Install in a thread; record and return the result."""
        stop = threading.Event()

        def say(line: str) -> None:
            on_send(ProgressEvent("packages", line, 0, 0))

        future = loop().submit(asyncio.to_thread(work, say, stop))
        try:
            wait_ticking(future, tick)
        except BaseException:
            stop.set()
            raise
        installed = future.result()
        self._added.update({item.partition("==")[0]: item for item in installed})
        self._nodes = {}
        return installed

    def _put(
        self, nodes: Mapping[int, Mapping[str, Any]], requirements: list[str], say: OnLine, stop: threading.Event
    ) -> list[str]:
        """Install requirements on all machines; runs in a thread."""
        preparation = self._preparation(stop)
        if preparation is None:
            package_sync.install_here(*self._here(nodes), requirements, say, stop)
        else:
            preparation.install(requirements, say)
        return requirements

    def _put_more(
        self,
        nodes: Mapping[int, Mapping[str, Any]],
        requirements: list[str],
        there: Mapping[str, str],
        say: OnLine,
        stop: threading.Event,
    ) -> list[str]:
        """Resolve requirements, and install them on all machines."""
        say(f"installing {', '.join(map(without_secrets, requirements))}")
        preparation = self._preparation(stop)
        if preparation is None:
            python, folder, image = self._here(nodes)
            planned = package_sync.plan_here(python, image, requirements, there, stop)
            if planned:
                package_sync.install_here(python, folder, image, planned, say, stop)
        else:
            if hidden := [parse(text).name for text in requirements if without_secrets(text) != text]:
                raise BootstrapError(
                    "environment",
                    f"{', '.join(hidden)}: what has a password in its URL is installed as a pool is made: "
                    "`%sky restart` with this --pip",
                )
            planned = preparation.add(requirements, there, say)
        return [_named(item) for item in planned]

    def _here(self, nodes: Mapping[int, Mapping[str, Any]]) -> tuple[str, str, Image]:
        """Return local nodes' interpreter, folder and image."""
        interpreter = next(iter(nodes.values()))["interpreter"]
        return interpreter, str(self.pool.hosts[0].folder / FOLDER), self.pool.spec.full_image

    def _preparation(self, stop: threading.Event) -> package_sync.Addition | None:
        """Return the installer for remote hosts; None if all are local."""
        hosts = [host for host in self.pool.hosts if not host.here]
        if not hosts:
            return None
        spec = self.pool.spec
        places = [(host.python, f"{host.there}/{FOLDER}") for host in hosts]
        machines: list[Any] = [host.machine for host in hosts]
        return package_sync.Addition(machines, spec, places, offline=spec.provider.offline, stop=stop)


def _named(planned: str) -> str:
    """Return a planned requirement in a form whose name ranks can find."""
    name, at, url = planned.partition(" @ ")
    return f"{name}=={without_secrets(url)}" if at else planned


def _label(nodes: list[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
