"""The machine that the notebook runs on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from ..errors import PoolError
from ..util import process_identity as identity
from .process_handle import EarlierProcess

_LOOK = 0.5


def working_folder() -> Path:
    """The folder that relative paths begin at.

    Raises
    ------
    PoolError
        When it has been removed; it says which one it was.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        name = os.environ.get("PWD", "")
        with contextlib.suppress(OSError):
            name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        raise PoolError(
            f"the working folder {name or 'of this process'} is gone: make it again, or change to another "
            "(`%cd ~`, os.chdir), and try again"
        ) from None


def absolute(path: Path) -> Path:
    """A path that begins at the root, as seen from the working folder; PoolError where that has been removed."""
    path = path.expanduser()
    return path if path.is_absolute() else working_folder() / path


class LocalCommand:
    """A subprocess in a session of its own, so that a signal to the notebook does not reach it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def identity(self) -> tuple[int, float]:
        """Its process id, and when it was started; see `identity.started`."""
        return self.process.pid, identity.started(self.process.pid)

    def lines(self) -> Iterator[str]:
        """Its standard output, a line at a time."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.rstrip("\n")

    def terminate(self) -> None:
        """Ask it to end; where it stands still it goes on, to do so."""
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it."""
        self.process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; TimeoutError when it has none after ``timeout`` seconds."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.process.pid} has not ended after {timeout} s") from None
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


class LocalProcess(EarlierProcess):
    """A command that an earlier process of this machine started: it can be ended, and not listened to.

    Parameters
    ----------
    pid : int
        Its process id.
    started : float
        When it was started, as `identity.started` says; another process of that id is not it.
    """

    pause = longest_pause = 0.01

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return identity.lives(*self.identity)

    def lines(self) -> Iterator[str]:
        """Nothing, until it has ended: its output went to whoever started it."""
        while self.alive:
            time.sleep(_LOOK)
        return iter(())

    def terminate(self) -> None:
        """Ask it to end; where it stands still it goes on, to do so."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        identity.send(identity.Process(*self.identity), number)


class LocalMachine:
    """Runs commands as subprocesses; all local nodes of a pool share it."""

    key = "local"
    address = "127.0.0.1"

    def exec(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log: PurePath) -> LocalCommand:
        """Start a command in a session of its own; its standard error goes to ``log``."""
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as errors:
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return LocalCommand(process)

    def put(self, data: bytes, path: PurePath) -> None:
        """Write a file that only its user can read."""
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
