"""State of the link's process: hosts, tunnels, relays, commands, keys, listeners."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

from ...errors import PoolError, SpecError
from ..ssh import auth
from ..ssh.known_hosts import Accepted
from ..ssh.session import Access
from ..ssh.shell_machine import ShellCommand
from ..ssh.types import Prompts
from .encoding import Event
from .local_forwards import Tunnel
from .reconnecting_host import ReconnectingHost
from .remote_forwards import Relay
from .target_kinds import AnyTarget

_MOST_HOSTS = 4096
_MOST_TUNNELS = 256
_MOST_ENDED = 1024
_EVENTS = 256


class ConnectionTable:
    """The link's open connections; one instance, thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._hosts: dict[int, ReconnectingHost] = {}
        self._tunnels: dict[int, Tunnel] = {}
        self._relays: list[Relay] = []
        self._relaying = threading.Lock()
        self._commands: dict[int, ShellCommand] = {}
        self._listeners: set[queue.Queue[Event]] = set()
        self._ring = auth.KeyRing()
        self._asking = 0

    # Hosts

    def connect(self, target: AnyTarget, address: str | None, accept: Accepted, prompts: Prompts) -> ReconnectingHost:
        """Return the connected host: an existing or a new one."""
        with self._lock:
            found = [one for one in self._hosts.values() if one.target == target and one.goes_by(address)]
            if not found and len(self._hosts) >= _MOST_HOSTS:
                raise SpecError(f"the link holds {_MOST_HOSTS} hosts already, which is as many as it can")
            held = found[0] if found else ReconnectingHost(next(self._numbers), target, address, self.tell)
            self._hosts[held.number] = held
        try:
            with self._ring_for(prompts) as ring:
                held.open(Access(ring, accept, prompts.accept))
        except BaseException:
            with self._lock:
                # A host that was connected before keeps trying, and keeps its tunnels.
                if not held.key:
                    self._hosts.pop(held.number, None)
            raise
        with self._lock:
            # Another client that connected to it at once may have failed, and removed it.
            if held.up:
                self._hosts[held.number] = held
        return held

    @contextlib.contextmanager
    def _ring_for(self, prompts: Prompts) -> Iterator[auth.KeyRing]:
        """Yield the shared keys; clients that connect at once share refusals too."""
        with self._lock:
            self._asking += 1
        try:
            yield dataclasses.replace(self._ring, passphrase=prompts.passphrase)
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._ring.ask_again()

    def host(self, number: Any) -> ReconnectingHost:
        """Return a host by its number."""
        with self._lock:
            held = self._hosts.get(number) if isinstance(number, int) else None
        if held is None:
            raise PoolError("the link does not hold this machine any more: connect to it again")
        return held

    def hosts(self) -> list[ReconnectingHost]:
        """Return all hosts that have been connected."""
        with self._lock:
            return [held for held in self._hosts.values() if held.key]

    def let_go(self, number: Any) -> None:
        """Close a host's connection and its tunnels."""
        held = self.host(number)
        with self._lock:
            self._hosts.pop(held.number, None)
            tunnels = [one for one in self._tunnels.values() if one.held is held]
            for tunnel in tunnels:
                del self._tunnels[tunnel.number]
            relays = [one for one in self._relays if held in (one.near, one.far)]
            self._relays = [one for one in self._relays if one not in relays]
        for tunnel in tunnels:
            tunnel.close()
        for relay in relays:
            relay.close()
        held.close()

    # Tunnels

    def tunnel(self, held: ReconnectingHost, host: str, port: int, wish: int = 0) -> Tunnel:
        """Return the tunnel to an address: the existing or a new one."""
        with self._lock:
            for one in self._tunnels.values():
                if (one.held, one.host, one.there) == (held, host, port):
                    return one
            if len(self._tunnels) >= _MOST_TUNNELS:
                raise SpecError(f"the link holds {_MOST_TUNNELS} tunnels already, which is as many as it can")
            made = Tunnel(next(self._numbers), held, host, port, wish)
            self._tunnels[made.number] = made
            return made

    def tunnels(self) -> list[Tunnel]:
        """Return all tunnels."""
        with self._lock:
            return list(self._tunnels.values())

    def close_tunnel(self, number: Any) -> None:
        """Close a tunnel if it exists."""
        with self._lock:
            tunnel = self._tunnels.pop(number, None) if isinstance(number, int) else None
        if tunnel is not None:
            tunnel.close()

    def relay(self, near: ReconnectingHost, far: ReconnectingHost, host: str, port: int, wish: int = 0) -> Relay:
        """Return the relay from a host to an address: the existing or a new one."""
        with self._relaying:
            for one in self._relays:
                if (one.near, one.far, one.host, one.there) == (near, far, host, port):
                    return one
            if len(self._relays) >= _MOST_TUNNELS:
                raise SpecError(f"the link holds {_MOST_TUNNELS} relays already, which is as many as it can")
            made = Relay(near, far, host, port, wish)
            with self._lock:
                self._relays.append(made)
            return made

    # Commands

    def add(self, command: ShellCommand) -> int:
        """Keep a command for other clients, and return its number."""
        with self._lock:
            number = next(self._numbers)
            self._commands[number] = command
            if len(self._commands) > _MOST_ENDED:
                for old in [n for n, one in self._commands.items() if one.ended][: _MOST_ENDED // 2]:
                    del self._commands[old]
            return number

    def command(self, number: Any) -> ShellCommand:
        """Return a command by its number."""
        with self._lock:
            command = self._commands.get(number) if isinstance(number, int) else None
        if command is None:
            raise PoolError("the link does not know this command any more")
        return command

    # Events

    def tell(self, event: Event) -> None:
        """Send an event to all listeners; a slow one loses its oldest event."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            with contextlib.suppress(queue.Full, queue.Empty):
                if listener.full():
                    listener.get_nowait()
                listener.put_nowait(event)

    @contextlib.contextmanager
    def listening(self) -> Iterator[queue.Queue[Event]]:
        """Yield a queue that receives the events."""
        listener: queue.Queue[Event] = queue.Queue(_EVENTS)
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def close(self) -> None:
        """Close all connections and tunnels."""
        for tunnel in self.tunnels():
            tunnel.close()
        with self._lock:
            hosts, self._hosts = list(self._hosts.values()), {}
        threads = [threading.Thread(target=held.close, daemon=True) for held in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5.0)
