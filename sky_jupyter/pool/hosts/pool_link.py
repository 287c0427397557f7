"""The manager's side of a remote pool's link: start, join, restart and end."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import PoolError, SkyError
from ...machines.link import socket_folder
from ...machines.link.client import Link
from ...machines.link.encoding import Event
from ...machines.link.machine import LinkProcess
from ...providers.base import ConnectionSession
from ...util.background_tasks import map_all
from ..base.timeouts import TIMEOUTS
from ..registry.folder_removal import LINK
from . import launch
from .host_places import make_folders

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ...machines.link.machine import LinkMachine
    from ...machines.link.target_kinds import AnyTarget
    from ...machines.ssh.types import Prompts

_BESIDE = 64
# Hosts that are lost within this time are reported in one message.
_GATHER = TIMEOUTS.links.gather
_NAMED = 4
_PAUSE, _LONGEST_PAUSE = TIMEOUTS.links.pause, TIMEOUTS.links.longest_pause
# Unreachable hosts of an ended pool are retried for this long.
FINISH = TIMEOUTS.links.finish


class PoolLink:
    """Link process of a pool, its local folders, and the unreachable machines.

    Made by `start` or `reopen`.

    Parameters
    ----------
    link : Link or None
        The process; None before it is started.
    folder : Path
        The pool's folder on this machine.
    blobs : Path
        Its folder of blobs on this machine.
    ours : bool
        Whether this process starts it, and ends it if the pool's attachment fails.
    folders : sequence of Path
        Folders that a new link removes when it ends with its owner.
    """

    def __init__(
        self, link: Link | None, folder: Path, blobs: Path, *, ours: bool, folders: Sequence[Path] = ()
    ) -> None:
        self.link, self.folder, self.blobs, self._ours = link, folder, blobs, ours
        self._folders = folders
        self._opening = threading.Lock()
        # Machines that are not connected by the link: their connections end with this process.
        self._without: list[Machine] = []
        # Unreachable machines, each with its last description.
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
        """Make a pool's local folders; the link itself starts on demand.

        It ends with this process until `keep` is called.
        """
        folder, blobs = make_folders(pool, lasting=True)
        # No manager can attach to a pool that is not ready: if this process dies, the link removes the folders.
        return cls(None, folder, blobs, ours=True, folders=[folder, blobs])

    def open(self) -> Link:
        """Return the link, started if needed; raise PoolError once it was given up."""
        with self._opening:
            if self.link is None:
                if self._over.is_set():
                    raise PoolError("this pool's link was given up")
                self._use(Link.start(self.folder / LINK, folders=self._folders, stop=self._over))
            assert self.link is not None
            return self.link

    @property
    def pid(self) -> int:
        """The link's process id; 0 if there is none or not known."""
        return 0 if self.link is None else self.link.pid

    def wake(self) -> None:
        """Continue the link if it was stopped: all requests go through it."""
        if self.link is not None:
            self.link.wake()

    @classmethod
    def reopen(cls, folder: Path, blobs: Path) -> PoolLink:
        """Return the link of another manager's pool: its own, else a new one."""
        # A restart of this machine may have removed it.
        with contextlib.suppress(FileExistsError):
            blobs.mkdir(mode=0o700)
        socket_folder.check(blobs)
        with contextlib.suppress(PoolError):
            return cls(Link.join(folder / LINK), folder, blobs, ours=False)
        return cls(None, folder, blobs, ours=True)

    def session(
        self,
        prompts: Prompts | None,
        stop: threading.Event,
        known: Mapping[str, Mapping[str, Any]] | None = None,
        tell: Callable[[str], None] = lambda line: None,
        waits: dict[str, str] | None = None,
    ) -> ConnectionSession:
        """Return a session that makes its connections in the link.

        ``tell`` receives lines on what takes long; ``waits`` gets, by machine, what is waited for.
        """
        return ConnectionSession(prompts, self.open, stop, known or {}, tell, {} if waits is None else waits)

    def connect(self, wanted: Sequence[tuple[AnyTarget, str]], prompts: Prompts | None = None) -> list[LinkMachine]:
        """Connect to targets in parallel; return their machines.

        Each target comes with the address at which the others reach it. Raises MachineError for the first that cannot
        be reached.
        """
        link = self.open()

        def connect(one: tuple[AnyTarget, str]) -> LinkMachine:
            return link.connect(one[0], prompts=prompts, address=one[1])

        return map_all(connect, wanted, "sky-connect", most=_BESIDE)

    def listen(self, tell: Callable[[str], None], is_off: Callable[[str], bool]) -> None:
        """Set the callback for lost machines and their return.

        Machines for which ``is_off`` is true are not reported: nothing runs there.
        """
        self._tell, self._is_off = tell, is_off

    def keep(self, lease: float | None, hosts: Callable[[], Sequence[launch.Host]], moved: Callable[[], None]) -> None:
        """Let the link outlive this process, for the lease or the pool.

        If the link's process ends before, another is started; ``moved``, which reopens the tunnel, is then called in a
        thread.
        """
        self._lease, self._hosts, self._moved = lease, hosts, moved
        self._machines = list({id(one.machine): one.machine for one in self._processes()}.values())
        self._keep()

    def _keep(self) -> None:
        if self.link is not None:
            self.link.keep(self._lease, self._processes(), [self.folder, self.blobs])

    def _processes(self) -> list[LinkProcess]:
        """Return the host processes on machines behind the link."""
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
        """Restart a link that has ended unexpectedly, and reconnect."""
        pause = _PAUSE
        while self._machines and not self._over.is_set():
            try:
                self._start_anew()
                return
            except (SkyError, OSError):
                # All machines must be reachable at the same time: retry.
                self._over.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _start_anew(self) -> None:
        try:
            link = Link.start(self.folder / LINK, idle_timeout=self._lease, stop=self._over)
        except PoolError:
            # An earlier attempt has started it.
            link = Link.join(self.folder / LINK)
        try:
            made = map_all(
                lambda one: link.connect(one.target, address=one.address), self._machines, "sky-connect", most=_BESIDE
            )
        except BaseException:
            # The next attempt has another client.
            if self._over.is_set():
                link.end()
            else:
                link.close()
            raise
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
        """Close the connections to machines that left the pool."""
        for machine in machines:
            with contextlib.suppress(SkyError):
                machine.close()
            with self._lock:
                self.away.pop(machine.name, None)
                self._fresh.pop(machine.name, None)

    def retry(self) -> None:
        """Reconnect to unreachable machines at once, in the background."""
        if self.away:
            threading.Thread(target=self._retry, name="sky-link-retry", daemon=True).start()

    def end(self) -> None:
        """End the link, and remove the pool's folders on this machine."""
        self._hush()
        # If this process dies meanwhile, the link removes them.
        if self.link is not None:
            self.link.end([self.folder, self.blobs])
        self._close_others()
        _remove(self.folder, self.blobs)

    def _close_others(self) -> None:
        for machine in self._without:
            with contextlib.suppress(SkyError, OSError):
                machine.close()

    def finish(self, scripts: Mapping[str, Sequence[str]], ended: Callable[[str], None]) -> list[str]:
        """Let the link end what runs on unreachable machines, and then itself.

        Parameters
        ----------
        scripts : mapping of str to sequence of str
            Machine name -> scripts that end the pool's parts there.
        ended : callable
            Called, in a thread, with the name of each machine where nothing is left.

        Returns
        -------
        list of str
            The machines that are retried: those that the link is connected to.
        """
        self._hush()
        with contextlib.suppress(SkyError, OSError):
            link = self.link
            machines = [] if link is None else [one for one in link.machines() if one.name in scripts]
            if link is not None and machines:
                self._ended = ended
                works = [(machine, "; ".join(_each(scripts[machine.name]))) for machine in machines]
                link.finish(works, FINISH, [self.folder, self.blobs])
                # No manager attaches to the pool again: of its local files, the link needs only its own folder.
                _remove(self.blobs, *(path for path in self.folder.iterdir() if path.name != LINK))
                return [machine.name for machine in machines]
        self.end()
        return []

    def release(self) -> None:
        """Disconnect from the link, which lives on."""
        self._hush()
        self._close_others()
        if self.link is not None:
            self.link.close()

    def give_up(self) -> None:
        """Disconnect after a failed attachment; end a link of our own."""
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
        # Wait for another thread that starts the link: it stops now, or there is a link to end.
        with self._opening:
            pass
        with self._lock:
            self._tell, self._fresh = lambda text: None, {}
            if self._timer is not None:
                self._timer.cancel()

    def _on_event(self, event: Event) -> None:
        """Record a machine's connection state, and queue the news."""
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
                # It was back before its loss was reported.
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
            tell(f"{_named(lost)} unreachable from here, trying again; what runs there continues")
        if back:
            tell(f"{_named(back)} reached again from here")
        for host, text in fresh.items():
            if host not in lost and host not in back:
                tell(f"{host} is {text}")


def _each(scripts: Sequence[str]) -> list[str]:
    """Return a script that runs all of these and fails if one does."""
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
