"""JSON forms of targets, errors and events, for the link's socket."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import HostKeyError, LinkLost, LoginRefused, MachineError, PoolError, SkyError, SpecError, Unreachable
from ...util.validate import Check, is_flag, is_text, list_of, number, optional, whole
from ..ssh.target import Target
from ..ssh.types import NoShell

_MACHINE_ERRORS = {kind.__name__: kind for kind in (MachineError, Unreachable, LoginRefused, LinkLost, NoShell)}
_PLAIN_ERRORS = {kind.__name__: kind for kind in (SkyError, SpecError, PoolError, TimeoutError, ValueError)}
_TEXTS = ("keys", "certificates", "known_hosts", "system_known_hosts")
# What a target's values are, but for its jump.
_TARGET: Mapping[str, Check] = {
    **dict.fromkeys(("name", "host", "user", "strict", "family"), is_text),
    **dict.fromkeys(("agent", "proxy_command", "host_key_alias", "bind"), optional(is_text)),
    **dict.fromkeys(_TEXTS, list_of(is_text)),
    **dict.fromkeys(("identities_only", "hash_known_hosts"), is_flag),
    "port": whole(1, 65535),
    "timeout": number(0),
}
_MAX_JUMPS = 16


@dataclass(frozen=True)
class Event:
    """Change of a connection that the link holds.

    Attributes
    ----------
    host : str
        The machine, as the user named it.
    kind : str
        ``waiting`` (lost; the next attempt is in ``pause`` seconds), ``refused`` (reachable but not usable: no further
        attempt until asked), ``back``, or ``ended`` (the pool's processes there were ended late).
    text : str
        Text for a person.
    why : str
        Reason of the loss or of the failed attempt.
    pause, away : float
        Seconds until the next attempt; seconds since the loss.
    """

    host: str
    kind: str
    text: str
    why: str = ""
    pause: float = 0.0
    away: float = 0.0

    def __str__(self) -> str:
        return f"{self.host}: {self.text}"


def event(facts: Mapping[str, Any]) -> Event:
    """Return an event from its JSON form."""
    host, kind, text, why = (str(facts.get(name, "")) for name in ("host", "kind", "text", "why"))
    return Event(host, kind, text, why, float(facts.get("pause", 0.0)), float(facts.get("away", 0.0)))


def from_target(target: Target) -> dict[str, Any]:
    """Return a target's JSON form."""
    return dataclasses.asdict(target)


def target(facts: Any, depth: int = 0) -> Target:
    """Return a target from its JSON form; raise SpecError if it is invalid."""
    if not isinstance(facts, dict) or facts.keys() != {*_TARGET, "jump"} or depth > _MAX_JUMPS:
        raise SpecError("this is no target of a connection")
    if not all(good(facts[name]) for name, good in _TARGET.items()):
        raise SpecError("this is no target of a connection")
    values = dict(facts)
    for name in _TEXTS:
        values[name] = tuple(values[name])
    if values["jump"] is not None:
        values["jump"] = target(values["jump"], depth + 1)
    return Target(**values)


def from_error(error: BaseException) -> dict[str, Any]:
    """Return an error's JSON form; foreign errors become SkyError or OSError."""
    kind = type(error).__name__
    if isinstance(error, MachineError):
        prefix = f"{error.host}: "
        message = str(error).removeprefix(prefix)
        facts = {"host": error.host, "reason": error.reason, "message": message}
        if isinstance(error, HostKeyError):
            return {"kind": "HostKeyError", "fingerprint": error.fingerprint, **facts}
        return {"kind": kind if kind in _MACHINE_ERRORS else "MachineError", **facts}
    if kind in _PLAIN_ERRORS:
        return {"kind": kind, "message": str(error)}
    if isinstance(error, OSError):
        return {"kind": "OSError", "number": error.errno, "message": error.strerror or str(error), "file": _file(error)}
    return {"kind": "SkyError", "message": f"the link failed: {kind}: {error}"}


def error(facts: Any) -> Exception:
    """Return an error from its JSON form."""
    if not isinstance(facts, dict):
        return SkyError("the link failed and did not say how")
    kind, message = str(facts.get("kind")), str(facts.get("message"))
    host, reason = str(facts.get("host")), str(facts.get("reason"))
    if kind == "HostKeyError":
        return HostKeyError(host, reason, message, str(facts.get("fingerprint")))
    if kind in _MACHINE_ERRORS:
        return _MACHINE_ERRORS[kind](host, reason, message)
    if kind == "OSError":
        number = facts.get("number")
        if not isinstance(number, int):
            return OSError(message)
        name = facts.get("file")
        return OSError(number, message, name) if isinstance(name, str) else OSError(number, message)
    return _PLAIN_ERRORS.get(kind, SkyError)(message)


def checked(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a reply's facts; raise its error if it has one."""
    if "error" in facts:
        raise error(facts["error"])
    return facts


def _file(error: OSError) -> str | None:
    return str(error.filename) if error.filename is not None else None
