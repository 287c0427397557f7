"""Errors of Sky Jupyter, with messages made for people.

All derive from `SkyError`; there is a subclass wherever a caller would act differently. A message says what happened,
to which thing, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence


class SkyError(Exception):
    """Base of all errors that Sky Jupyter raises."""


class OwnTraceback(Exception):
    """Base of errors that define by `_render_traceback_` how a notebook shows them.

    IPython has forms of its own for their kinds, groups and syntax errors, which show our frames and not the user's.
    """

    def _render_traceback_(self) -> list[str]:
        raise NotImplementedError


class SpecError(SkyError, ValueError):
    """Raised for an option, plugin or value that is not valid.

    Nothing has been started then.
    """


class CaptureError(SkyError):
    """Raised when a value that a cell depends on cannot be sent; nothing has run."""


class CommandError(SkyError):
    """Raised on a rank when a command of `%sky exec` fails.

    Parameters
    ----------
    message : str
        How it ended.
    status : int
        Its exit status; below 0 the signal that ended it.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])

    def _render_traceback_(self) -> list[str]:
        # What IPython shows of it: there is no code of the user's that a traceback would lead to.
        return [str(self)]


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
    """Raised when a call was not answered or was deferred; it is retried soon."""

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


# Reason of a `MachineError` for a machine that has ended or was replaced: no later attempt reaches it.
GONE = "gone"


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


class ScriptError(SkyError):
    """Raised on a rank when a process of a script ended with a nonzero exit code.

    Attributes
    ----------
    exit_code : int
        Its exit code; below 0, the signal that killed it.
    process : int
        Its number among the script's processes: its ``RANK``.
    """

    exit_code = 1
    process = 0

    def _render_traceback_(self) -> list[str]:
        # What it printed says where it failed, and our own frames do not.
        return [f"{type(self).__name__}: {self}"]


class RankDied(SkyError):
    """Raised when a rank's process ended during a run; names the signal or status."""


class NodeLost(SkyError):
    """Raised when a node's agent or machine was lost during a run."""


class RemoteError(SkyError):
    """Stands for an exception of a rank whose own type cannot be rebuilt here."""
