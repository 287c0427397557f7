"""Pings of many agents by one request: the scheduler has some agents ping others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ..protocol.rpc import PING, PING_MANY

# Share of the scheduler's time in which an agent answers that pings others for it.
_SHARE = 0.8


class PingsMany:
    """Mixin for a Dask server that pings agents on behalf of another process.

    Pings of very many agents would keep one process busy.
    """

    # By the agent's address and the caller: an agent refuses one caller and answers another.
    _pings: dict[tuple[str, Any], asyncio.Future[dict[str, str]]]

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

        ``branches`` has, by the address of an agent, other agents that this agent pings. Raises an error of an agent
        other than OSError.
        """
        who = tuple(sorted(caller.items()))
        for address in workers:
            if self.is_pinged(address) and (address, who) not in self._pings:
                others = (branches or {}).get(address, ())
                within = {"workers": [address, *others], "patience": _SHARE * patience} if others else {}
                # The next call waits for a late ping: a request that is cancelled costs its connection.
                ping = asyncio.ensure_future(self._ping(address, within, caller))
                ping.add_done_callback(lambda ping: ping.cancelled() or ping.exception())
                self._pings[address, who] = ping
        asked = {address: self._pings[address, who] for address in workers if (address, who) in self._pings}
        if asked:
            await asyncio.wait(asked.values(), timeout=patience)
        done = [ping for ping in asked.values() if ping.done()]
        for address, one in asked.items():
            # Another call of the same caller may have seen its end first.
            if one.done() and self._pings.get((address, who)) is one:
                del self._pings[address, who]
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
        """Return whether to ping an agent."""
        return True
