"""Commands of a scheduler on its login host, over one kept connection per login."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import BROKEN_LOGIN, HostKeyError, LoginRefused, MachineError, ProvisionError, Unanswered
from ...machines.batch.login_session import LocalLogin, LoginSession, SSHLogin
from ...machines.ssh.types import Ran, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...machines.ssh.target import Target
    from .batch_job import BatchJob

# Minimum seconds between two listings of the user's jobs, for all pools.
ASKED = 5.0
# The same, once after a job was submitted: a job that need not wait runs by then.
SOON = 2.0
# Minimum seconds between two listings of all users' jobs, which may be many.
RARELY = 60.0
# Seconds after which an unused connection is closed.
_IDLE = 60.0
_PATIENCE = 60.0
# What schedulers' commands print when the controller restarts or is overloaded. It may still have carried them out.
_PASSING = re.compile(
    r"unable to contact|timed out|connection (refused|reset|failure)|temporarily|zero bytes|backup controller",
    re.IGNORECASE,
)
_lock = threading.Lock()
_logins: dict[tuple[int, Target | None, bool], LoginCalls] = {}


class LoginCalls:
    """Commands on a login host, and its last job listing; thread-safe.

    Parameters
    ----------
    target : Target, optional
        The host; None for this machine.
    accept : bool
        Whether a host without a known key is accepted.
    """

    def __init__(self, target: Target | None, *, accept: bool = False) -> None:
        self._target, self._accept = target, accept
        self._connecting, self._listing = threading.RLock(), threading.Lock()
        self._session: LoginSession | None = None
        self._jobs: Sequence[BatchJob] = ()
        self._listed, self._used_at = -ASKED, 0.0
        self._changed, self._pause = False, ASKED
        self._rare = -RARELY, ""
        self._timer: threading.Timer | None = None

    def __str__(self) -> str:
        return "this machine" if self._target is None else str(self._target)

    def run(self, argv: Sequence[str], stdin: str = "") -> Ran:
        """Run a command and return its result.

        Raise Unanswered if there is none, and ProvisionError if the host does not let us in.
        """
        try:
            return self._used().run(argv, stdin.encode(), _PATIENCE)
        except (HostKeyError, LoginRefused) as error:
            text = f"{program_of(argv)} could not be run on {self}: {error}"
            raise (Unanswered if error.reason in BROKEN_LOGIN else ProvisionError)(text) from None
        except (MachineError, OSError, EOFError, TimeoutError) as error:
            raise Unanswered(f"{program_of(argv)} on {self} gave no answer: {error}") from None

    def ask(self, argv: Sequence[str], stdin: str = "") -> str:
        """Return what a command prints; raise ProvisionError or Unanswered if it fails."""
        done = self.run(argv, stdin)
        if done.status:
            raise self.refused(argv, done)
        return done.out.decode("utf-8", "replace")

    def refused(self, argv: Sequence[str], done: Ran) -> ProvisionError:
        """Return a failed command's error; Unanswered if the scheduler may answer soon."""
        program = program_of(argv)
        if done.status == 127:
            return ProvisionError(
                f"{self} has no {program}: start this on the cluster's login host, or name that: --login user@host "
                "(sky.Slurm(login=…))"
            )
        said = shown((done.err or done.out).decode("utf-8", "replace"))
        text = f"{program} on {self} failed: {said or f'status {done.status}'}"
        # (A command that was ended by a signal, as by the login host's shutdown or an interrupt, has not answered.)
        return Unanswered(text) if done.status < 0 or _PASSING.search(said) else ProvisionError(text)

    def ask_rarely(self, argv: Sequence[str]) -> str:
        """Return a command's output about all users' jobs, a minute old at most, or "".

        It is called while jobs are listed, and delays the next listing, so that the scheduler is not asked more often.
        """
        asked, said = self._rare
        # (A job that was submitted just now may not wait at all.)
        if self._pause == ASKED and time.monotonic() - asked >= RARELY:
            done = self.run(argv)
            said = "" if done.status else done.out.decode("utf-8", "replace")
            self._rare, self._pause = (time.monotonic(), said), 2 * ASKED
        return said

    def changed(self) -> None:
        """Note that a command has changed a job: the last listing is out of date."""
        self._changed = True

    def jobs(self, listed: Callable[[], Sequence[BatchJob]]) -> Sequence[BatchJob]:
        """Return the jobs from ``listed``, or its result of a few seconds ago."""
        with self._listing:
            if self._changed or time.monotonic() - self._listed >= self._pause:
                self._pause = SOON if self._changed else ASKED
                self._changed = False
                try:
                    self._jobs = listed()
                except BaseException:
                    self._changed = True
                    raise
                self._listed = time.monotonic()
            return self._jobs

    def _open(self) -> LoginSession:
        with self._connecting:
            session = self._session
            if session is None or not session.alive:
                self.close()
                session = LocalLogin() if self._target is None else self._dial(self._target)
                self._session = session
            return session

    def _used(self) -> LoginSession:
        """Return the connection, which is closed when it has not been used for a while."""
        with self._connecting:
            session = self._open()
            self._used_at = time.monotonic()
            if self._target is not None:
                self._plan_close()
            return session

    def _plan_close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(_IDLE, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        """Close the connection, unless it was used while this waited for the lock."""
        with self._connecting:
            if time.monotonic() - self._used_at >= _IDLE:
                self.close()

    def _dial(self, target: Target) -> LoginSession:
        from ...machines.ssh.session import Access

        return SSHLogin(target, Access.of(self._accept))

    def close(self) -> None:
        """Close the connection; the next command opens another one."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(OSError, EOFError):
                session.close()


def program_of(argv: Sequence[str]) -> str:
    """Return the program of a command that may begin with `env` and variables."""
    return next(word for word in argv if word != "env" and "=" not in word)


def of(target: Target | None, *, accept: bool = False) -> LoginCalls:
    """Return the calls of a login host: the same for all providers of this process."""
    with _lock:
        key = (os.getpid(), target, accept)
        if key not in _logins:
            _logins[key] = LoginCalls(target, accept=accept)
        return _logins[key]


@atexit.register
def _close_all() -> None:
    for (pid, _, _), one in _logins.items():
        if pid == os.getpid():
            one.close()


__all__ = ["ASKED", "LoginCalls", "of"]
