"""The notebook's side of the ranks' shared objects: dicts, queues, locks."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ...errors import PoolError
from ...node.agent.shared_state_client import unless_broken
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ...node.shared.agent_channel import SharedStateChannel
from ..base.event_loop import loop, no_tick, wait_ticking
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext

_PAUSE = TIMEOUTS.polls.shared


class PoolShares:
    """Shared objects of one pool; its requests go to the scheduler."""

    def __init__(self, pool: PoolContext) -> None:
        self._pool = pool
        self._name = f"notebook-{secrets.token_hex(8)}"
        self.shares = SharedStateChannel(self._send, self._send_async, lambda: pool.spec.world_size)

    def _send(
        self, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and wait; an interrupt cancels it."""
        id, future = self._begin(what, data, epoch)
        try:
            wait_ticking(future, no_tick)
        except BaseException as error:
            future.cancel()
            if where:
                loop().submit(self._ask(rpc.SHARED_CANCEL, ask=id))
                if isinstance(error, KeyboardInterrupt) and not error.args:
                    error.args = (where,)
            raise
        return _parts(future.result())

    async def _send_async(
        self, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and await it; cancellation cancels it."""
        id, future = self._begin(what, data, epoch)
        try:
            return _parts(await asyncio.wrap_future(future))
        except BaseException:
            if where:
                loop().submit(self._ask(rpc.SHARED_CANCEL, ask=id))
            raise

    def _begin(self, what: dict[str, Any], data: Sequence[bytes], epoch: str | None) -> tuple[str, Future[Any]]:
        self._pool.require_live()
        id = uuid.uuid4().hex
        request = {"who": f"{self._name}.", "ask": id, "what": what, "data": list(data), "epoch": epoch}
        return id, loop().submit(self._ask(rpc.SHARED_REQUEST, **request))

    async def _ask(self, call: AgentCall, **arguments: Any) -> Any:
        call.check(arguments)
        known: Any = None
        while True:
            control = self._pool.control
            if control.closing:
                raise PoolError(f"pool {self._pool.spec.name!r} is not connected")
            await control.up.wait()
            client = control.client
            if client is not None and client.status == "running":
                with unless_broken(client.scheduler):
                    if known is not client:
                        register = getattr(client.scheduler, rpc.SHARED_REGISTER.op)
                        await register(agent=self._name, node=self._name, member=client.id)
                        known = client
                    return await getattr(client.scheduler, call.op)(**arguments)
            await asyncio.sleep(_PAUSE)


def _parts(found: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Return an answer, and the keys and values that came with it."""
    answer = dict(found)
    return answer, [bytes(one) for one in answer.pop("data", ())]
