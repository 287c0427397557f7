"""JSON forms of errors and events for the link's socket; see also `target_kinds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import HostKeyError, LinkLost, LoginRefused, MachineError, PoolError, SkyError, SpecError, Unreachable
from ..ssh.types import NoShell
from .target_kinds import from_target, target

_MACHINE_ERRORS = {kind.__name__: kind for kind in (MachineError, Unreachable, LoginRefused, LinkLost, NoShell)}
# Most letters of each of an error's texts. In JSON a letter takes up to twelve bytes, and `framing.MAX_HEAD` is 1 MB.
_MOST_TEXT = 1 << 14
_PLAIN_ERRORS = {kind.__name__: kind for kind in (SkyError, SpecError, PoolError, TimeoutError, ValueError)}


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
        Reason for the loss or for the failed attempt.
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


def from_error(error: BaseException) -> dict[str, Any]:
    """Return an error's JSON form, which fits a message.

    Foreign errors become SkyError or OSError, and long texts lose their middle.
    """
    return {name: _short(value) if isinstance(value, str) else value for name, value in _of_error(error).items()}


def _of_error(error: BaseException) -> dict[str, Any]:
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


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT // 2]} … {text[-_MOST_TEXT // 2 :]}"


def _file(error: OSError) -> str | None:
    return str(error.filename) if error.filename is not None else None


__all__ = ["Event", "checked", "error", "event", "from_error", "from_target", "target"]
