"""Machine that is a node of a batch job."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ...errors import LinkLost
from ..ssh import scripts
from ..ssh.session_machine import SessionMachine
from ..ssh.shell_machine import ShellCommand
from .step_session import StepSession
from .step_target import StepTarget

if TYPE_CHECKING:
    from ..ssh.session import Access


class StepMachine(SessionMachine):
    """Node of a batch job, thread-safe; implements `base.Machine`.

    Parameters
    ----------
    session : StepSession
        The connection.
    address : str, optional
        Address for the pool's other machines; by default, the scheduler's.
    """

    def __init__(self, session: StepSession, address: str | None = None) -> None:
        super().__init__(session, address)
        self._mine = True

    @staticmethod
    def key_of(target: StepTarget) -> str:
        """Return the job, its start and the node: nodes of a requeued job are other machines."""
        return f"job {target.incarnation}/{target.node}"

    @classmethod
    def connect(cls, target: StepTarget, access: Access | None = None, address: str | None = None) -> StepMachine:
        """Connect to a node; see `StepSession.open` for the errors."""
        return cls(StepSession.open(target, access), address)

    def lane(self) -> StepMachine:
        """Return the machine over the same session with a shell of its own."""
        made = StepMachine(self.session, self.address)
        made._mine = False
        return made

    def beside(self, access: Any) -> StepMachine:
        """Return the machine with a shell of its own: the login host is not dialled twice for it."""
        return self.lane()

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> ShellCommand:
        """Start a command; one that survives is started by the job's own script. See `base.Machine.exec`."""
        if not survive:
            return super().exec(argv, env=env, cwd=cwd, log=log, survive=survive, make=make)
        mark = f"sky-{secrets.token_hex(8)}"
        pipes = self.session.surviving_channel()
        command = ShellCommand(self, pipes, mark)
        try:
            pipes.send_all(scripts.line(scripts.command(argv, env, cwd, log, mark, survive, make)))
            command.begin()
        except OSError:
            pipes.close()
            raise LinkLost(self.name, "broken", "the connection broke as a command was started") from None
        except BaseException:
            pipes.close()
            raise
        return command

    def close(self) -> None:
        """Close the connection and its forwards; of a lane, its shell only."""
        if self._mine:
            super().close()
        else:
            self.interrupt()


__all__ = ["StepMachine"]
