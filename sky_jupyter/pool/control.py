"""The control plane as the manager holds it: a Dask client, broadcasts to agents, their events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NodeLost

if TYPE_CHECKING:
    from distributed import Client

_POLL = 0.01
# More agents than this are asked by the scheduler, side by side.
_DIRECT = 16


class Control:
    """Made by the pool when its scheduler listens; closed with the pool. Used on the loop only."""

    def __init__(
        self, on_batch: Callable[[dict[str, Any]], None], on_lost: Callable[[int], None], *, direct: bool
    ) -> None:
        # Whether agents can be reached without the scheduler in between: two hops less for each cell.
        self.direct = direct
        self.on_batch = on_batch
        self.on_lost = on_lost
        self.addresses: dict[int, str] = {}
        self.client: Client | None = None
        self.closing = False

    async def connect(self, address: str, folder: Path, nodes: int, timeout: float, broken: Callable[[], str]) -> None:
        """Connect to the scheduler and wait until all agents are there, or ``broken()`` says why not.

        Raises
        ------
        NodeLost
            When some of them are not there in time, or never will be.
        """
        import dask.config
        from distributed import Client

        from ..node import scheduler

        with dask.config.set({"distributed.comm.timeouts.connect": "10s", **scheduler.DASK_SETTINGS}):
            self.client = await Client(
                address, security=scheduler.security(folder), asynchronous=True, set_as_default=False, name="sky"
            )
        self.client.subscribe_topic("sky", lambda event: self.on_batch(event[1]))
        self.client.subscribe_topic("all", self._on_member)
        end = asyncio.get_running_loop().time() + timeout
        while len(self.addresses) < nodes:
            await self._learn()
            if why := broken():
                raise NodeLost(why)
            if asyncio.get_running_loop().time() > end:
                absent = sorted(set(range(nodes)) - set(self.addresses))
                raise NodeLost(f"the agents of nodes {absent} did not come up in {timeout:.0f} s")
            await asyncio.sleep(_POLL)

    async def _learn(self) -> None:
        assert self.client is not None
        workers = (await self.client.scheduler.identity(n_workers=-1))["workers"]
        for address, facts in workers.items():
            name = str(facts["name"])
            if name.startswith("node-") and name[5:].isdigit():
                self.addresses[int(name[5:])] = address

    def _on_member(self, event: Any) -> None:
        message = event[1]
        if self.closing or not isinstance(message, dict) or message.get("action") != "remove-worker":
            return
        for node, address in list(self.addresses.items()):
            if address == message.get("worker"):
                del self.addresses[node]
                self.on_lost(node)

    async def ask(self, call: str, nodes: Iterable[int] | None = None, **arguments: Any) -> dict[int, Any]:
        """Ask agents in one broadcast; their answers by node.

        Raises
        ------
        NodeLost
            When a node that is asked has no agent any more.
        Exception
            What an agent's handler raised.
        """
        assert self.client is not None
        chosen = list(self.addresses) if nodes is None else list(nodes)
        absent = [node for node in chosen if node not in self.addresses]
        if absent:
            raise NodeLost(f"node {absent[0]} is lost: its agent does not answer; `%sky restart` makes it anew")
        by_address = {self.addresses[node]: node for node in chosen}
        if self.direct and len(by_address) <= _DIRECT:
            calls = (getattr(self.client.rpc(address), f"sky_{call}")(**arguments) for address in by_address)
            return dict(zip(by_address.values(), await asyncio.gather(*calls), strict=True))
        answers = await self.client.scheduler.broadcast(
            msg={"op": f"sky_{call}", **arguments}, workers=list(by_address)
        )
        return {by_address[address]: answer for address, answer in answers.items()}

    async def close(self) -> None:
        """Let go of the scheduler, which may be gone: Dask's complaints of that are not for a notebook."""
        self.closing = True
        if self.client is not None:
            logger = logging.getLogger("distributed.client")
            logger.disabled = True
            try:
                await self.client.close(timeout=1)
            finally:
                logger.disabled = False
