"""Machine that is a container of a pod."""

from __future__ import annotations

from typing import Any

from ..ssh.session_machine import SharedSessionMachine
from .pod_session import PodSession
from .pod_target import PodTarget


class PodMachine(SharedSessionMachine):
    """Container of a pod, thread-safe; implements `base.Machine`.

    Parameters
    ----------
    session : PodSession
        The connection.
    address : str, optional
        Address for the pool's other machines; by default, the pod's.
    """

    @staticmethod
    def key_of(target: PodTarget) -> str:
        """Return the pod's uid: a later pod with its name is another machine."""
        return f"pod {target.uid or f'{target.namespace}/{target.pod}'}/{target.container}"

    @classmethod
    def connect(cls, target: PodTarget, address: str | None = None) -> PodMachine:
        """Connect to a pod; see `PodSession.open` for the errors."""
        return cls(PodSession.open(target), address)

    def open_fed_shell(self, command: str) -> Any:
        """Return a channel to a shell whose command reads its input to the end."""
        return self.session.channel(command, ends=True)

    def probe(self, host: str, port: int) -> None:
        """Raise MachineError if nothing listens at an address of the pod."""
        self.session.probe(host, port)
