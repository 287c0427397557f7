"""Target of a host, from the user's input and SSH configuration with jump hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import SpecError
from ...util.text import cleaned, shortened
from . import ssh_config
from .target import DEFAULT_TIMEOUT, PORT, Target

_MAX_JUMPS = 8
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?\Z")
_V6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,32})?\Z")
_USER = re.compile(r"""[^-\s\x00-\x20\x7f'"`$;&<>|(){}\\][^\s\x00-\x20\x7f'"`$;&<>|(){}\\]{0,127}\Z""")
_BRACKETED = re.compile(r"\[(?P<host>[^][]*)\](?::(?P<port>.*))?\Z", re.DOTALL)
_FORM = "HOST, USER@HOST, HOST:PORT, USER@HOST:PORT or [IPV6]:PORT"
_STRICT = {"yes": "yes", "true": "yes", "accept-new": "accept-new"}

_MOST_TOLD = 200


@dataclass(frozen=True)
class HostAddress:
    """Host as the user wrote it, with user and port if given."""

    host: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostAddress:
        """Read ``a``, ``user@b:2222`` or ``[2001:db8::1]:22``, or raise SpecError."""
        if not isinstance(text, str):
            raise SpecError(f"a host must be a string such as user@gpu1:2222, not {text!r}")
        rest = text.strip()
        rest = rest[len("ssh://") :].rstrip("/") if rest.startswith("ssh://") else rest
        user, at, rest = rest.rpartition("@")
        if at and not _USER.match(user):
            raise SpecError(f"host {text!r}: the user {user!r} has letters that no user's name may have; use {_FORM}")
        host, port = _split(rest, text)
        return cls(_host(host, text), user if at else None, None if port is None else _port(port, text))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user + '@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"


def resolve(
    text: str,
    *,
    user: str | None = None,
    port: int | None = None,
    keys: Sequence[str] = (),
    jump: str | None = None,
    files: Sequence[Path] | None = None,
) -> Target:
    """Return a host's target: where it is, and how to connect to it.

    Values in ``text`` override the arguments, which override the configuration.

    Parameters
    ----------
    text : str
        The host, as `HostAddress.parse` reads it.
    user : str, optional
        User to log in with.
    port : int, optional
        Port to connect to.
    keys : sequence of str
        Key files; the agent's other keys are skipped then.
    jump : str, optional
        Jump hosts, separated by commas, in order; ``"none"`` overrides the configuration's.
    files : sequence of Path, optional
        Configuration files; by default, the user's and the system's.

    Returns
    -------
    Target
        The host.

    Raises
    ------
    SpecError
        When the host or the configuration is invalid.
    """
    try:
        return _resolve(HostAddress.parse(text), text.strip(), user, port, tuple(keys), jump, files, 0)
    except SpecError as error:
        # The message may quote a file, and be of any length.
        told = str(error)
        raise SpecError(cleaned(shortened(told, told, _MOST_TOLD))) from None
    except ValueError as error:
        # A zero byte, or an unpaired surrogate, in a path or a user's name.
        raise SpecError(f"host {shortened(repr(text), repr(text))}: its ssh config cannot be used: {error}") from None


