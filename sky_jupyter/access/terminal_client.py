"""Requests of a terminal to a pool: through its manager's kernel, or in process."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import PoolError
from ..pool import request_names, terminal_requests
from ..pool.base.event_loop import loop

if TYPE_CHECKING:
    from ..pool.context import PoolContext

# Seconds to wait, for the opening of a terminal and for all else. The latter is answered once a broken link is back,
# which may take as long as the agent keeps a terminal that nobody reads.
_OPENING, PATIENCE = 30.0, 75.0
_POLL = 1.0
_SILENT = "the kernel that manages the pool does not answer such requests: it has ended, or is of an earlier version"


class TerminalLine(Protocol):
    """Sender of a terminal's requests to a pool; several may be under way."""

    async def ask(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; see `terminal_requests`."""
        ...


class KernelLine:
    """Connection to the control channel of the kernel that manages the pool.

    It is an async context manager.

    Parameters
    ----------
    connection : mapping
        What the kernel's connection file has.
    pool : str
        The pool's name.
    """

    def __init__(self, connection: Mapping[str, Any], pool: str) -> None:
        self._connection, self._pool = connection, pool
        self._waits: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> KernelLine:
        from jupyter_client.asynchronous import AsyncKernelClient

        self._client = AsyncKernelClient()
        self._client.load_connection_info(dict(self._connection))
        self._client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
        self._reader = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._client.stop_channels()

    async def ask(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer.

        Parameters
        ----------
        content : mapping
            The request, without the pool.

        Returns
        -------
        dict
            The answer.

        Raises
        ------
        PoolError
            When it is refused, or nobody answers.
        """
        request = self._client.session.msg(request_names.TERMINAL, {**content, "pool": self._pool})
        id = request["header"]["msg_id"]
        self._waits[id] = asyncio.get_running_loop().create_future()
        try:
            self._client.control_channel.send(request)
            reply = await asyncio.wait_for(self._waits[id], _patience(content))
        except asyncio.TimeoutError:
            raise PoolError(_SILENT) from None
        finally:
            del self._waits[id]
        if reply.get("status") != "ok":
            raise PoolError(str(reply.get("message") or "the kernel refused"))
        return reply

    async def _read(self) -> None:
        while True:
            try:
                message = await self._client.control_channel.get_msg(timeout=_POLL)
            except (queue.Empty, TimeoutError):
                continue
            wait = self._waits.get(message["parent_header"].get("msg_id", ""))
            if wait is not None and not wait.done():
                wait.set_result(message["content"])


class PoolLine:
    """Sender of a terminal's requests to a pool that this process manages.

    Parameters
    ----------
    pool : PoolContext
        The pool.
    """

    def __init__(self, pool: PoolContext) -> None:
        self._pool = pool

    async def ask(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer."""
        asked = asyncio.wrap_future(loop().submit(terminal_requests.answer(self._pool, content)))
        try:
            return await asyncio.wait_for(asked, _patience(content))
        except asyncio.TimeoutError:
            raise PoolError("the pool does not answer") from None


def _patience(content: Mapping[str, Any]) -> float:
    return _OPENING if content.get("action") == "open" else PATIENCE
