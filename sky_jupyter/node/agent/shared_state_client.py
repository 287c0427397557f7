"""Proxy between ranks and the scheduler for the objects shared by name.

The agent is a member of the control plane; its ranks are not. If the connection breaks during a request, the request is
retried under the same id. Requests end with the kernel that made them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...util.background_tasks import BackgroundTasks
from ..protocol import rpc
from ..protocol.rpc import AgentCall
from ..protocol.shared_state_frames import failed

_PAUSE = 0.1
# Sends an answer to a rank's kernel.
Tell = Callable[[dict[str, Any], Sequence[bytes]], None]


@contextlib.contextmanager
def unless_broken(scheduler: Any) -> Iterator[None]:
    """Ignore errors of a scheduler call whose connection broke; raise others."""
    try:
        yield
    except OSError:
        pass
    except RuntimeError:
        # A worker that is closing after the loss of its scheduler raises this: "ConnectionPool is closed".
        if scheduler.pool.status.name == "running":
            raise


class SharedStateProxy:
    """Proxy for shared-state requests of a node's ranks; made by the agent.

    Parameters
    ----------
    incarnation : str
        The agent's incarnation.
    name : str
        The agent's name in the control plane.
    direct : str
        Path of the scheduler's socket, if it is on this machine.
    """

    def __init__(self, incarnation: str, name: str, direct: str) -> None:
        self._incarnation, self._name, self._direct = incarnation, name, direct
        self._scheduler: Any = None
        self._up = asyncio.Event()
        # Pending requests, by kernel and id.
        self._asked: dict[str, dict[str, asyncio.Task[None]]] = {}
        self._tasks = BackgroundTasks()

    def connect(self, member: Any) -> None:
        """Use this Dask worker for requests from now on; None suspends them."""
        self._scheduler = None if member is None else member.scheduler
        if member is None:
            self._up.clear()
        else:
            self._up.set()
            self._tasks.start(
                self._call(rpc.SHARED_REGISTER, agent=self._incarnation, node=self._name, member=member.address)
            )

    def on_ask(self, rank: int, generation: int, tell: Tell, content: dict[str, Any], data: list[bytes]) -> None:
        """Start a request of a rank's code, or cancel it."""
        who = self._who(rank, generation)
        mine = self._asked.setdefault(who, {})
        id, what = content.get("id"), content.get("what")
        if not isinstance(id, str):
            return
        if content.get("drop"):
            task = mine.pop(id, None)
            if task is not None:
                task.cancel()
            self._tasks.start(self._call(rpc.SHARED_CANCEL, ask=id))
        elif isinstance(what, dict):
            epoch = what.pop("epoch", None)
            mine[id] = self._tasks.start(self._share(mine, id, tell, who, what=what, data=data, epoch=epoch))

    async def _share(self, mine: dict[str, Any], id: str, tell: Tell, who: str, **request: Any) -> None:
        try:
            answer = await self._call(rpc.SHARED_REQUEST, ask=id, who=who, **request)
        except Exception as error:
            answer = failed(error)
        mine.pop(id, None)
        self._answer(id, tell, who, answer)

    def _answer(self, id: str, tell: Tell, who: str, answer: dict[str, Any]) -> None:
        if os.path.exists(self._direct):
            # From now on the rank sends its requests there, under this name.
            answer["direct"] = self._direct, who
        data = [bytes(one) for one in answer.pop("data", ())]
        tell({**answer, "id": id}, data)

    def on_end(self, rank: int, generation: int) -> None:
        """Cancel a dead kernel's requests and release its locks."""
        who = self._who(rank, generation)
        if who in self._asked:
            for task in self._asked.pop(who).values():
                task.cancel()
            self._tasks.start(self._call(rpc.SHARED_LEFT, who=who))

    def _who(self, rank: int, generation: int) -> str:
        return f"{self._incarnation}.{rank}.{generation}."

    async def _call(self, call: AgentCall, **arguments: Any) -> Any:
        """Call the scheduler; retry while it cannot be reached."""
        while True:
            await self._up.wait()
            with unless_broken(self._scheduler):
                return await getattr(self._scheduler, call.op)(**arguments)
            await asyncio.sleep(_PAUSE)