def _resolve(
    place: HostAddress,
    text: str,
    user: str | None,
    port: int | None,
    keys: tuple[str, ...],
    jump: str | None,
    files: Sequence[Path] | None,
    depth: int,
) -> Target:
    if depth > _MAX_JUMPS:
        raise SpecError(f"host {text!r} is behind more than {_MAX_JUMPS} others: do they name each other as ProxyJump?")
    user, port = place.user or user, place.port or port
    found = ssh_config.lookup(place.host, user, files)
    host = _host(ssh_config.expand(found.get("hostname", place.host), {"h": place.host}), text)
    user = user or found.get("user") or ssh_config.own_user()
    if not _USER.match(user):
        raise SpecError(f"host {text!r}: the user {user!r} has letters that no user's name may have")
    port = port or _port(found.get("port", str(PORT)), text)
    tokens = ssh_config.tokens(place.host, host, str(port), user)
    through, command = _proxies(found, place, jump, tokens, port, user, files, depth)
    agent = found.get("identityagent", "SSH_AUTH_SOCK")

    def paths(key: str, default: str = "") -> tuple[str, ...]:
        values = [v for v in found.all(key) or default.split() if v.lower() != "none"]
        return tuple(ssh_config.expand_path(value, tokens) for value in values)

    return Target(
        name=text,
        host=host,
        user=user,
        port=port,
        keys=tuple(ssh_config.expand_path(key, tokens) for key in keys) or paths("identityfile"),
        certificates=paths("certificatefile"),
        # Only the named key is tried: the agent's others would use up MaxAuthTries.
        identities_only=bool(keys) or found.flag("identitiesonly"),
        agent=None if agent.lower() == "none" else _agent(agent, tokens),
        jump=through,
        proxy_command=command,
        known_hosts=paths("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
        system_known_hosts=paths("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"),
        host_key_alias=found.get("hostkeyalias") or None,
        strict=_STRICT.get(found.get("stricthostkeychecking", "ask").lower(), "ask"),
        hash_known_hosts=found.flag("hashknownhosts"),
        timeout=found.seconds("connecttimeout") or DEFAULT_TIMEOUT,
        family=found.get("addressfamily", "any").lower(),
        bind=found.get("bindaddress") or None,
    )


def _proxies(
    found: ssh_config.Lookup,
    place: HostAddress,
    jump: str | None,
    tokens: dict[str, str],
    port: int,
    user: str,
    files: Sequence[Path] | None,
    depth: int,
) -> tuple[Target | None, str | None]:
    """Return the jump host, or the ProxyCommand."""
    if jump is None:
        command = found.get("proxycommand", "none")
        if command.lower() != "none":
            if found.flag("proxyusefdpass"):
                raise SpecError(f"host {place}: ProxyUseFdpass is not supported; use ProxyJump")
            return None, ssh_config.expand(command, tokens)
        jump = ssh_config.expand(found.get("proxyjump", "none"), tokens)
    if jump.strip().lower() in ("", "none"):
        return None, None
    *before, last = [part.strip() for part in jump.split(",")]
    stop = HostAddress.parse(last)
    if not before and stop.host == place.host and (stop.port or port, stop.user or user) == (port, user):
        return None, None  # "Host *" with a ProxyJump covers the jump host too
    return _resolve(stop, last, None, None, (), ",".join(before) or None, files, depth + 1), None


def _agent(text: str, tokens: dict[str, str]) -> str:
    if text == "SSH_AUTH_SOCK":
        return text
    return ssh_config.expand_path(f"${{{text[1:]}}}" if re.match(r"\$\w+\Z", text) else text, tokens)


def _split(rest: str, text: str) -> tuple[str, str | None]:
    if rest.startswith("["):
        match = _BRACKETED.match(rest)
        if not match:
            raise SpecError(f"host {text!r} is not {_FORM}")
        return match["host"], match["port"]
    if rest.count(":") > 1:
        return rest, None  # an IPv6 address without a port
    host, colon, port = rest.partition(":")
    return host, port if colon else None


def _host(host: str, text: str) -> str:
    if not _HOST.match(host) and not (":" in host and _V6.match(host)):
        told = f"the name {host!r} is" if host else "it names no host; it is"
        raise SpecError(f"host {text!r}: {told} not {_FORM}, with letters, digits, '.', '-' and '_' in names")
    return host


def _port(port: str, text: str) -> int:
    if not re.match(r"[0-9]{1,5}\Z", port) or not 1 <= int(port) <= 65535:
        raise SpecError(f"host {text!r}: the port {port!r} is not a whole number from 1 to 65535")
    return int(port)
