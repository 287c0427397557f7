"""Machine that is a container of a pod."""

from __future__ import annotations

from typing import Any

from ..ssh.session_machine import SessionMachine
from .pod_session import PodSession
from .pod_target import PodTarget


class PodMachine(SessionMachine):
    """Container of a pod, thread-safe; implements `base.Machine`.

    Parameters
    ----------
    session : PodSession
        The connection.
    address : str, optional
        Address for the pool's other machines; by default, the pod's.
    """

    def __init__(self, session: PodSession, address: str | None = None) -> None:
        super().__init__(session, address)
        self._mine = True

    @staticmethod
    def key_of(target: PodTarget) -> str:
        """Return the pod's uid: a later pod of its name is another machine."""
        return f"pod {target.uid or f'{target.namespace}/{target.pod}'}/{target.container}"

    @classmethod
    def connect(cls, target: PodTarget, address: str | None = None) -> PodMachine:
        """Connect to a pod; see `PodSession.open` for the errors."""
        return cls(PodSession.open(target), address)

    def lane(self) -> PodMachine:
        """Return the machine over the same session with a shell of its own."""
        made = PodMachine(self.session, self.address)
        made._mine = False
        return made

    def beside(self, access: Any) -> PodMachine:
        """Return the machine with a shell of its own: each has its own connection."""
        return self.lane()

    def open_fed_shell(self, command: str) -> Any:
        """Return a channel in which a shell runs a command that reads its input to the end."""
        return self.session.channel(command, ends=True)

    def probe(self, host: str, port: int) -> None:
        """Raise MachineError if nothing listens at an address of the pod."""
        self.session.probe(host, port)

    def close(self) -> None:
        """Close the connection and its forwards; of a lane, its shell only."""
        if self._mine:
            super().close()
        else:
            self.interrupt()
