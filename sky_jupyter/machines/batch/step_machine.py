"""Machine that is a node of a batch job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ssh.session_machine import SharedSessionMachine
from .step_session import StepSession
from .step_target import StepTarget

if TYPE_CHECKING:
    from ..ssh.session import Access


class StepMachine(SharedSessionMachine):
    """Node of a batch job, thread-safe; implements `base.Machine`.

    Parameters
    ----------
    session : StepSession
        The connection.
    address : str, optional
        Address for the pool's other machines; by default, the scheduler's.
    """

    @staticmethod
    def key_of(target: StepTarget) -> str:
        """Return job, start and node: a requeued job's nodes are other machines."""
        return f"job {target.incarnation}/{target.node}"

    @classmethod
    def connect(cls, target: StepTarget, access: Access | None = None, address: str | None = None) -> StepMachine:
        """Connect to a node; see `StepSession.open` for the errors."""
        return cls(StepSession.open(target, access), address)

    def open_launcher(self, *, survive: bool) -> Any:
        """Return a shell's channel; the job's script starts commands that ``survive``."""
        return self.session.surviving_channel() if survive else super().open_launcher(survive=survive)


__all__ = ["StepMachine"]
