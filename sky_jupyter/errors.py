"""Errors of Sky Jupyter, with messages made for people.

All derive from `SkyError`; there is a subclass wherever a caller would act differently. A message says what happened,
to which thing, and what to do about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


class SkyError(Exception):
    """Base of all errors that Sky Jupyter raises."""


class SpecError(SkyError, ValueError):
    """Raised for an option, plugin or value that is not valid.

    Nothing has been started then.
    """


class CaptureError(SkyError):
    """Raised when a value that a cell depends on cannot be sent; nothing has run."""


class ProvisionError(SkyError):
    """Raised when the pool's machines could not be made; those made were removed.

    Attributes
    ----------
    passing : bool
        True if another attempt may succeed soon.
    """

    passing = False


class NoCapacity(ProvisionError):
    """Raised when a place has no machines and none was made; another may have some.

    Parameters
    ----------
    message : str
        What happened, for people.
    scope : str
        What else cannot help: ``"zone"`` if nothing, ``"market"`` for the region's machines of this market that are
        as large, ``"region"`` for the whole region.
    better : tuple of str
        Zones that are said to have such machines.
    """

    passing = True

    def __init__(self, message: str, *, scope: str = "zone", better: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.scope, self.better = scope, better
        # A quota does not pass by waiting.
        self.passing = scope == "zone"


class Unanswered(ProvisionError):
    """Raised when a call got no answer, or one that puts it off: the same call is sent again soon."""

    passing = True


class OrderSpent(ProvisionError):
    """Raised when a token was used for machines that have ended, or for another call."""

    passing = True


class BootstrapError(SkyError):
    """Raised when a machine could not be prepared.

    Parameters
    ----------
    phase : str
        The bootstrap phase that failed, such as ``"environment"``.
    message : str
        What happened.
    node : int or None
        The node; None if it concerns all of them.
    host : str
        The machine, as the user named it; empty if it has no name.
    command : str
        The command that failed, as a person would type it.
    lines : sequence of str
        The last lines of its output.
    """

    def __init__(
        self,
        phase: str,
        message: str,
        *,
        node: int | None = None,
        host: str = "",
        command: str = "",
        lines: Sequence[str] = (),
    ) -> None:
        self.phase, self.message, self.node, self.host = phase, message, node, host
        self.command, self.lines = command, tuple(lines)
        where = "" if node is None else f" on node {node}" + (f" ({host})" if host else "")
        text = f"phase {phase!r} failed{where}: {message}"
        if command:
            text += f"\n  command: {command}"
        if lines:
            text += "\n" + "\n".join(f"  | {line}" for line in self.lines)
        super().__init__(text)


class MachineError(SkyError):
    """Raised for a failure on one machine, or of the connection to it.

    Parameters
    ----------
    host : str
        The machine, as the user named it.
    reason : str
        One word that names the failure, for programs.
    message : str
        What happened, for people.
    """

    def __init__(self, host: str, reason: str, message: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"{host}: {message}")


class Unreachable(MachineError):
    """Raised when no connection could be made.

    Its ``reason`` is name, closed, route, timeout, jump (a jump host failed), behind (the jump host cannot reach it),
    proxy or protocol.
    """


class HostKeyError(MachineError):
    """Raised for a machine whose host key is not trusted.

    Parameters
    ----------
    host : str
        The machine, as the user named it.
    reason : str
        unknown, changed, revoked or certificate.
    message : str
        What happened, for people.
    fingerprint : str
        The key that the machine presented, as ``SHA256:…``.
    """

    def __init__(self, host: str, reason: str, message: str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(host, reason, message)


class LoginRefused(MachineError):
    """Raised when the machine accepts none of our keys.

    Its ``reason`` is keys, password, attempts, factor or waited.
    """


# Suffix for a connection that is being re-established; a caller that gives up removes it.
AGAIN = ", and is made again"


class LinkLost(MachineError):
    """Raised when a connection was lost; ``reason`` is silent, broken or closed."""


class TransferError(SkyError):
    """Raised when a file or folder could not be copied to or from a node.

    The part that has arrived stays, and the next attempt resumes there.
    """


class PoolError(SkyError):
    """Raised when the pool's state does not allow an operation."""


class NotInPoolError(SkyError, RuntimeError):
    """Raised when the runtime is used outside of a pool's ranks."""


class NotOnRanks(SkyError):
    """Raised when a rank calls a function that works only in the notebook's kernel."""


class RankDied(SkyError):
    """Raised when a rank's process ended during a run; names the signal or status."""


class NodeLost(SkyError):
    """Raised when a node's agent or machine was lost during a run."""


class RemoteError(SkyError):
    """Stands for an exception of a rank whose own type cannot be rebuilt here."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a message; empty if no word is near."""
    near = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def shortened(message: str, given: str, limit: int = 80) -> str:
    """Shorten the parts of a message that repeat a person's long input.

    ``given`` is that input: only runs of letters that occur in it are cut, to ``limit`` letters each.
    """

    def cut(match: re.Match[str]) -> str:
        run = match[0]
        return f"{run[:limit]}…" if run[:limit] in given else run

    return re.sub(rf"[^\s'\"]{{{limit + 1},}}", cut, message)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if that is empty."""
    return str(error).partition("\n")[0] or type(error).__name__


def plain(text: str) -> str:
    """Return a text without colour sequences."""
    return _COLOUR.sub("", text)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Sequences that move the cursor, query the terminal or hide text: CSI except colours; OSC, DCS and similar with their
# content; other escapes; their C1 equivalents; and the rest of the control characters.
_UNSAFE = re.compile(
    r"\x1b\[[0-9;:]*m(?P<end>)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
    r"|\r(?!\n)(?P<line>)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# They change the direction of the following text, so that it reads differently.
_TURNS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def cleaned(text: str) -> str:
    """Return a text that is safe for a terminal: only lines, tabs and colours stay."""
    if text.isprintable():
        return text
    return visible(_UNSAFE.sub(_kept, text))


def visible(text: str) -> str:
    """Return a text with its bidirectional control characters escaped."""
    return text if text.isascii() else text.translate(_TURNS)


def _kept(found: re.Match[str]) -> str:
    return found[0] if found["end"] is not None else "\n" if found["line"] is not None else ""
