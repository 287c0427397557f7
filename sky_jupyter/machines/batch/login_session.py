"""Login host of a batch scheduler, local or by SSH, with a clean environment."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import LinkLost, MachineError
from ..forwards import ByteStream, dial
from ..ssh.types import Ran
from .local_channel import LocalChannel

if TYPE_CHECKING:
    from ..ssh.session import Access
    from ..ssh.target import Target

# Prefixes of variables of a job in which this process or the login runs: commands would take them as options.
JOB_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "PMI_", "PMIX_", "PBS_", "LSB_")
KEPT = ("SLURM_CONF",)
# The same as a script, for any login shell.
CLEAN = (
    'for v in $(env | sed -n "s/^\\([A-Za-z_0-9]*\\)=.*/\\1/p"); do case $v in SLURM_CONF) ;; '
    + "|".join(f"{prefix}*" for prefix in JOB_PREFIXES)
    + ') unset "$v";; esac; done; unset SSH_CONNECTION SSH_CLIENT SSH_TTY'
)


class LoginSession(Protocol):
    """Connection to the login host."""

    @property
    def alive(self) -> bool:
        """Whether it is alive, as far as is known."""

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Ran:
        """Run a program on the host; return its status and outputs."""

    def channel(self, argv: Sequence[str]) -> Any:
        """Run a program on the host; return its streams."""

    def status(self, channel: Any) -> int:
        """Wait for a channel's program; return its status."""

    def open_stream(self, host: str, port: int) -> ByteStream:
        """Connect from the host to an address."""

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks."""

    def close(self) -> None:
        """Close the connection."""


class LocalLogin:
    """Login host that is this machine."""

    alive = True

    @staticmethod
    def env() -> dict[str, str]:
        """Return this process's environment without what a job has put there."""
        own = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
        return {
            name: value
            for name, value in os.environ.items()
            if name in KEPT or not (name.startswith(JOB_PREFIXES) or name in own)
        }

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Ran:
        """Run a program; see `LoginSession.run`."""
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                timeout=timeout,
                env=self.env(),
                check=False,
                # An interrupt of the notebook must not kill `sbatch`, which may have submitted a job.
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{argv[0]} has not ended after {timeout:g} s") from None
        except FileNotFoundError:
            return Ran(127, b"", f"{argv[0]}: not found".encode())
        return Ran(done.returncode, done.stdout, done.stderr)

    def channel(self, argv: Sequence[str]) -> LocalChannel:
        """Run a program; return its streams."""
        try:
            return LocalChannel(argv, self.env())
        except OSError as error:
            raise MachineError("this machine", "command", f"{argv[0]} could not be started: {error}") from None

    def status(self, channel: LocalChannel) -> int:
        """Wait for a channel's program; return its status."""
        return channel.process.wait()

    def open_stream(self, host: str, port: int) -> ByteStream:
        """Connect to an address; raise MachineError if it is refused."""
        try:
            return dial(host, port)
        except OSError as error:
            raise MachineError(host, "refused", f"{host}:{port} refused a connection: {error}") from None

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Do nothing: this machine is not lost."""

    def close(self) -> None:
        """Do nothing: channels are closed by their users."""


class SSHLogin:
    """Login host behind SSH.

    Parameters
    ----------
    target : Target
        The host.
    access : Access, optional
        Keys and prompts.
    """

    def __init__(self, target: Target, access: Access | None = None) -> None:
        from ..ssh.session import connect

        # One at a time: an sshd refuses many connections at once (MaxStartups).
        with _dialling:
            self._session = connect(target, access)

    @property
    def alive(self) -> bool:
        """Whether the connection is alive."""
        return self._session.alive

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Ran:
        """Run a program as `LoginSession.run`, without the output of login scripts."""
        done = self._session.run(_words(argv, f"echo {_BEGIN}; "), stdin, timeout)
        _, begun, out = done.out.partition(f"{_BEGIN}\n".encode())
        return Ran(done.status, out if begun else done.out, done.err)

    def channel(self, argv: Sequence[str]) -> Any:
        """Run a program; return its streams."""
        return self._session.channel(_words(argv))

    def status(self, channel: Any) -> int:
        """Wait for a channel's program; return its status."""
        return int(self._session.status(channel))

    def open_stream(self, host: str, port: int) -> Any:
        """Connect from the host to an address; raise MachineError if it is refused."""
        return self._session.open_stream(host, port)

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks."""
        self._session.on_lost(tell)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError, EOFError):
            self._session.close()


_dialling = threading.Lock()


# Line before a program's output: files such as .bashrc may print something first.
_BEGIN = "sky-output-begins"


def _words(argv: Sequence[str], before: str = "") -> str:
    """Return a line for any login shell that runs a program in a clean environment."""
    script = f"{CLEAN}; {before}exec {shlex.join(argv)}"
    return f"exec /bin/sh -c {shlex.quote(script)}"


__all__ = ["CLEAN", "JOB_PREFIXES", "LocalLogin", "LoginSession", "SSHLogin"]
