"""Errors of Sky Jupyter, with messages written for people.

All but the base `OwnTraceback` derive from `SkyError`. There is a subclass for each case that a caller handles
differently. A message says what happened, to what, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence


class SkyError(Exception):
    """Base of all errors that Sky Jupyter raises."""


class OwnTraceback(Exception):
    """Base of errors whose `_render_traceback_` says how a notebook shows them.

    IPython has its own formats for exception groups and syntax errors, which show our frames and not the user's.
    """

    def _render_traceback_(self) -> list[str]:
        raise NotImplementedError


class SpecError(SkyError, ValueError):
    """Raised for an option, plugin or value that is not valid.

    Nothing has been started.
    """


class CaptureError(SkyError):
    """Raised when a value that a cell depends on cannot be sent; nothing has run."""


class CommandError(SkyError):
    """Raised on a rank when a command of `%sky exec` fails.

    Parameters
    ----------
    message : str
        How the command ended.
    status : int
        The command's exit status; if a signal ended it, minus the signal's number.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])

    def _render_traceback_(self) -> list[str]:
        # What IPython shows: a traceback would not lead to code of the user's.
        return [str(self)]


class ProvisionError(SkyError):
    """Raised when the pool's machines could not be created; any created were removed.

    Attributes
    ----------
    passing : bool
        True if another attempt may succeed soon.
    """

    passing = False


class NoCapacity(ProvisionError):
    """Raised when a place has no machines left and none was created.

    Another place may have some.

    Parameters
    ----------
    message : str
        What happened, for people.
    scope : str
        What the refusal applies to: ``"zone"`` to this place only, ``"market"`` to all machines of this market in the
        region that are as large or larger, ``"region"`` to the whole region.
    better : tuple of str
        Zones that have such machines, as the provider says.
    """

    passing = True

    def __init__(self, message: str, *, scope: str = "zone", better: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.scope, self.better = scope, better
        # Waiting does not raise a quota.
        self.passing = scope == "zone"


class Unanswered(ProvisionError):
    """Raised when a provider did not answer a call, or deferred it; a retry may help."""

    passing = True


class OrderSpent(ProvisionError):
    """Raised when an order's idempotency token cannot be used again.

    It was used for machines that have ended, or for another call.
    """

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


# Reasons of a `LoginRefused` if the connection ended before the host had answered; another attempt may succeed.
BROKEN_LOGIN = ("attempts", "waited")

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
    """Raised when a function for a pool's ranks is called outside of them."""


class NotOnRanks(SkyError):
    """Raised when a rank calls a function that works only in the notebook's kernel."""


class ScriptError(SkyError):
    """Raised on a rank when a process of a script ended with a nonzero exit code.

    Attributes
    ----------
    exit_code : int
        The process's exit code; if a signal killed it, minus the signal's number.
    process : int
        Its number among the script's processes: its ``RANK``.
    """

    exit_code = 1
    process = 0

    def _render_traceback_(self) -> list[str]:
        # The script's output says where it failed; our own frames do not.
        return [f"{type(self).__name__}: {self}"]


class RankDied(SkyError):
    """Raised when a rank's process ended, or its node was lost, during a run.

    The message names the signal, the exit status or the reason.
    """


class NodeLost(SkyError):
    """Raised when a node's agent or machine is lost or does not answer."""


class RemoteError(SkyError):
    """Exception of a rank whose own type cannot be rebuilt here."""
