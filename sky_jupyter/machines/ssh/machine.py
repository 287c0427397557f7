"""Machine behind an SSH connection."""

from __future__ import annotations

from typing import Any

from . import scripts
from .session import Access, connect
from .session_machine import SessionMachine
from .shell_machine import who
from .target import Target

_SIGNAL_PATIENCE = 30.0


class SSHMachine(SessionMachine):
    """Machine over one SSH connection, thread-safe; implements `base.Machine`.

    Its session is a `session.Session`.
    """

    @classmethod
    def connect(cls, target: Target, access: Access | None = None, address: str | None = None) -> SSHMachine:
        """Connect to a host; see `session.connect` for the errors."""
        return cls(connect(target, access), address)

    @staticmethod
    def key_of(target: Target) -> str:
        """Return its user, host and port."""
        return f"ssh {target.user}@{target.host}:{target.port}"

    def beside(self, access: Any) -> SSHMachine:
        """Return the machine over a second connection: transfers then delay no commands."""
        return SSHMachine(connect(self.target, access), self.address)

    def server(self) -> tuple[int, int]:
        """Return process id and start time, in ticks, of this connection's sshd process."""
        return who(self.run(scripts.server(), timeout=_SIGNAL_PATIENCE).out.decode("utf-8", "replace"))

    def end_server(self, pid: int, ticks: int) -> None:
        """Kill the sshd process of an earlier connection."""
        self.run(scripts.end_server(pid, ticks), timeout=_SIGNAL_PATIENCE)
