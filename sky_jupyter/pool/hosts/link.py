"""A remote pool's link as its manager holds it: started with the pool, joined by a later manager, ended with it."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import PoolError, SkyError
from ...machines.link.client import Link
from ...machines.link.encoding import Event
from ...machines.link.machine import LinkProcess
from ...providers.base import ConnectionSession
from ...util.tasks import map_all
from ..base.timeouts import TIMEOUTS
from ..registry.folders import LINK
from . import host as launch

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ...machines.link.machine import LinkMachine
    from ...machines.ssh.target import Target
    from ...machines.ssh.types import Prompts

_BESIDE = 64
# Hosts that are lost together are told together.
_GATHER = TIMEOUTS.links.gather
_NAMED = 4
_PAUSE, _LONGEST_PAUSE = TIMEOUTS.links.pause, TIMEOUTS.links.longest_pause
# For so long what could not be reached is tried again when the pool has been ended.
FINISH = TIMEOUTS.links.finish


class PoolLink:
    """The link's process, the pool's folders on this machine, and which machines are away.

    Made by `start` or `reopen`.

    Parameters
    ----------
    link : Link or None
        The process; None where there is none yet.
    folder, blobs : Path
        The pool's folders here.
    ours : bool
        Whether it was started now, and is to be ended where nothing comes of it.
    folders : sequence of Path
        What a link that is started removes when it ends with its owner.
    """

    def __init__(
        self, link: Link | None, folder: Path, blobs: Path, *, ours: bool, folders: Sequence[Path] = ()
    ) -> None:
        self.link, self.folder, self.blobs, self._ours = link, folder, blobs, ours
        self._folders = folders
        self._opening = threading.Lock()
        # Machines that are reached without the link: connections to them end with this process.
        self._without: list[Machine] = []
        # Machines that cannot be reached, and what was last said of each.
        self.away: dict[str, str] = {}
        self._tell: Callable[[str], None] = lambda text: None
        self._is_off: Callable[[str], bool] = lambda host: False
        self._lock = threading.Lock()
        self._fresh: dict[str, str] = {}
        self._timer: threading.Timer | None = None
        self._machines: Sequence[LinkMachine] = ()
        self._lease: float | None = None
        self._over = threading.Event()
        self._ended: Callable[[str], None] = lambda host: None
        if link is not None:
            self._use(link)

    @classmethod
    def start(cls, pool: str) -> PoolLink:
        """Make a pool's folders here; a link is started when a provider asks for it, and ends with us until `keep`."""
        folder, blobs = launch.make_folders(pool)
        # Nobody can take up a pool that is not ready: should this process die, the link leaves nothing.
        return cls(None, folder, blobs, ours=True, folders=[folder, blobs])

    def open(self) -> Link:
        """Return the link, which is started where there is none."""
        with self._opening:
            if self.link is None:
                self._use(Link.start(self.folder / LINK, folders=self._folders))
            assert self.link is not None
            return self.link

    @property
    def pid(self) -> int:
        """The process id of the link; 0 where there is none, or it is not known."""
        return 0 if self.link is None else self.link.pid

    def wake(self) -> None:
        """Have the link go on, should it stand still: else nobody is answered."""
        if self.link is not None:
            self.link.wake()

    @classmethod
    def reopen(cls, folder: Path, blobs: Path) -> PoolLink:
        """The link of a pool that had another manager: the one that there is, or a new one."""
        with contextlib.suppress(PoolError):
            return cls(Link.join(folder / LINK), folder, blobs, ours=False)
        return cls(None, folder, blobs, ours=True)

    def session(
        self, prompts: Prompts | None, stop: threading.Event, known: Mapping[str, Mapping[str, Any]] | None = None
    ) -> ConnectionSession:
        """Return what machines are connected to with, so that the link holds them; see `ConnectionSession`."""
        return ConnectionSession(prompts, self.open, stop, known or {})

    def connect(self, wanted: Sequence[tuple[Target, str]], prompts: Prompts | None = None) -> list[LinkMachine]:
        """The machines at targets, each with the address at which the others reach it, side by side.

        Raises
        ------
        MachineError
            For the first that cannot be reached.
        """
        link = self.open()

        def connect(one: tuple[Target, str]) -> LinkMachine:
            return link.connect(one[0], prompts=prompts, address=one[1])

        return map_all(connect, wanted, "sky-connect", most=_BESIDE)

    def listen(self, tell: Callable[[str], None], is_off: Callable[[str], bool]) -> None:
        """Have a function told, in a thread of ours, which machines are lost and which are back.

        Of one that ``is_off`` it is known already that nothing goes on there.
        """
        self._tell, self._is_off = tell, is_off

    def keep(self, lease: float | None, hosts: Callable[[], Sequence[launch.Host]], moved: Callable[[], None]) -> None:
        """From now on it outlives this process for the pool's lease, or as long as the pool is seen to live.

        Where the link's process ends before that, another is started. ``moved`` is then called, in a
        thread of ours: the tunnel is to be made again.
        """
        self._lease, self._hosts, self._moved = lease, hosts, moved
        self._machines = list({id(one.machine): one.machine for one in self._processes()}.values())
        self._keep()

    def _keep(self) -> None:
        if self.link is not None:
            self.link.keep(self._lease, self._processes(), [self.folder, self.blobs])

    def _processes(self) -> list[LinkProcess]:
        """The host processes on machines that the link holds."""
        found: list[LinkProcess] = []
        self._without = []
        for host in self._hosts():
            if isinstance(process := host.process, LinkProcess):
                process.folder = host.there
                found.append(process)
            else:
                self._without.append(host.machine)
        return found

    def _use(self, link: Link) -> None:
        self.link = link
        link.on_event(self._on_event)
        link.on_end(self._mend)

    def _mend(self) -> None:
        """The link's process has ended, and nobody of us has ended it: start another, and hand over to it."""
        pause = _PAUSE
        while self._machines and not self._over.is_set():
            try:
                self._start_anew()
                return
            except (SkyError, OSError):
                # A machine that is away at this moment has to be there once.
                self._over.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _start_anew(self) -> None:
        try:
            link = Link.start(self.folder / LINK, idle_timeout=self._lease)
        except PoolError:
            # An attempt before this one has started it.
            link = Link.join(self.folder / LINK)
        made = map_all(
            lambda one: link.connect(one.target, address=one.address), self._machines, "sky-connect", most=_BESIDE
        )
        if self._over.is_set():
            link.end()
            return
        for machine, new in zip(self._machines, made, strict=True):
            machine.link, machine.number = link, new.number
        if self.link is not None:
            self.link.close()
        self._use(link)
        self._keep()
        self._moved()

    def forget(self, machines: Sequence[Machine]) -> None:
        """Let go of machines that are no part of the pool any more, with all that led there."""
        for machine in machines:
            with contextlib.suppress(SkyError):
                machine.close()
            with self._lock:
                self.away.pop(machine.name, None)
                self._fresh.pop(machine.name, None)

    def retry(self) -> None:
        """Try at once to reach what is away, for somebody asks; in the background."""
        if self.away:
            threading.Thread(target=self._retry, name="sky-link-retry", daemon=True).start()

    def end(self) -> None:
        """End it, and remove the pool's folders here."""
        self._hush()
        # Should this process die just now, the link removes them.
        if self.link is not None:
            self.link.end([self.folder, self.blobs])
        self._close_others()
        _remove(self.folder, self.blobs)

    def _close_others(self) -> None:
        for machine in self._without:
            with contextlib.suppress(SkyError, OSError):
                machine.close()

    def finish(self, scripts: Mapping[str, Sequence[str]], ended: Callable[[str], None]) -> list[str]:
        """Leave it to end what is on machines that could not be reached, and then itself, with the folders here.

        Parameters
        ----------
        scripts : mapping of str to sequence of str
            Of each machine, by its name, what ends the pool's parts there.
        ended : callable
            Told, in a thread of ours, the name of each where nothing is left.

        Returns
        -------
        list of str
            The machines that are tried: the link holds no others.
        """
        self._hush()
        with contextlib.suppress(SkyError, OSError):
            link = self.link
            machines = [] if link is None else [one for one in link.machines() if one.name in scripts]
            if link is not None and machines:
                self._ended = ended
                works = [(machine, "; ".join(_each(scripts[machine.name]))) for machine in machines]
                link.finish(works, FINISH, [self.folder, self.blobs])
                # Nobody takes the pool up again: of what lies here, the link needs its own folder only.
                _remove(self.blobs, *(path for path in self.folder.iterdir() if path.name != LINK))
                return [machine.name for machine in machines]
        self.end()
        return []

    def release(self) -> None:
        """Let go of it: it lives on as it was asked to."""
        self._hush()
        self._close_others()
        if self.link is not None:
            self.link.close()

    def give_up(self) -> None:
        """Nothing came of joining: a link that was there goes on, and one that was not ends."""
        self._hush()
        self._close_others()
        if self.link is not None:
            if self._ours:
                self.link.end()
            self.link.close()

    def _retry(self) -> None:
        with contextlib.suppress(SkyError):
            for machine in [] if self.link is None else self.link.machines():
                if machine.name in self.away:
                    machine.retry()

    def _hush(self) -> None:
        self._over.set()
        with self._lock:
            self._tell, self._fresh = lambda text: None, {}
            if self._timer is not None:
                self._timer.cancel()

    def _on_event(self, event: Event) -> None:
        """Take in what became of a machine; what is new of it is told."""
        if event.kind == "ended":
            self._ended(event.host)
            return
        with self._lock:
            before = self.away.get(event.host)
            if event.kind == "back":
                self.away.pop(event.host, None)
            else:
                why = f" ({event.why})" if event.kind == "waiting" and event.why else ""
                self.away[event.host] = event.text + why
            if event.kind == "waiting" and before is not None:
                return
            if event.kind == "back" and self._fresh.get(event.host) == "waiting":
                # It was away for less than it takes to tell.
                del self._fresh[event.host]
                return
            self._fresh[event.host] = event.kind if event.kind != "refused" else event.text
            if self._timer is None:
                self._timer = threading.Timer(_GATHER, self._tell_fresh)
                self._timer.daemon = True
                self._timer.start()

    def _tell_fresh(self) -> None:
        with self._lock:
            fresh, self._fresh, self._timer, tell = self._fresh, {}, None, self._tell
        fresh = {host: kind for host, kind in fresh.items() if kind != "waiting" or not self._is_off(host)}
        lost = [host for host, kind in fresh.items() if kind == "waiting"]
        back = [host for host, kind in fresh.items() if kind == "back"]
        if lost:
            tell(f"{_named(lost)} unreachable from here, trying again; what runs there goes on")
        if back:
            tell(f"{_named(back)} reached again from here")
        for host, text in fresh.items():
            if host not in lost and host not in back:
                tell(f"{host} is {text}")


def _each(scripts: Sequence[str]) -> list[str]:
    """Scripts of which each is run, and all must end well."""
    return ["_sky_f=", *(f"( {script} ) || _sky_f=1" for script in scripts), '[ -z "$_sky_f" ]']


def _named(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:_NAMED]) + (f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else "")
    return f"{shown} {'is' if len(hosts) == 1 else 'are'}"


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
