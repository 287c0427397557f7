"""Session with a node of a batch job: each command is a job step, one is watched."""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import GONE, LinkLost, MachineError, Unreachable
from ..forwards import ByteStream
from ..ssh.connection_loss import ConnectionLoss
from ..ssh.types import shown
from . import waiter
from .login_session import LocalLogin, LoginSession, SSHLogin
from .step_target import StepTarget

if TYPE_CHECKING:
    from ..ssh.session import Access

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READY = f"{waiter.READY}\n".encode()
_BEGIN_PATIENCE = 150.0
_READ = 1 << 16
_MOST_SAID = 1 << 16
# Messages of srun and similar programs about a job that is over.
_OVER = re.compile(
    r"job id specified|already completing|has expired|is not running|no longer running|unknown job", re.IGNORECASE
)
# Message of srun about a node that its job has lost, or given back.
_LEFT = re.compile(r"node configuration is not available", re.IGNORECASE)
# First output of a dialled connection; then srun's message on clusters without the plugin that binds tasks.
_DIALLED = b"sky-dialled\n"
_NOISE = "lacks support for cpu binding"
# A connection from the node itself, with programs that every cluster has.
_DIAL = "exec 5<>/dev/tcp/{host}/{port} || exit 9; echo sky-dialled; cat <&5 & cat >&5; kill $! 2>/dev/null"


class StepSession:
    """Connection to a node of a batch job, made by `StepSession.open`; thread-safe.

    Parameters
    ----------
    target : StepTarget
        The node.
    login : LoginSession
        The login host; closed with the session.
    """

    def __init__(self, target: StepTarget, login: LoginSession) -> None:
        self.target, self.address = target, target.address
        self._login = login
        self._closing = threading.Event()
        self._loss = ConnectionLoss(self._closing)
        self._watched: Any = None
        # Whether the login host cannot connect to the node, so that a step does.
        self._relays = False

    @classmethod
    def open(cls, target: StepTarget, access: Access | None = None) -> StepSession:
        """Connect to a node.

        Parameters
        ----------
        target : StepTarget
            The node.
        access : Access, optional
            Keys and prompts, for a login host behind SSH.

        Returns
        -------
        StepSession
            The session.

        Raises
        ------
        MachineError
            When that fails: reason ``"gone"`` if the job is over, `Unreachable` if a later try may succeed.
        """
        made = cls(target, _login(target, access))
        try:
            made._begin()
        except BaseException:
            made.close()
            raise
        return made

    def _begin(self) -> None:
        target = self.target
        wait = waiter.ready(target.folder, target.incarnation, target.node)
        self._watched = watched = self._login.channel(self._entered(wait))
        over = threading.Timer(_BEGIN_PATIENCE, watched.close)
        over.daemon = True
        over.start()
        said = b""
        try:
            while _READY not in said and (data := watched.recv(_READ)):
                said = (said + data)[-_MOST_SAID:]
            if _READY not in said:
                raise OSError
        except (OSError, EOFError):
            raise self._refusal(said) from None
        finally:
            over.cancel()
        threading.Thread(target=self._watch, name=f"sky-step-watch-{self.target.name}", daemon=True).start()
        threading.Thread(target=self._drain, name=f"sky-step-errors-{self.target.name}", daemon=True).start()
        self._login.on_lost(lambda reason: self._lose("broken", str(reason)))

    def _refusal(self, said: bytes) -> MachineError:
        with contextlib.suppress(OSError, EOFError):
            self._watched.settimeout(1.0)
            while len(said) < _MOST_SAID and (data := self._watched.recv_stderr(_READ)):
                said += data
        lines = [line for line in said.decode("utf-8", "replace").splitlines() if _NOISE not in line]
        words, name = shown(" ".join(lines)), self.target.name
        if _OVER.search(words):
            return MachineError(name, GONE, f"its job is over ({words})")
        if _LEFT.search(words):
            return MachineError(name, GONE, f"it does not belong to its job any more ({words})")
        if not words:
            words = "the job's own script has not begun there: its log on the cluster says more"
        return Unreachable(name, "waiting", f"no command runs on {self.target}: {words}")

    def _drain(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while self._watched.recv_stderr(_READ):
                pass

    def _watch(self) -> None:
        """Report the end of a step that does nothing but wait."""
        with contextlib.suppress(OSError, EOFError):
            while self._watched.recv(_READ):
                pass
        self._lose("broken", f"a step on {self.target} has ended: its job may have, or the login host")

    def _entered(self, command: str) -> list[str]:
        return [*self.target.enter, "/bin/sh", "-c", command]

    # Using it

    @property
    def alive(self) -> bool:
        """Whether the connection is alive, as far as is known."""
        return self._loss.reason is None and not self._closing.is_set()

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks; at once if it has broken."""
        self._loss.on_lost(tell)

    def channel(self, command: str) -> Any:
        """Run a command in a shell of the node; return its streams."""
        return self._opened(waiter.within(self.target.folder, command))

    def surviving_channel(self) -> Any:
        """Return the streams of a shell that outlives its step; see `scripts.LAUNCH`.

        The job's own script starts it.
        """
        return self._opened(waiter.handover(self.target.folder))

    def _opened(self, script: str) -> Any:
        if self._closing.is_set() or self._loss.reason is not None:
            raise self._loss.reason or LinkLost(self.target.name, "closed", "the connection was closed")
        return self._login.channel(self._entered(script))

    def open_stream(self, host: str, port: int) -> ByteStream:
        """Connect to an address from the login host, or from the node if that fails.

        Raises MachineError if it is refused.
        """
        if not self._relays:
            try:
                return self._login.open_stream(self.address if host in _LOOPBACK else host, port)
            except MachineError as error:
                refused = error
        stream = self._login.channel([*self.target.raw, "bash", "-c", _DIAL.format(host=shlex.quote(host), port=port)])
        with contextlib.suppress(OSError, EOFError):
            if _is_dialled(stream):
                self._relays = self._relays or host not in _LOOPBACK
                made: ByteStream = stream
                return made
        stream.close()
        if not self._relays:
            raise refused
        raise MachineError(self.target.name, "refused", f"{self.target} refused a connection to {host}:{port}")

    def listen(self, port: int, accept: Callable[[Any], None]) -> int:
        """Raise MachineError: nodes may not reach a port of the login host."""
        raise MachineError(
            self.target.name, "relay", f"{self.target} cannot listen on a port for us; nodes reach one another"
        )

    def unlisten(self, port: int) -> None:
        """Do nothing: no port is open."""

    def status(self, channel: Any) -> int:
        """Wait for a channel's command; return its status, or minus the signal."""
        return self._login.status(channel)

    # Ending it

    def _lose(self, reason: str, message: str) -> None:
        self._loss.lose(LinkLost(self.target.name, reason, message))

    def close(self) -> None:
        """Close the connection. Commands that survive keep running."""
        self._closing.set()
        if self._watched is not None:
            self._watched.close()
        self._login.close()


def _is_dialled(stream: Any) -> bool:
    """Read up to the first line of a connection; return whether it came."""
    said = b""
    while not said.endswith(_DIALLED) and len(said) < _MOST_SAID and (letter := stream.recv(1)):
        said += letter
    return said.endswith(_DIALLED)


def _login(target: StepTarget, access: Access | None) -> LoginSession:
    if target.login is None:
        return LocalLogin()
    return SSHLogin(target.login, access)


__all__ = ["StepSession"]
