"""Connections to pods and nodes of jobs, over the session's link if it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..machines.base import Machine
    from ..machines.batch.step_target import StepTarget
    from ..machines.pods.pod_target import PodTarget
    from .base import ConnectionSession


def opener(session: ConnectionSession) -> Callable[[PodTarget], Machine]:
    """Return a function that connects to a pod, for `ssh_connections.connect_all`."""
    if session.open_link is None:
        from ..machines.pods.machine import PodMachine

        return PodMachine.connect
    link = session.open_link()
    return lambda target: link.connect(target, address=target.address or None)


def step_opener(session: ConnectionSession, *, accept: bool = False) -> Callable[[StepTarget], Machine]:
    """Return a function that connects to a node of a job, behind its login host."""
    if session.open_link is None:
        from ..machines.batch.step_machine import StepMachine
        from ..machines.ssh.session import Access

        access = Access.of(accept, session.prompts)
        return lambda target: StepMachine.connect(target, access)
    link = session.open_link()
    return lambda target: link.connect(target, accept=accept, address=target.address, prompts=session.prompts)


__all__ = ["opener", "step_opener"]
