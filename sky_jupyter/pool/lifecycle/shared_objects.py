"""The notebook's side of the ranks' shared objects: dicts, queues, locks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...errors import PoolError
from ...node.agent.shared_state_client import unless_broken
from ...node.protocol import rpc, shared_state_frames
from ...node.protocol.rpc import AgentCall
from ...node.shared.agent_channel import SharedStateChannel
from ...node.shared.direct_requests import DirectRequests
from ..base.event_loop import loop, no_tick, wait_ticking
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext

if TYPE_CHECKING:
    from ..control.control_client import Control

_PAUSE = TIMEOUTS.polls.shared


class PoolShares:
    """Shared objects of one pool; its requests go to the scheduler."""

    def __init__(self, pool: PoolContext) -> None:
        self._pool = pool
        self._name = f"notebook-{secrets.token_hex(8)}"
        self.shares = SharedStateChannel(self._send, self._send_async, lambda: pool.spec.world_size, self._direct)
        # The connection by which the scheduler knows this notebook; the client that closes the direct requests.
        self._known: Any = None
        self._of: Control | None = None
        self._requests: DirectRequests | None = None

    def _direct(self) -> DirectRequests | None:
        """Return the connections to the scheduler's socket, once it knows this notebook."""
        self._pool.require_live()
        control = self._pool.control
        is_known = control is self._of and _comm(control.client) is self._known
        return self._requests if is_known else None

    def _send(
        self, id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and wait; an interrupt cancels it."""
        future = self._begin(id, what, data, epoch)
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
        self, id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None, where: str
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and await it; cancellation cancels it."""
        future = self._begin(id, what, data, epoch)
        try:
            return _parts(await asyncio.wrap_future(future))
        except BaseException:
            if where:
                loop().submit(self._ask(rpc.SHARED_CANCEL, ask=id))
            raise

    def _begin(self, id: str, what: dict[str, Any], data: Sequence[bytes], epoch: str | None) -> Future[dict[str, Any]]:
        self._pool.require_live()
        request = {"who": f"{self._name}.", "ask": id, "what": what, "data": list(data), "epoch": epoch}
        return loop().submit(self._ask(rpc.SHARED_REQUEST, **request))

    async def _ask(self, call: AgentCall, **arguments: Any) -> Any:
        call.check(arguments)
        while True:
            control = self._pool.control
            if control.closing:
                raise PoolError(f"pool {self._pool.spec.name!r} is not connected")
            await control.up.wait()
            client = control.client
            if client is not None and client.status == "running":
                with unless_broken(client.scheduler):
                    if self._known is None or self._known is not _comm(client):
                        register = getattr(client.scheduler, rpc.SHARED_REGISTER.op)
                        await register(agent=self._name, node=self._name, member=client.id)
                        self._know(control, client)
                    return await getattr(client.scheduler, call.op)(**arguments)
            await asyncio.sleep(_PAUSE)

    def _know(self, control: Control, client: Any) -> None:
        """Note that the scheduler knows this notebook; on the loop."""
        if self._of is not control:
            path = shared_state_frames.socket_of(self._pool.hosts[0].folder)
            self._requests = DirectRequests(path, f"{self._name}.")
            control.closers.append(self._requests.close)
        self._of, self._known = control, _comm(client)


def _comm(client: Any) -> Any:
    """Return a client's connection, which tells one scheduler from another."""
    return client and client.scheduler_comm and client.scheduler_comm.comm


def _parts(found: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Return an answer, and the keys and values that came with it."""
    answer = dict(found)
    return answer, [bytes(one) for one in answer.pop("data", ())]
