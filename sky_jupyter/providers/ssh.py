"""SSH provider: nodes on existing hosts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ProvisionError, SpecError
from ..machines.ssh.known_hosts import valid_fingerprint
from ..machines.ssh.resolve_target import HostAddress, resolve
from ..machines.ssh.target import Target
from ..spec.pool_spec import PoolSpec
from ..util.validate import check_whole
from .base import ConnectionSession, MachineRecord, Offer, Order
from .ssh_connections import connect_all, known_target, opener

if TYPE_CHECKING:
    from ..machines.base import Machine

_MAX_HOSTS = 4096


@dataclass(frozen=True)
class SSH:
    """Hosts by name, as for ``ssh``; ``~/.ssh/config`` applies.

    Parameters
    ----------
    hosts : str or iterable of str
        ``gpu1``, ``user@gpu2:2222``, ``[2001:db8::1]:22``; in the order of the nodes.
    user : str, optional
        User for hosts without one.
    port : int, optional
        Port for hosts without one.
    key : str or iterable of str, optional
        Private key files to log in with; by default, the agent's and the usual ones.
    jump : str or iterable of str, optional
        Jump hosts, in order; in a text, separated by commas.
    offline : bool
        True to send hosts all packages from here, so that they fetch nothing themselves.
    accept_host_keys : bool or mapping of str to str
        Accept hosts that are not in known_hosts, and add them: True for any key, or host -> ``"SHA256:…"`` for
        these keys. A key that has changed is always refused.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """

    kind = "ssh"
    provisions = False
    survives_manager = True
    supported_options = ()
    notice = ""

    hosts: tuple[str, ...]
    user: str | None = None
    port: int | None = None
    key: tuple[str, ...] = ()
    jump: str | None = None
    offline: bool = field(default=False, compare=False)
    accept_host_keys: bool | Mapping[str, str] = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", _names("hosts", self.hosts))
        object.__setattr__(self, "key", _names("key", self.key))
        places = [_placed(host) for host in self.hosts]
        if not places:
            raise SpecError("ssh needs hosts: sky.SSH(hosts=['gpu1', 'user@gpu2']), or --hosts gpu1,user@gpu2")
        if len(places) > _MAX_HOSTS:
            raise SpecError(f"hosts names {len(places)} hosts; at most {_MAX_HOSTS} are allowed")
        for place, host in zip(places, self.hosts, strict=True):
            if places.count(place) > 1:
                raise SpecError(
                    f"host {host!r} is named more than once; for several ranks on a host, use ranks_per_node"
                )
        if self.user is not None:
            _check("user", self.user, lambda: _placed(f"{self.user}@host"))
        if self.port is not None:
            check_whole("port", self.port, 1, 65535)
        for key in self.key:
            if not os.path.isfile(os.path.expanduser(key)):
                raise SpecError(f"key {key!r} is not a file here; name a private key such as ~/.ssh/id_ed25519")
        if self.jump is not None:
            jumps = _names("jump", self.jump)
            for part in jumps:
                _placed(part)
            object.__setattr__(self, "jump", ",".join(jumps))
        object.__setattr__(self, "accept_host_keys", _accepted(self.accept_host_keys, self.hosts))

    def __hash__(self) -> int:
        return hash((self.hosts, self.user, self.port, self.key, self.jump))

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return the hosts, at no cost."""
        return [Offer(f"{len(self.hosts)} host{'s' if len(self.hosts) > 1 else ''}", 0.0)]

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Return the first ``count`` hosts; raise ProvisionError if there are fewer."""
        if count > len(self.hosts):
            raise ProvisionError(
                f"{count} nodes need as many hosts, and there {'are' if len(self.hosts) > 1 else 'is'} "
                f"{len(self.hosts)} ({', '.join(self.hosts)}): name more hosts, or use --nodes {len(self.hosts)}"
            )
        return list(self.hosts[:count])

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return nothing: hosts are not tagged with pools."""
        return []

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return the hosts as running; `connect` finds out if they are."""
        return [MachineRecord(id, "running" if id in self.hosts else "unknown") for id in ids]

    def destroy(self, ids: Sequence[str]) -> None:
        """Do nothing: hosts are not created here."""

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Return the unused hosts, in order."""
        return [host for host in self.hosts if host not in ids]

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> SSH:
        """Return a provider with other hosts; the pool's come first, in node order."""
        chosen = (*ids, *add)
        chosen = (*chosen, *(host for host in self.hosts if host not in (*chosen, *remove)))
        accept = self.accept_host_keys
        if isinstance(accept, Mapping):
            accept = {name: key for name, key in accept.items() if name in chosen}
        return replace(self, hosts=chosen, accept_host_keys=accept)

    def default_nodes(self) -> int:
        """Return the number of hosts."""
        return len(self.hosts)

    def target(self, id: str) -> Target:
        """Return where and how to connect to a host.

        Raise SpecError for an unknown host, or if the SSH configuration is invalid.
        """
        if id not in self.hosts:
            raise SpecError(f"{id!r} is not one of the hosts {', '.join(self.hosts)}")
        return resolve(id, user=self.user, port=self.port, keys=self.key, jump=self.jump)

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
        """Connect to hosts in parallel, over the session's link if it has one.

        If one fails, close the others and raise its MachineError, whose message names all that failed.
        """
        connect = opener(session, self.accept_host_keys)

        def one(id: str) -> Machine:
            if (known := known_target(session, id)) is not None:
                # Use the recorded address and options, whatever the SSH configuration says now.
                return opener(session)(*known)
            return connect(self.target(id), None)

        return connect_all(one, ids)

    def __str__(self) -> str:
        return f"ssh ({', '.join(self.hosts)})"


def _names(what: str, value: Any) -> tuple[str, ...]:
    """Return names as a tuple; a string may contain several, separated by commas."""
    if isinstance(value, (str, Path)):
        value = str(value).split(",")
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise SpecError(f"{what} must be a string or a list of strings, not {value!r}")
    names = []
    for item in value:
        if not isinstance(item, (str, Path)) or not str(item).strip():
            raise SpecError(f"{what} must be names that are not empty, not {item!r}")
        names.append(str(item).strip())
    return tuple(names)


def _placed(text: str) -> HostAddress:
    return HostAddress.parse(text)


def _check(what: str, value: Any, parse: Any) -> None:
    try:
        parse()
    except SpecError:
        raise SpecError(f"{what} {value!r} is not a name that ssh would take") from None


def _accepted(value: Any, hosts: Sequence[str]) -> bool | Mapping[str, str]:
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(f"accept_host_keys must be True, False or a mapping of host to SHA256:…, not {value!r}")
    for name in value:
        if name not in hosts:
            raise SpecError(f"accept_host_keys names {name!r}, which is not one of the hosts {', '.join(hosts)}")
    return {name: valid_fingerprint(text) for name, text in value.items()}
