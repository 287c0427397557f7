"""Errors that callers may want to tell apart, with messages made for people.

One base, `SkyError`; a subclass wherever a caller would act differently. A message says what
happened, to which thing, and what to do about it.
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
        Whether another attempt may have them a moment later.
    """

    passing = False


class NoCapacity(ProvisionError):
    """One place has no machines, and none was made there; another place may have some."""

    passing = True


class OrderSpent(ProvisionError):
    """A call's token stands for machines that have ended, or for another call: it needs a new one."""

    passing = True


class BootstrapError(SkyError):
    """Raised when a machine could not be prepared.

    Parameters
    ----------
    phase : str
        The bootstrap phase that failed, such as ``"environment"``.
    node : int or None
        The node it failed on; None where it concerns all of them.
    host : str
        The machine, as the user named it; empty where that has no name.
    command : str
        The command that failed, as a person would type it.
    lines : sequence of str
        The last lines that it printed.
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
    """Raised when something went wrong on one machine, or on the way to it.

    Parameters
    ----------
    host : str
        The machine, as the user named it.
    reason : str
        What happened in one word, for programs.
    message : str
        What happened, for people.
    """

    def __init__(self, host: str, reason: str, message: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"{host}: {message}")


class Unreachable(MachineError):
    """No connection could be made; ``reason`` is name, closed, route, timeout, jump, proxy or protocol."""


class HostKeyError(MachineError):
    """A machine's host key is not one that may be trusted.

    Parameters
    ----------
    reason : str
        unknown, changed, revoked or certificate.
    fingerprint : str
        The key that was shown, as ``SHA256:…``.
    """

    def __init__(self, host: str, reason: str, message: str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(host, reason, message)


class LoginRefused(MachineError):
    """The machine lets none of our keys in; ``reason`` is keys, password, attempts, factor or waited."""


# What a link says of a connection that it will soon have back; who gives up with it does not.
AGAIN = ", and is made again"


class LinkLost(MachineError):
    """A connection that stood is gone; ``reason`` is silent, broken or closed."""


class TransferError(SkyError):
    """Raised when a file or folder could not be copied to or from a node.

    What has arrived stays, and the next attempt uses it.
    """


class PoolError(SkyError):
    """Raised when the pool is not in a state in which this can be done."""


class NotInPoolError(SkyError, RuntimeError):
    """Raised when the runtime is asked for what exists on a pool's ranks only."""


class NotOnRanks(SkyError):
    """Raised when a rank is asked for what only the notebook's kernel can do."""


class RankDied(SkyError):
    """Raised when a rank's process ended during a run; names the signal or status."""


class NodeLost(SkyError):
    """Raised when a node's agent or machine went away during a run."""


class RemoteError(SkyError):
    """Stands for an exception of a rank whose own type cannot be rebuilt here."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The end of an error message: ``"; did you mean 'x'?"``, or nothing where no word is near."""
    near = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def shortened(message: str, given: str, limit: int = 80) -> str:
    """Cut what a message repeats of a person's own long input.

    Parameters
    ----------
    message : str
        The error's text.
    given : str
        What the person wrote; only runs of letters that stand in it are cut.
    limit : int
        How many letters of each run stay.
    """

    def cut(match: re.Match[str]) -> str:
        run = match[0]
        return f"{run[:limit]}…" if run[:limit] in given else run

    return re.sub(rf"[^\s'\"]{{{limit + 1},}}", cut, message)


def first_line(error: BaseException) -> str:
    """What an error says first, or its type where it says nothing."""
    return str(error).partition("\n")[0] or type(error).__name__


def plain(text: str) -> str:
    """The text without its colours."""
    return _COLOUR.sub("", text)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What moves the cursor, talks to the terminal or hides text: CSI but for colours, OSC, DCS and their like with all that
# they hold, other escapes, the same as single characters of C1, and the rest of the control characters.
_UNSAFE = re.compile(
    r"\x1b\[[0-9;:]*m(?P<end>)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
    r"|\r(?!\n)(?P<line>)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# They turn the order of what follows around, so that text reads as something else.
_TURNS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def cleaned(text: str) -> str:
    """The text as a terminal may have it: lines, tabs and colours stay, and nothing else that a terminal obeys."""
    if text.isprintable():
        return text
    return visible(_UNSAFE.sub(_kept, text))


def visible(text: str) -> str:
    """The text with the characters written out that turn the order of others around (``\\u202e``)."""
    return text if text.isascii() else text.translate(_TURNS)


def _kept(found: re.Match[str]) -> str:
    return found[0] if found["end"] is not None else "\n" if found["line"] is not None else ""
