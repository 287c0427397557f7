"""Session with a pod's container: a WebSocket per stream, one of them watched."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ...errors import LinkLost, MachineError, Unreachable
from ..forwards import ByteStream, dial
from ..ssh.connection_loss import ConnectionLoss
from ..ssh.persistent_shell import Shell
from ..ssh.types import NoShell
from . import api_connection, pod_channels
from .pod_channels import STDIN, ExecChannel, PortStream
from .pod_target import PodTarget
from .websocket import WebSocket

TICK = 1.0
# Seconds between pings of the watched stream, and of the others: load balancers close connections that are silent for
# minutes.
PULSE, _PING = 5, 20.0
# Seconds of silence after which the session counts as lost.
SILENT = 20
# Servers end streams without data after four hours, pings or not.
_TOUCH = 1800.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_END_PATIENCE = 5.0
_CHECK_PATIENCE = 30.0
_DIRECT = 2.0
# States of /proc/net/tcp's lines, and the addresses that the pod's loopback reaches.
_LISTENING = (
    "for f in /proc/net/tcp /proc/net/tcp6; do [ -r $f ] || continue; while read -r a b c d e; do case $b/$d in "
    "00000000:{port}/0A|0100007F:{port}/0A|00000000000000000000000000000000:{port}/0A|"
    "00000000000000000000000001000000:{port}/0A|0000000000000000FFFF00000100007F:{port}/0A) exit 0;; "
    "esac; done <$f; done; exit 9"
)


class PodSession:
    """Connection to a container of a pod, made by `PodSession.open`; thread-safe.

    It counts as lost when one of its commands' streams breaks: the cause, such as an API server that ends, breaks the
    others too.

    Parameters
    ----------
    target : PodTarget
        The pod.
    """

    def __init__(self, target: PodTarget) -> None:
        self.target = target
        self.address = target.address
        # Protocols that are offered for commands; after the first one, only the server's choice.
        self._protocols: tuple[str, ...] = (pod_channels.V5, pod_channels.V4)
        self._lock = threading.Lock()
        self._channels: weakref.WeakSet[ExecChannel] = weakref.WeakSet()
        self._streams: weakref.WeakSet[PortStream] = weakref.WeakSet()
        self._closing = threading.Event()
        self._loss = ConnectionLoss(self._closing)
        # The session's own shell, on the watched stream.
        self._shell = Shell(self)
        self._watched: ExecChannel | None = None
        self._threads: list[threading.Thread] = []

    @classmethod
    def open(cls, target: PodTarget) -> PodSession:
        """Connect to a pod.

        Parameters
        ----------
        target : PodTarget
            The pod.

        Returns
        -------
        PodSession
            The session.

        Raises
        ------
        MachineError
            When that fails: reason ``"gone"`` if the pod has ended or was replaced, `LoginRefused` if rights are
            missing, `NoShell` if its image has no shell, `Unreachable` if a later try may succeed.
        """
        made = cls(target)
        try:
            made._check(api_connection.read_pod(target))
            made._begin()
        except BaseException:
            made.close()
            raise
        return made

    def _check(self, pod: dict[str, Any]) -> None:
        """Raise MachineError unless it is the right pod and its container runs."""
        target, metadata, status = self.target, _mapping(pod, "metadata"), _mapping(pod, "status")
        if target.uid and metadata.get("uid") != target.uid:
            raise api_connection.gone(target, "another pod has its name now; this one was replaced")
        if (phase := status.get("phase")) in ("Succeeded", "Failed"):
            words = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
            raise api_connection.gone(target, f"it has ended ({words or phase})")
        if not self.address:
            self.address = str(status.get("podIP") or "")
        states = status.get("containerStatuses")
        for one in states if isinstance(states, list) else ():
            if isinstance(one, dict) and one.get("name") == target.container:
                if "running" in _mapping(one, "state"):
                    return
                raise Unreachable(target.name, "waiting", f"container {target.container} of {target} {_state(one)}")
        if status.get("phase") != "Running":
            raise Unreachable(target.name, "waiting", f"{target} is {status.get('phase') or 'not placed yet'}")
        raise MachineError(target.name, "refused", f"{target} has no container {target.container!r}")

    def _begin(self) -> None:
        try:
            self._shell.run(":", timeout=_CHECK_PATIENCE)
        except NoShell as error:
            told = self._watched.failure if self._watched is not None else ""
            raise NoShell(
                self.target.name,
                "shell",
                f"container {self.target.container} of {self.target} runs no /bin/sh: name an image with a shell "
                f"and the usual tools ({told or error})",
            ) from None
        for name, work in (("watch", self._watch), ("pulse", self._pulse)):
            thread = threading.Thread(target=work, name=f"sky-pod-{name}-{self.target.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    # Using it

    @property
    def alive(self) -> bool:
        """Whether the connection is alive, as far as is known."""
        return self._loss.reason is None and not self._closing.is_set()

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks; at once if it has broken."""
        self._loss.on_lost(tell)

    def channel(self, command: str, *, ends: bool = False) -> ExecChannel:
        """Run a command in a container's shell, in the home folder; return its streams.

        With ``ends``, `ExecChannel.shutdown_write` ends the command's input. If the server is older than 1.30, that
        needs one more process in the pod, and the command does not lead its process group.
        """
        framed = ends and self._protocols == (pod_channels.V4,)
        script = f"cd 2>/dev/null; {pod_channels.framed(command) if framed else command}"
        words = ("/bin/sh", "-c", script)
        query = [("command", word) for word in words]
        query += [("container", self.target.container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        socket = self._opened("exec", query, self._protocols)
        if len(self._protocols) > 1:
            self._protocols = (socket.protocol,)
            if ends and socket.protocol == pod_channels.V4:
                # This was the first command: only now is it known how input must be sent.
                socket.close()
                return self.channel(command, ends=True)
        made = ExecChannel(socket, self._broken, framed=framed)
        self._add(self._channels, made)
        if self._watched is None:
            self._watched = made
        return made

    def open_stream(self, host: str, port: int) -> ByteStream:
        """Connect to a port of the pod.

        Within the cluster, it connects to other addresses as well. Raises MachineError if it is refused.
        """
        if not self.target.kubeconfig and host not in _LOOPBACK:
            try:
                return dial(host, port)
            except OSError:
                # The port may be open on the loopback only, or a network policy may block the connection.
                pass
        if host not in (*_LOOPBACK, self.address):
            raise MachineError(
                self.target.name,
                "refused",
                f"{self.target} leads to its own ports only, not to {host}:{port}: that is all that the cluster's API "
                "forwards; connect to the pod that has this address",
            )
        socket = self._opened("portforward", [("ports", str(port))], (pod_channels.V4,))
        made = PortStream(socket, port)
        self._add(self._streams, made)
        return made

    def probe(self, host: str, port: int) -> None:
        """Raise MachineError if a port has no listener; the API reports that too late."""
        if host in (*_LOOPBACK, self.address):
            script = _LISTENING.format(port=f"{port:04X}")
            if self._shell.run(script, timeout=_CHECK_PATIENCE).status == 9:
                raise MachineError(
                    self.target.name, "refused", f"{self.target} refused a connection to {host}:{port}: nothing "
                    "listens there on its loopback",
                )  # fmt: skip
        self.open_stream(host, port).close()

    def listen(self, port: int, accept: Callable[[Any], None]) -> int:
        """Raise MachineError: the API forwards no port of a pod to here."""
        raise MachineError(
            self.target.name,
            "relay",
            f"{self.target} cannot listen on a port for us: the cluster's API forwards ports to pods only, not from "
            "them; pods reach one another by their addresses",
        )

    def unlisten(self, port: int) -> None:
        """Do nothing: no port is open."""

    def sftp(self) -> Any:
        """Raise MachineError: a container has no SFTP."""
        raise MachineError(self.target.name, "sftp", f"{self.target} runs no /bin/sh, without which no file is copied")

    def status(self, channel: ExecChannel) -> int:
        """Wait for a channel's command; return its status, or minus the signal.

        Raise LinkLost if its stream ended first: the status is unknown then.
        """
        found = channel.wait_status()
        if channel.failure:
            raise MachineError(self.target.name, "command", f"{self.target} could not run a command: {channel.failure}")
        if found is None:
            raise self._loss.reason or LinkLost(
                self.target.name, "closed", f"the stream of a command on {self.target} ended before it did"
            )
        return found

    def _opened(self, action: str, query: list[tuple[str, str]], protocols: tuple[str, ...]) -> WebSocket:
        if self._closing.is_set() or self._loss.reason is not None:
            raise self._loss.reason or LinkLost(self.target.name, "closed", "the connection was closed")
        return api_connection.open_websocket(self.target, action, query, protocols)

    def _add(self, to: weakref.WeakSet[Any], made: Any) -> None:
        with self._lock:
            to.add(made)
        if self._closing.is_set():
            made.close()

    # Watching and ending it

    def _pulse(self) -> None:
        """Ping the streams, and detect silence in ticks, as a laptop may be suspended."""
        watched = self._watched
        assert watched is not None
        seen, silent = watched.socket.received, 0
        touched = time.monotonic()
        while not self._closing.wait(TICK):
            if watched.socket.received != seen:
                seen, silent = watched.socket.received, 0
            silent += 1
            if silent >= SILENT:
                self._lose("silent", f"{self.target} has not answered for {silent} s; the connection is closed")
                return
            if silent % PULSE == 0:
                watched.socket.ping()
            now = time.monotonic()
            touch, touched = now - touched > _TOUCH, now if now - touched > _TOUCH else touched
            for one in self._open():
                if touch:
                    one.socket.touch(STDIN)
                if now - max(one.socket.sent, one.socket.received) > _PING:
                    one.socket.ping()
                if isinstance(one, ExecChannel):
                    one.look()

    def _open(self) -> list[ExecChannel | PortStream]:
        with self._lock:
            found: list[ExecChannel | PortStream] = [*self._channels, *self._streams]
            return [one for one in found if not one.socket.closed]

    def _broken(self, channel: ExecChannel, why: str) -> None:
        self._lose("broken", f"the connection to {self.target} broke ({why})")

    def _watch(self) -> None:
        """Watch the session's shell: its end means a lost connection or container."""
        assert self._watched is not None
        self._watched.watch()
        self._lose("broken", f"the session's shell in {self.target} has ended; its container may have")

    def _lose(self, reason: str, message: str) -> None:
        self._loss.lose(LinkLost(self.target.name, reason, message), self._shut)

    def _shut(self) -> None:
        self._closing.set()
        for one in self._open():
            one.close()

    def close(self) -> None:
        """Close the connection and its threads. Commands that survive keep running."""
        self._shut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_END_PATIENCE)


def _mapping(facts: Any, key: str) -> dict[str, Any]:
    found = facts.get(key) if isinstance(facts, dict) else None
    return found if isinstance(found, dict) else {}


def _state(container: dict[str, Any]) -> str:
    """Return why a container does not run, in words."""
    for kind, words in (("waiting", "waits"), ("terminated", "has ended")):
        if kind in _mapping(container, "state"):
            found = _mapping(_mapping(container, "state"), kind)
            why = ": ".join(str(found[key]) for key in ("reason", "message") if found.get(key))
            return f"{words} ({why or 'no reason is given'})"
    return "is not running"


__all__ = ["PodSession"]
