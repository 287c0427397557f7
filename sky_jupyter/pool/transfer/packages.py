"""Packages of a pool's nodes beside the notebook's: what differs is told, and put right where that is asked for."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ...bootstrap import local_environment, package_sync
from ...bootstrap.requirements import parse
from ...bootstrap.uv import OnLine
from ...errors import BootstrapError
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
    """The pool, and that its image can be changed."""

    def change_spec(self, spec: PoolSpec) -> None:
        """Have the pool be one of this spec from now on."""
        ...


class PoolPackages:
    """One a pool, made with it.

    Attributes
    ----------
    sync : bool
        Whether nodes are given what they lack with each run.
    """

    def __init__(self, pool: PackagesContext) -> None:
        self.pool = pool
        self.sync = False
        # What the hosts' folders were when they were asked, and what each node answered.
        self._asked: tuple[str, ...] = ()
        self._nodes: dict[int, dict[str, Any]] = {}
        self._added: dict[str, str] = {}
        self._told: set[str] = set()
        # Requirements that were asked for while the pool lives, and those that its nodes are known to have.
        self._more: list[str] = []
        self._sure: set[str] = set()

    def add(self, requirements: Sequence[str], on_send: Listener = ignore, tick: Tick = no_tick) -> list[str]:
        """Have the nodes have requirements, beside what they have; what was installed for that.

        It goes into the pool's own folder: its environment may be another pool's too, or the notebook's own.

        Parameters
        ----------
        requirements : sequence of str
            As `Image.pip` has them; the pool's image has them from now on.
        on_send : callable
            Told how far it is.
        tick : callable
            Called several times a second meanwhile.

        Raises
        ------
        BootstrapError
            When they cannot be installed; the pool is as it was.
        PoolError
            When the pool cannot be asked what it has.
        """
        self._forget_if_new()
        wanted = [text for text in requirements if text not in self._sure]
        installed: list[str] = []
        if wanted:
            nodes = self._there()
            self._added.update({item.partition("==")[0]: item for its in nodes.values() for item in its["added"]})
            versions = [{name: version for name, (version, _) in its["packages"].items()} for its in nodes.values()]
            lacking = [text for text in wanted if any(package_sync.lacking([text], there) for there in versions)]
            if lacking:
                # What only some of them have is installed on all.
                there = dict(set(versions[0].items()).intersection(*(one.items() for one in versions)))
                installed = self._with_uv(functools.partial(self._put_more, lacking, there), on_send, tick)
            self._sure.update(wanted)
        self._more += [text for text in requirements if text not in self._more]
        self._note_image(requirements)
        return installed

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
        self._forget_if_new()
        if not self._sure.issuperset(self._more):
            # Nodes have come since that may lack it.
            self.add(self._more, on_send, tick)
        if not self._may_differ:
            return self._news_for_ranks()
        wanted = package_sync.behind(modules)
        if self._differences(wanted) and (put or self.sync):
            self._install(wanted, on_send, tick)
            listener(NoticeEvent(f"installed on the nodes: {', '.join(sorted(self._added.values()))}"))
        elif text := self._news(self._differences(wanted)):
            listener(NoticeEvent(f"{text}. `%%sky --sync` installs on the nodes what the notebook has"))
        return self._news_for_ranks()

    def _news_for_ranks(self) -> dict[str, Any]:
        return {"packages": sorted(self._added.values())} if self._added else {}

    def _note_image(self, requirements: Sequence[str]) -> None:
        """Have the pool's image ask for requirements, so that nodes that come later have them."""
        pool = self.pool
        pip = pool.spec.image.pip
        if more := tuple(text for text in requirements if text not in pip):
            pool.change_spec(replace(pool.spec, image=replace(pool.spec.image, pip=(*pip, *more))))

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
        return spec.provider.survives_manager or not local_environment.is_own(spec.full_image)

    def _forget_if_new(self) -> None:
        """Forget what was asked of hosts that are gone: the pool was made anew."""
        hosts = tuple(host.there for host in self.pool.hosts)
        if hosts != self._asked:
            self._asked, self._nodes, self._added, self._told = hosts, {}, {}, set()
            self._sure = set()

    def _there(self) -> dict[int, dict[str, Any]]:
        """What each node has."""
        if not self._nodes:
            self.pool.require_live()
            self._nodes = loop().call(self.pool.control.ask(rpc.LIST_PACKAGES))
        return self._nodes

    def _differences(self, wanted: Mapping[str, str]) -> dict[str, dict[str, list[int]]]:
        """By distribution and version there, empty where it is missing, the nodes; only what is not as here."""
        found: dict[str, dict[str, list[int]]] = {}
        for name, version in wanted.items() if wanted else ():
            for node, its in sorted(self._there().items()):
                there = its["packages"].get(name, [""])[0]
                if package_sync.differs(version, there):
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
        lacking: set[str] = set()
        for its in self._there().values():
            versions = {name: version for name, (version, _) in its["packages"].items()}
            lacking.update(package_sync.additions(wanted, versions))
        self._with_uv(functools.partial(self._put, sorted(lacking)), on_send, tick)

    def _with_uv(
        self, work: Callable[[OnLine, threading.Event], list[str]], on_send: Listener, tick: Tick
    ) -> list[str]:
        """Have something installed, in a thread, and note it; what that is."""
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

    def _put(self, requirements: list[str], say: OnLine, stop: threading.Event) -> list[str]:
        """Install on all machines; in a thread."""
        crew = self._crew(stop)
        if crew is None:
            package_sync.install_here(*self._here(), requirements, say, stop)
        else:
            crew.install(requirements, say)
        return requirements

    def _put_more(
        self, requirements: list[str], there: Mapping[str, str], say: OnLine, stop: threading.Event
    ) -> list[str]:
        """Install what requirements come to on all machines; in a thread."""
        say(f"installing {', '.join(map(without_secrets, requirements))}")
        crew = self._crew(stop)
        if crew is None:
            python, folder, image = self._here()
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
            planned = crew.add(requirements, there, say)
        return [_named(item) for item in planned]

    def _here(self) -> tuple[str, str, Image]:
        """Of local nodes the interpreter, where what is added goes, and the image that says from where."""
        return self._nodes[0]["interpreter"], str(self.pool.hosts[0].folder / FOLDER), self.pool.spec.full_image

    def _crew(self, stop: threading.Event) -> package_sync.Addition | None:
        """The pool's hosts, as they are told to install; None where all of it is here."""
        hosts = [host for host in self.pool.hosts if not host.here]
        if not hosts:
            return None
        spec = self.pool.spec
        places = [(host.python, f"{host.there}/{FOLDER}") for host in hosts]
        machines: list[Any] = [host.machine for host in hosts]
        return package_sync.Addition(machines, spec, places, offline=spec.provider.offline, stop=stop)


def _named(planned: str) -> str:
    """A planned requirement as ranks are told it: they look for its name."""
    name, at, url = planned.partition(" @ ")
    return f"{name}=={without_secrets(url)}" if at else planned


def _label(nodes: list[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
