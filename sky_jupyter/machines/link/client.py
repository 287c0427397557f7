"""Client of the link: starts or joins its process; machines and tunnels."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import LinkLost, PoolError, SkyError
from ...util import process_identity
from ..ssh.known_hosts import Unknown
from ..ssh.types import Prompts
from . import encoding, socket_folder
from .encoding import Event
from .framing import Broken, Wire, prove
from .machine import LinkMachine, LinkProcess
from .target_kinds import AnyTarget

_START_PATIENCE = 30.0
_END_PATIENCE = 15.0
_IDLE = 4
_LOOK = 0.01


@dataclass(frozen=True)
class TunnelHandle:
    """Local port that leads to a machine's port and survives breaks.

    Attributes
    ----------
    port : int
        Port on 127.0.0.1. Any local user can connect to it: only TLS should pass.
    to : tuple of str and int
        Target address, as the machine sees it.
    """

    link: Link
    number: int
    machine: int
    port: int
    to: tuple[str, int]

    def close(self) -> None:
        """Close the port and all connections through it."""
        self.link.ask("close_tunnel", tunnel=self.number)


class Link:
    """Client of a link's process, made by `start` or `join`; thread-safe.

    Parameters
    ----------
    folder : Path
        The link's folder.
    key : bytes
        The key that both sides prove to have.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self.folder, self._key = folder, key
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._idle: list[Wire] = []
        self._tell: list[Callable[[Event], None]] = []
        self._tell_end: Callable[[], None] = lambda: None
        self._listener: threading.Thread | None = None
        self._closed = False
        # Process id, if known.
        self.pid = 0

    @classmethod
    def start(
        cls,
        folder: Path,
        owner: process_identity.ProcessIdentity | None = None,
        *,
        idle_timeout: float | None = None,
        folders: Sequence[Path] = (),
        stop: threading.Event | None = None,
    ) -> Link:
        """Start a link.

        Parameters
        ----------
        folder : Path
            Its folder; one that is created here is removed when the link ends.
        owner : process_identity.ProcessIdentity, optional
            Process that the link ends with; this one by default.
        idle_timeout : float, optional
            For a pool that survives its owner: seconds without a client after which the link ends.
        folders : sequence of Path
            Folders to remove when the link ends with its owner; see `keep`.
        stop : threading.Event, optional
            Set when the link is not needed any more: it ends while it starts.

        Returns
        -------
        Link
            Its client.

        Raises
        ------
        PoolError
            When a link runs in this folder, the new one does not start, or it was stopped.
        """
        folder = Path(os.path.abspath(folder))
        if socket_folder.answers(folder):
            raise PoolError(f"a link runs in {folder} already: join it, or end it first")
        named = [os.path.abspath(one) for one in folders]
        config = {"owner": list(owner or process_identity.this()), "lease": idle_timeout, "folders": named}
        link = cls(folder, socket_folder.make(folder, config))
        try:
            link._launch()
            link._come_up(stop or threading.Event())
        except BaseException:
            link._kill()
            raise
        return link

    @classmethod
    def join(cls, folder: Path) -> Link:
        """Return a client of a running link; raise PoolError if there is none."""
        folder = Path(os.path.abspath(folder))
        link = cls(folder, socket_folder.read_key(folder))
        try:
            link._listen()
        except (OSError, Broken) as error:
            raise PoolError(f"no link answers in {folder}: {error}") from None
        return link

    # Machines and tunnels

    def connect(
        self,
        target: AnyTarget,
        *,
        accept: bool | Mapping[str, str] = False,
        prompts: Prompts | None = None,
        address: str | None = None,
    ) -> LinkMachine:
        """Return a connected machine, which the link keeps connected from then on.

        A machine that the link has already is reused, and reconnected now if its connection is lost.

        Parameters
        ----------
        target : Target or PodTarget
            The machine.
        accept : bool or mapping of str to str
            See `providers.SSH`.
        prompts : Prompts, optional
            Callbacks that ask a person, in this thread; by default, there are no prompts. Answers are not stored.
        address : str, optional
            Address for the pool's other machines; by default, the one at which it answers.

        Returns
        -------
        LinkMachine
            The machine.

        Raises
        ------
        MachineError
            When it cannot be reached, its key is not accepted, or it does not let us in.
        """
        prompts = prompts or Prompts()
        facts = {
            "target": encoding.from_target(target),
            "accept": dict(accept) if isinstance(accept, Mapping) else accept,
            "address": address,
            "passphrase": prompts.passphrase is not None,
            "ask": prompts.accept is not None,
            # The SSH agent of this login; the link may have been started in another login.
            "agent": os.environ.get("SSH_AUTH_SOCK"),
        }
        with self.call("connect", facts, target.name) as wire:
            while "ask" in (question := wire.receive().facts):
                wire.send({"answer": _answer(question, prompts)})
            reply = question
        # The link already has a connection to exactly this target.
        return self._machine(encoding.checked(reply), target)

    def machines(self) -> list[LinkMachine]:
        """Return all machines of the link, connected or not."""
        found, more = list[dict[str, Any]](), True
        while more:
            state = self.state(after=found[-1]["machine"] if found else 0)
            found += state["machines"]
            # An older link tells of all at once.
            more = bool(state.get("more"))
        return [self._machine(facts, encoding.target(facts["target"])) for facts in found]

    def state(self, *, after: int = 0) -> dict[str, Any]:
        """Return what the link holds; of the machines, the next ones after a number."""
        return self.ask("state", after=after)

    def tunnel(self, machine: LinkMachine, host: str, port: int, *, wish: int = 0, probe: bool = False) -> TunnelHandle:
        """Return a local port to an address of a machine; the same for the same address.

        While the machine is away, connections are refused at once, and existing ones have ended. A new tunnel uses the
        port ``wish`` if it is free. With ``probe``, raise MachineError if the machine refuses connections to that
        address.
        """
        facts = {"machine": machine.number, "host": host, "port": port, "wish": wish, "probe": probe}
        return self._shown(self.ask("tunnel", machine.name, **facts))

    def tunnels(self) -> list[TunnelHandle]:
        """Return all tunnels of the link."""
        return [self._shown(facts) for facts in self.state()["tunnels"]]

    def relay(self, machine: LinkMachine, through: LinkMachine, host: str, port: int, *, wish: int = 0) -> int:
        """Return a machine's loopback port that leads to an address of another.

        Connections pass through this machine. The port is the same for the same address, and survives breaks. With
        ``wish`` it is this port, once an earlier link's relay has released it. Raise MachineError if the machine
        refuses to listen.
        """
        facts = {"machine": machine.number, "through": through.number, "host": host, "port": port, "wish": wish}
        return int(self.ask("relay", machine.name, **facts)["port"])

    def on_event(self, tell: Callable[[Event], None]) -> None:
        """Call a function, in a thread of ours, with each event of the connections."""
        with self._lock:
            self._tell.append(tell)

    def on_end(self, tell: Callable[[], None]) -> None:
        """Call a function, in a thread of ours, if the process ends unexpectedly."""
        self._tell_end = tell

    def _machine(self, facts: dict[str, Any], target: AnyTarget) -> LinkMachine:
        return LinkMachine(self, facts["machine"], target, key=facts["key"], address=facts["address"])

    def _shown(self, facts: dict[str, Any]) -> TunnelHandle:
        return TunnelHandle(self, facts["tunnel"], facts["machine"], facts["port"], (facts["to"][0], facts["to"][1]))

    # Lifetime

    def keep(
        self, idle_timeout: float | None, processes: Sequence[LinkProcess] = (), folders: Sequence[Path] = ()
    ) -> None:
        """Set the idle timeout of the link; None to end with its owner.

        Parameters
        ----------
        idle_timeout : float or None
            Seconds without a client after which the link ends.
        processes : sequence of LinkProcess
            The pool's processes. While no client is connected, the link polls them: it ends with the last one, and not
            before if it can poll them.
        folders : sequence of Path
            The pool's local folders, which are removed once nobody can attach to the pool again.
        """
        facts = [
            {"machine": one.machine.number, "pid": one.identity[0], "started": one.identity[1], "folder": one.folder}
            for one in processes
        ]
        self.ask("keep", lease=idle_timeout, processes=facts, folders=[os.path.abspath(folder) for folder in folders])

    def finish(self, works: Sequence[tuple[LinkMachine, str]], patience: float, folders: Sequence[Path]) -> None:
        """Clean up machines that could not be reached, then end the link, clients or not.

        Parameters
        ----------
        works : sequence of (LinkMachine, str)
            Machines, with the script of `remote_cleanup.script` for each.
        patience : float
            Seconds to retry.
        folders : sequence of Path
            The pool's local folders, which are removed at the end.
        """
        # Its end is expected, at any time.
        self._tell_end = lambda: None
        facts = [{"machine": machine.number, "script": script} for machine, script in works]
        self.ask("finish", works=facts, patience=patience, folders=[os.path.abspath(folder) for folder in folders])

    @property
    def alive(self) -> bool:
        """True if the link's process answers."""
        try:
            self.state()
        except (PoolError, LinkLost):
            return False
        return True

    def end(self, folders: Sequence[Path] = ()) -> None:
        """End the link and its connections, and remove folders; ignore an ended link."""
        # Its end is expected, and may come before the reply.
        self._tell_end = lambda: None
        self.wake()
        with contextlib.suppress(SkyError):
            named = [os.path.abspath(one) for one in folders]
            pid, started = self.ask("end", folders=named)["process"]
            until = time.monotonic() + _END_PATIENCE
            while process_identity.lives(pid, started) and time.monotonic() < until:
                time.sleep(_LOOK)
        self.close()
        if self._process is not None:
            try:
                self._process.wait(_END_PATIENCE)
            except subprocess.TimeoutExpired:
                self._kill()

    def wake(self) -> None:
        """Continue the link's process if it is stopped: it could not answer."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Close this client; the link keeps running, as `keep` has set."""
        with self._lock:
            self._closed = True
            wires, self._wires = list(self._wires), set()
            self._idle.clear()
        for wire in wires:
            wire.close()
        listener = self._listener
        if listener is not None and listener is not threading.current_thread():
            listener.join(_END_PATIENCE)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self) -> None:
        root = Path(__file__).resolve().parents[3]
        env = dict(os.environ)
        if root.name not in ("site-packages", "dist-packages"):
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH", "")]))
        log = os.open(self.folder / socket_folder.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __package__, str(self.folder)],
                env=env,
                # Python searches its working folder for modules: nobody else can write to this one.
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self.pid = self._process.pid
        # Reap it if it ends before this process.
        threading.Thread(target=self._process.wait, name="sky-link-child", daemon=True).start()

    def _come_up(self, stop: threading.Event) -> None:
        assert self._process is not None
        until = time.monotonic() + _START_PATIENCE
        while not stop.is_set():
            try:
                self._listen()
            except (OSError, Broken):
                if self._process.poll() is not None or time.monotonic() > until:
                    raise PoolError(f"the link's process did not come up: {self._said()}") from None
                stop.wait(_LOOK)
                continue
            return
        raise PoolError("the link's process was ended while it started")

    def _said(self) -> str:
        try:
            told = (self.folder / socket_folder.LOG).read_text(errors="replace")[-2000:].strip()
        except FileNotFoundError:
            # It removes its folder as it ends in order, as when its owner has ended.
            return "it has ended already, perhaps with its owner"
        return told or "it said nothing"

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.close()
        socket_folder.clear(self.folder)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _listen(self) -> None:
        wire = self._dial()
        wire.send({"call": "events"})
        self._listener = threading.Thread(target=self._hear, args=(wire,), name="sky-link-events", daemon=True)
        self._listener.start()

    def _hear(self, wire: Wire) -> None:
        with contextlib.suppress(Broken):
            while True:
                facts = wire.receive().facts.get("event")
                if isinstance(facts, dict):
                    with self._lock:
                        tell = list(self._tell)
                    for one in tell:
                        one(encoding.event(facts))
        self.forget(wire)
        if not self._closed:
            self._tell_end()

    # Calls

    def ask(self, call: str, name: str = "link", /, **facts: Any) -> dict[str, Any]:
        """Send a call and return its one reply."""
        with self.call(call, facts, name) as wire:
            reply = wire.receive().facts
        return encoding.checked(reply)

    @contextlib.contextmanager
    def call(self, call: str, facts: Mapping[str, Any], host: str = "link", *, last: bool = False) -> Iterator[Wire]:
        """Send a call and yield its wire, from which the whole reply must be read.

        Other calls reuse the wire then, except after the ``last``.
        """
        try:
            wire = self._borrow()
        except (OSError, Broken) as error:
            raise _ended(host, error) from None
        try:
            wire.send({"call": call, **facts})
            yield wire
        except Broken as error:
            self.forget(wire)
            raise _ended(host, error) from None
        except BaseException:
            # A half-sent message cannot be continued.
            self.forget(wire)
            raise
        if last:
            return
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE:
                self._idle.append(wire)
                return
        self.forget(wire)

    def _borrow(self) -> Wire:
        with self._lock:
            if self._closed:
                raise PoolError("this client of the link was closed")
            while self._idle:
                wire = self._idle.pop()
                if not wire.gone():
                    return wire
                self._wires.discard(wire)
                wire.close()
        return self._dial()

    def _dial(self) -> Wire:
        wire = prove(socket_folder.dial(self.folder), self._key, server=False)
        with self._lock:
            self._wires.add(wire)
        return wire

    def release(self, wire: Wire) -> None:
        """Hand a wire over to its user, who closes it."""
        with self._lock:
            self._wires.discard(wire)

    def forget(self, wire: Wire) -> None:
        """Close a wire that is not needed any more."""
        with self._lock:
            self._wires.discard(wire)
        wire.close()


def _answer(question: Mapping[str, Any], prompts: Prompts) -> Any:
    if question["ask"] == "passphrase" and prompts.passphrase is not None:
        return prompts.passphrase(str(question.get("path")), int(question.get("attempts", 0)))
    if question["ask"] == "host" and prompts.accept is not None:
        return prompts.accept(Unknown(*(str(question.get(name)) for name in ("host", "kind", "fingerprint"))))
    return None


def _ended(host: str, error: BaseException) -> LinkLost:
    return LinkLost(host, "ended", f"the pool's link process does not answer ({error}); was it ended?")
