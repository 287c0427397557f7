"""First SSH connections to machines: wait for boot, verify and replace host keys.

The provider is polled each second, and the port is dialled twice a second. The first host key (`pool_keys`) came with
the machine's creation, where others may read it. So after the first verified connection, the machine makes another host
key, whose public part is read over that connection.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import HostKeyError, LoginRefused, MachineError, ProvisionError, Unreachable
from ..machines.ssh import pool_keys
from ..machines.ssh.resolve_target import resolve
from ..machines.ssh.target import Target
from ..machines.ssh.types import shown
from ..util.text import first_line
from . import ssh_connections
from .provisioning_types import RUNNING, MachineRecord

if TYPE_CHECKING:
    from ..machines.base import Machine
    from ..machines.ssh.pool_keys import PoolKeys
    from .base import ConnectionSession

_POLL, _DIAL, _DIAL_TIMEOUT, _KNOWN_TIMEOUT = 1.0, 0.5, 1.0, 3.0
# Seconds before a line says what is waited for, and between such lines.
_LONG = 60.0
# Seconds for which refused log-ins are retried. While a machine boots, its users do not exist yet (cloud-init), or may
# not log in (pam_nologin).
_BOOTING = 90.0
_SCRIPT_TIMEOUT = 60.0
_CONSOLE_LINES = 3

_KEY = "/etc/ssh/ssh_host_ed25519_key"
_ROOT = 's="sudo -n"; [ "$(id -u)" != 0 ] || s=""; k=' + _KEY + "; "
# Prints the new public key, whether it is already in use or not.
_MAKE = (
    _ROOT + 'if [ "$($s cut -d" " -f2 $k.pub)" = {first} ]; then $s test -s $k.own.pub || {{ $s rm -f $k.own; '
    '$s ssh-keygen -q -t ed25519 -N "" -C "" -f $k.own; }} && $s cat $k.own.pub; else $s cat $k.pub; fi'
)
_USE = (
    _ROOT + "if $s test -f $k.own; then $s mv -f $k.own $k && $s mv -f $k.own.pub $k.pub; fi || exit 1; "
    "{{ $s systemctl restart ssh || $s systemctl restart sshd || "
    '$s kill -HUP "$($s cat /run/sshd.pid)"; }} 2>/dev/null; '
    "i=0; until ssh-keyscan -t ed25519 127.0.0.1 2>/dev/null | grep -qF {own}; do "
    'i=$((i + 1)); [ $i -lt 50 ] || {{ echo "sshd does not use it"; exit 1; }}; sleep 0.1; done'
)
_PUBLIC = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+\Z")


@dataclass(frozen=True)
class BootAccess:
    """Access of a provider to its machines while they boot.

    Attributes
    ----------
    describe : callable
        Returns machines' records by their ids; one that is not listed yet has the state ``"unknown"``.
    user : str
        User to log in with.
    jump : str or None
        Jump hosts, separated by commas, in order.
    admit : callable
        Allows SSH from this computer's present address, given a machine's record. Returns a notice about the machines
        for the user, or an empty text.
    console : callable
        Returns the text of a machine's console, given its record; for messages.
    """

    describe: Callable[[Sequence[str]], Sequence[MachineRecord]]
    user: str
    jump: str | None
    admit: Callable[[MachineRecord], str]
    console: Callable[[MachineRecord], str]


def connect(access: BootAccess, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
    """Connect to machines in parallel, once they have booted; see `Provider.connect`."""
    return ssh_connections.connect_all(_Contacts(access, ids, session).connect, ids)


class _Contacts:
    """Connections of one call; `connect` runs in a thread for each machine."""

    def __init__(self, access: BootAccess, ids: Sequence[str], session: ConnectionSession) -> None:
        self._access, self._ids, self._session = access, list(ids), session
        self._open = ssh_connections.opener(session)
        self._jump = _jump(access.jump) if access.jump else None
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._records: dict[str, MachineRecord] = {}
        # Regions whose machines let this computer in.
        self._admitted: set[str] = set()

    def connect(self, id: str) -> Machine:
        if (known := ssh_connections.known_target(self._session, id)) is not None and self._is_open(known[0]):
            # A machine that was stopped may have another address, and another machine its old address.
            with contextlib.suppress(Unreachable, HostKeyError, LoginRefused):
                return self._open(*known)
        record = self._booted(id)
        keys = pool_keys.of(record.pool)
        if keys is None:
            raise MachineError(
                id,
                "keys",
                f"its keys are not on this computer: the one that made pool {record.pool} has them, beside its "
                "registry, until the pool ends; attach there",
            )
        # A jump host is in the machines' own network.
        address = record.addresses[-1 if self._jump else 0]
        target = keys.target(id, address, self._access.user, self._jump)
        machine = self._dialled(target, record)
        try:
            _replace_first_key(machine, id, keys)
        except (MachineError, TimeoutError) as error:
            if not machine.up:
                raise
            self._session.tell(
                f"the host key of {id}, which came with its creation, is not replaced: {first_line(error)}"
            )
        return machine

    def _rounds(
        self, id: str, pause: float, state: Callable[[], str], more: Callable[[], str] = lambda: ""
    ) -> Iterator[None]:
        """Yield once a round; each minute, tell what the caller waits for and ``more``."""
        began, told = time.monotonic(), 1
        try:
            while True:
                if self._session.stop.is_set():
                    raise MachineError(id, "closed", "stopped")
                if time.monotonic() - began > told * _LONG:
                    self._session.tell(f"{id} after {told * _LONG:.0f} s: {state()}{more()}")
                    told += 1
                yield
                # A caller that gives up the wait says it in its message, however short the wait was.
                self._session.waits[id] = state()
                self._require_link()
                self._session.stop.wait(pause)
        finally:
            self._session.waits.pop(id, None)

    def _require_link(self) -> None:
        """Start the link if none runs; raise if it was closed, as by a cancelled start."""
        if self._session.open_link is not None:
            self._session.open_link().state()

    def _booted(self, id: str) -> MachineRecord:
        """Return the record of a running machine that has an address."""
        record: MachineRecord | None = None

        def state() -> str:
            return "it is not listed yet" if record is None else f"{record.state}, without an address"

        for _ in self._rounds(id, _POLL, state):
            record = self._record(id)
            if record is not None and record.state == RUNNING and record.addresses:
                break
        assert record is not None
        self._admit(record)
        return record

    def _record(self, id: str) -> MachineRecord | None:
        """Return a machine's record, polled once a second for all; None if not listed.

        Raises MachineError if it has ended.
        """
        with self._lock:
            if time.monotonic() - self._asked >= _POLL:
                try:
                    self._records = {one.id: one for one in self._access.describe(self._ids) if one.state != "unknown"}
                except ProvisionError as error:
                    if not error.passing:
                        raise MachineError(id, "api", first_line(error)) from error
                self._asked = time.monotonic()
            record = self._records.get(id)
        if record is not None and not record.is_usable:
            raise MachineError(id, "closed", f"it is {record.state}: {record.reason or 'no reason is given'}")
        return record

    def _admit(self, record: MachineRecord) -> None:
        """Allow SSH from this computer; only report a failure, as a rule may still hold."""
        with self._lock:
            if record.region in self._admitted:
                return
            self._admitted.add(record.region)
            try:
                if notice := self._access.admit(record):
                    self._session.tell(notice)
            except Exception as error:
                self._session.tell(f"the rule for SSH could not be renewed: {first_line(error)}")

    def _dialled(self, target: Target, record: MachineRecord) -> Machine:
        """Return the connected machine, once its sshd answers and lets us in."""
        place = f"{target.host} port {target.port}"
        answered: float | None = None
        refused = ""

        def state() -> str:
            said = f"answers, but: {refused}" if answered else refused or "does not answer"
            return f"{record.state}, and {place} {said}"

        self._require_link()
        for _ in self._rounds(record.id, _DIAL, state, lambda: self._console(record)):
            if not self._is_open(target, _DIAL_TIMEOUT):
                self._record(record.id)
                continue
            try:
                # The pool's other nodes use the private address.
                return self._open(target, record.addresses[-1])
            except HostKeyError as error:
                if error.host != record.id:
                    # The key is a jump host's.
                    raise
                raise HostKeyError(
                    record.id,
                    error.reason,
                    f"{place} shows the host key {error.fingerprint}, which is neither the one that the machine "
                    "was given nor its own: another machine answers there, or the image takes no keys from cloud-init",
                    error.fingerprint,
                ) from error
            except (LoginRefused, Unreachable) as error:
                if error.reason == "behind":
                    # The port behind the jump host is closed until the machine has booted.
                    answered, refused = None, first_line(error)
                    self._record(record.id)
                    continue
                refused = f"{first_line(error)} (user {target.user!r}; an image of your own may have another)"
                answered = answered or time.monotonic()
                if time.monotonic() - answered > _BOOTING:
                    error.args = (refused,)
                    raise
        raise AssertionError("unreachable")

    def _is_open(self, target: Target, timeout: float = _KNOWN_TIMEOUT) -> bool:
        """Return whether a port answers; always True behind a jump host."""
        if target.jump is not None:
            return True
        try:
            socket.create_connection((target.host, target.port), timeout).close()
        except OSError:
            return False
        return True

    def _console(self, record: MachineRecord) -> str:
        """Return the last lines of the machine's console, for a message."""
        with contextlib.suppress(Exception):
            text = self._access.console(record)
            if lines := [line.strip() for line in text.splitlines() if line.strip()][-_CONSOLE_LINES:]:
                return f"; its console: {shown(' | '.join(lines))}"
        return ""


def _jump(text: str) -> Target:
    """Return the last of several jump hosts, behind the others."""
    before, _, last = text.rpartition(",")
    return resolve(last.strip(), jump=before or None)


def _replace_first_key(machine: Machine, id: str, keys: PoolKeys) -> None:
    """Replace a machine's first host key by its own one; do nothing if that is done.

    This process may end after any step: so both keys are trusted in between. Raises MachineError.
    """
    first = keys.first_host[1]
    if first not in keys.trusted(id):
        return
    own = _run(machine, id, _MAKE.format(first=first.split()[1]))
    if not _PUBLIC.match(own):
        raise MachineError(id, "key", f"it made no host key: {shown(own)}")
    keys.trust(id, first, own)
    _run(machine, id, _USE.format(own=own.split()[1]))
    keys.trust(id, own)


def _run(machine: Machine, id: str, script: str) -> str:
    done = machine.run(script, timeout=_SCRIPT_TIMEOUT)
    text = done.out.decode("utf-8", "replace").strip()
    if done.status:
        raise MachineError(id, "key", f"status {done.status}: {shown(text)}")
    return text


__all__ = ["BootAccess", "connect"]
