"""What an agent does when code on its ranks asks for what the pool shares by name: it asks the scheduler.

The agent is a member of the control plane, and its ranks are not. Requests are made again where the
connection broke, under the same id, and end with the kernel that made them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...util.tasks import BackgroundTasks
from ..protocol import rpc
from ..protocol.rpc import AgentCall

_PAUSE = 0.1
# Brings an answer to a rank's kernel.
Tell = Callable[[dict[str, Any], Sequence[bytes]], None]


@contextlib.contextmanager
def unless_broken(scheduler: Any) -> Iterator[None]:
    """Pass over the errors of a call of the scheduler whose connection broke; its own are raised."""
    try:
        yield
    except OSError:
        pass
    except RuntimeError:
        # What a member says that is closing, as it has lost its scheduler: "ConnectionPool is closed".
        if scheduler.pool.status.name == "running":
            raise


class SharedStateProxy:
    """Made by the agent, one a node.

    Parameters
    ----------
    incarnation : str
        The agent's.
    name : str
        Under which the control plane knows its node.
    """

    def __init__(self, incarnation: str, name: str) -> None:
        self._incarnation, self._name = incarnation, name
        self._scheduler: Any = None
        self._up = asyncio.Event()
        # What is being asked, by the kernel that asks.
        self._asked: dict[str, dict[str, asyncio.Task[None]]] = {}
        self._tasks = BackgroundTasks()

    def connect(self, member: Any) -> None:
        """Ask through this member of the control plane from now on, or wait for one."""
        self._scheduler = None if member is None else member.scheduler
        if member is None:
            self._up.clear()
        else:
            self._up.set()
            self._tasks.start(
                self._call(rpc.SHARED_REGISTER, agent=self._incarnation, node=self._name, member=member.address)
            )

    def on_ask(self, rank: int, generation: int, tell: Tell, content: dict[str, Any], data: list[bytes]) -> None:
        """A rank's code asks for something, or does not wait for it any more."""
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
            mine[id] = self._tasks.start(self._share(mine, id, tell, who=who, what=what, data=data, epoch=epoch))

    async def _share(self, mine: dict[str, Any], id: str, tell: Tell, **request: Any) -> None:
        try:
            answer = await self._call(rpc.SHARED_REQUEST, ask=id, **request)
        except Exception as error:
            answer = {"status": "error", "kind": type(error).__name__, "text": f"{type(error).__name__}: {error}"}
        mine.pop(id, None)
        data = [bytes(one) for one in answer.pop("data", ())]
        tell({**answer, "id": id}, data)

    def on_end(self, rank: int, generation: int) -> None:
        """A rank's kernel has ended: it waits for nothing, and holds no lock."""
        who = self._who(rank, generation)
        if who in self._asked:
            for task in self._asked.pop(who).values():
                task.cancel()
            self._tasks.start(self._call(rpc.SHARED_LEFT, who=who))

    def _who(self, rank: int, generation: int) -> str:
        return f"{self._incarnation}.{rank}.{generation}."

    async def _call(self, call: AgentCall, **arguments: Any) -> Any:
        """Ask the scheduler, for as long as it takes to reach it."""
        while True:
            await self._up.wait()
            with unless_broken(self._scheduler):
                return await getattr(self._scheduler, call.op)(**arguments)
            await asyncio.sleep(_PAUSE)
