"""Host of the link: a session that is monitored and re-established."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

from ...errors import AGAIN, BROKEN_LOGIN, GONE, HostKeyError, LinkLost, LoginRefused, MachineError
from ..ssh import auth
from ..ssh.session import Access
from ..ssh.session_machine import SessionMachine
from . import target_kinds
from .encoding import Event
from .target_kinds import AnyTarget

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
# A session shorter than this may be lost again at once: the back-off keeps growing.
_STABLE = 20.0
# Reasons of a `LoginRefused` that may pass, since this login worked before: a right that an API server which has just
# started has not loaded yet; and a connection that ended while we logged in, which may have broken again.
_PASSING = ("rights", *BROKEN_LOGIN)
# sshd allows ten sessions per connection by default; commands need some of them.
_LANES = 4


class ReconnectingHost:
    """Host that the link keeps connected; thread-safe.

    Parameters
    ----------
    number : int
        Number in this link.
    target : Target or PodTarget
        The machine.
    address : str, optional
        Address for the pool's other machines.
    tell : callable
        Called with each event.
    """

    def __init__(self, number: int, target: AnyTarget, address: str | None, tell: Callable[[Event], None]) -> None:
        self.number, self.target, self.given_address = number, target, address
        self.key = self.address = ""
        self._tell = tell
        self._access = Access()
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._machine: SessionMachine | None = None
        self._lanes: list[SessionMachine] = []
        self._bulk: SessionMachine | None = None
        self._free = threading.Semaphore(_LANES)
        self._why = ""
        self._lost_at = self._next_at = 0.0
        self._opened_at = 0.0
        self._pause = FIRST_PAUSE
        self._asked = threading.Event()
        self._closed = False
        # True once the machine was found to be gone: then there is nothing to clean up.
        self.gone = False
        self._rebuilding = False
        self._on_open: list[Callable[[SessionMachine], None]] = []

    # State

    @property
    def up(self) -> bool:
        """Whether its session is alive, as far as is known."""
        machine = self._machine
        return machine is not None and machine.session.alive

    @property
    def machine(self) -> SessionMachine:
        """Machine over the session; LinkLost, with the time of the next attempt, if lost."""
        machine = self._machine
        if machine is not None and machine.session.alive:
            return machine
        raise LinkLost(self.target.name, "closed" if self._closed else "broken", self._state())

    @contextlib.contextmanager
    def lane(self) -> Iterator[SessionMachine]:
        """Yield the machine with a shell that no other thread uses meanwhile."""
        with self._free:
            machine = self.machine
            with self._lock:
                lane = self._lanes.pop() if self._lanes else None
            if lane is None or lane.session is not machine.session:
                lane = machine.lane()
            try:
                yield lane
            finally:
                with self._lock:
                    if not self._closed and lane.session.alive:
                        self._lanes.append(lane)

    @contextlib.contextmanager
    def bulk(self) -> Iterator[SessionMachine]:
        """Yield the machine over a second connection, for transfers.

        A transfer on the first one would delay tunnels and commands. If the host refuses a second, it is the first.
        """
        self.machine  # noqa: B018 - raises LinkLost if the host is away
        with self._lock:
            mine, self._bulk = self._bulk, None
        if mine is not None and not mine.session.alive:
            mine.close()
            mine = None
        if mine is None:
            try:
                mine = self.machine.beside(self._access)
            except MachineError:
                with self.lane() as lane:
                    yield lane
                return
        try:
            yield mine
        finally:
            with self._lock:
                keep = self._bulk is None and mine.session.alive and not self._closed
                if keep:
                    self._bulk = mine
            if not keep:
                mine.close()

    def _state(self) -> str:
        if self._closed:
            return "this connection was ended; connect to the machine again"
        if self._lost_at <= self._opened_at:
            return f"the connection has just broken{AGAIN}"
        away = time.monotonic() - self._lost_at
        told = f" ({self._why})" if self._why else ""
        left = self._next_at - time.monotonic()
        when = f"; trying again in {max(left, 0):.0f} s" if self._rebuilding else "; it is not tried again until asked"
        return f"unreachable for {away:.0f} s{when}{told}"

    def goes_by(self, address: str | None) -> bool:
        """Return True if ``address`` means this host; None means its default."""
        return address in ((self.given_address, self.address) if self.address else (self.given_address,))

    # Connecting

    def on_open(self, tell: Callable[[SessionMachine], None]) -> None:
        """Call a function, which must not block, with the machine of each new session."""
        with self._lock:
            self._on_open.append(tell)

    def open(self, access: Access) -> None:
        """Connect if not connected; raise errors to the caller, who may be prompted."""
        with self._opening:
            if not self.up:
                self._install(access)
                if self._rebuilding:
                    self._asked.set()

    def _install(self, access: Access) -> None:
        machine = target_kinds.connect(self.target, access, self.given_address)
        session = machine.session
        with self._lock:
            if self._closed:
                session.close()
                raise LinkLost(self.target.name, "closed", "the connection was ended while it was made")
            # Reconnecting shows no prompts: it works with the keys that were opened and accepted before, or fails.
            self._access = Access(_silent(access), access.accept)
            self._machine, self._lanes = machine, []
            self.key, self.address = machine.key, machine.address
            self._why, self._opened_at, self.gone = "", time.monotonic(), False
            told = list(self._on_open)
        for tell in told:
            tell(machine)
        session.on_lost(lambda reason: self._lost(machine, reason))

    # Reconnecting

    def retry(self) -> None:
        """Reconnect now, without waiting for the back-off."""
        if not self.up:
            self._asked.set()
            self._begin()

    def _lost(self, machine: SessionMachine, reason: LinkLost) -> None:
        with self._lock:
            if self._closed or self._machine is not machine:
                return
            self._why = str(reason).partition(": ")[2]
            self._lost_at = time.monotonic()
            if self._lost_at - self._opened_at > _STABLE:
                self._pause = FIRST_PAUSE
        # Closing joins the session's threads; this is one of them.
        threading.Thread(target=machine.session.close, daemon=True).start()
        self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._closed or self._rebuilding or self.up:
                return
            self._rebuilding = True
            if self._lost_at <= self._opened_at:
                self._lost_at = time.monotonic()  # a client has noticed the loss before our watch
            lost = self._machine
        threading.Thread(target=self._rebuild, args=(lost,), name=f"link-rebuild-{self.number}", daemon=True).start()

    def _rebuild(self, lost: SessionMachine | None) -> None:
        try:
            while not self._closed and not self._try():
                pass
        finally:
            with self._lock:
                self._rebuilding = False
                # The request has been served: the next loss has its own back-off.
                self._asked.clear()
        if self._machine is not lost:
            # If the new session was lost before this ended, its loss found a rebuild under way and began none.
            self._begin()

    def _try(self) -> bool:
        """Wait for the back-off, then connect; return True for the last attempt."""
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self._next_at = time.monotonic() + pause
        # Also sent without a pause: an attempt alone may take a while.
        when = "now" if self._asked.is_set() else f"in {pause:.0f} s"
        self._say("waiting", f"unreachable, trying again {when}", pause)
        if self._asked.wait(pause):
            self._asked.clear()
            self._pause = FIRST_PAUSE
        if self._closed:
            return True
        try:
            self.open(self._access)
        except (HostKeyError, LoginRefused) as error:
            self._why = str(error).partition(": ")[2]
            if error.reason in _PASSING:
                return False
            self._say("refused", f"reachable again, but unusable: {self._why}")
            return True
        except Exception as error:  # of any library that connects: this thread must go on
            if isinstance(error, MachineError) and error.reason == GONE:
                self.gone, self._why = True, str(error).partition(": ")[2]
                self._say("refused", f"gone as it was: {self._why}")
                return True
            self._why = str(error).removeprefix(f"{self.target.name}: ")
            return False
        self._say("back", f"back after {time.monotonic() - self._lost_at:.0f} s")
        return True

    def _say(self, kind: str, text: str, pause: float = 0.0) -> None:
        away = time.monotonic() - self._lost_at
        self._tell(Event(self.target.name, kind, text, self._why, pause, away))

    # Closing

    def close(self) -> None:
        """Close the connection for good."""
        with self._lock:
            self._closed = True
            mine, self._machine, self._bulk = [self._machine, self._bulk], None, None
            self._lanes = []
        self._asked.set()
        for machine in mine:
            if machine is not None:
                machine.close()


def _silent(access: Access) -> auth.KeyRing:
    """Return the same opened keys, without a prompt."""
    return dataclasses.replace(access.ring, passphrase=None)
