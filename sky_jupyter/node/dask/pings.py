"""Pings of many agents by one request: the scheduler has some agents ping others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ..protocol.rpc import PING, PING_MANY

# An agent that pings others for the scheduler answers within this part of the time that the scheduler has.
_SHARE = 0.8


class PingsMany:
    """Mixin for a Dask server that pings agents on behalf of another process.

    The manager of many agents would be busy with their pings.
    """

    _pings: dict[str, asyncio.Future[dict[str, str]]]

    def serve_pings(self) -> None:
        """Answer the call from now on; a server calls it once."""
        self._pings = {}
        self.handlers[PING_MANY] = self.ping_many  # type: ignore[attr-defined]

    async def ping_many(
        self,
        workers: Sequence[str],
        patience: float,
        branches: Mapping[str, Sequence[str]] | None = None,
        **caller: Any,
    ) -> dict[str, str]:
        """Ping agents; return the answers that come within ``patience`` seconds.

        With ``branches`` those agents ping others: the ones that these have for their addresses. Raises an agent's own
        error.
        """
        for address in workers:
            if self.is_pinged(address) and address not in self._pings:
                others = (branches or {}).get(address, ())
                within = {"workers": [address, *others], "patience": _SHARE * patience} if others else {}
                # One that is late is waited for by the next call: a request that is cut off costs its connection.
                ping = asyncio.ensure_future(self._ping(address, within, caller))
                ping.add_done_callback(lambda ping: ping.cancelled() or ping.exception())
                self._pings[address] = ping
        asked = {address: self._pings[address] for address in workers if address in self._pings}
        if asked:
            await asyncio.wait(asked.values(), timeout=patience)
        done = [self._pings.pop(address) for address, ping in asked.items() if ping.done()]
        errors = [error for ping in done if (error := ping.exception()) is not None]
        if refused := [error for error in errors if not isinstance(error, OSError)]:
            raise refused[0]
        return {address: its for ping in done if ping.exception() is None for address, its in ping.result().items()}

    async def _ping(self, address: str, within: dict[str, Any], caller: dict[str, Any]) -> dict[str, str]:
        if within:
            agent = self.rpc(address)  # type: ignore[attr-defined]
            found: dict[str, str] = await getattr(agent, PING_MANY)(**within, **caller)
            return found
        return {address: await self.ping_one(address, **caller)}

    def ping_one(self, address: str, **caller: Any) -> Coroutine[Any, Any, str]:
        """Ping an agent."""
        ping: Coroutine[Any, Any, str] = getattr(self.rpc(address), PING.op)(**caller)  # type: ignore[attr-defined]
        return ping

    def is_pinged(self, address: str) -> bool:
        """Return whether an agent may be there."""
        return True
