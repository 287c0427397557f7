"""``POST /sky-jupyter/mcp``: streamable HTTP, behind Jupyter's authentication.

The SDK's transport is an ASGI application; the handler calls it with the request, without its credentials. There are no
sessions: each request is answered by itself, in JSON.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..access.pool_access import PoolAccess
from .handlers import Refused, SkyHandler

# Jupyter's own credentials, which no tool needs.
_CREDENTIALS = ("authorization", "cookie", "x-xsrftoken")
# Seconds that running requests have to end.
_ENDS = 5.0
_MISSING = "the MCP server needs a package more: pip install 'sky-jupyter[mcp]'"
Message = Mapping[str, Any]


class McpEndpoint:
    """The MCP server of a Jupyter server; it starts with the first request.

    Parameters
    ----------
    allow_run : bool
        Whether agents may run cells.
    """

    def __init__(self, *, allow_run: bool) -> None:
        self._allow_run = allow_run
        self._lock = asyncio.Lock()
        self._manager: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    async def manager(self) -> Any:
        """Return the SDK's session manager, which is running.

        Raises ImportError if the SDK is not installed.
        """
        async with self._lock:
            if self._manager is None or (self._task is not None and self._task.done()):
                # The import takes seconds; the server continues meanwhile.
                await asyncio.to_thread(importlib.import_module, "sky_jupyter.mcp_server.tools")
                running: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._run(running))
                self._manager = await running
        return self._manager

    async def _run(self, running: asyncio.Future[Any]) -> None:
        from mcp.server.transport_security import TransportSecuritySettings

        from ..mcp_server.tools import build

        access = PoolAccess()
        try:
            server = build(access, allow_run=self._allow_run)
            # Jupyter has checked a request's host and origin before it reaches the handler.
            looked_at = TransportSecuritySettings(enable_dns_rebinding_protection=False)
            # This call makes the session manager; its routes are not used.
            server.streamable_http_app(json_response=True, stateless_http=True, transport_security=looked_at)
            async with server.session_manager.run():
                running.set_result(server.session_manager)
                await self._stopped.wait()
        except Exception as error:
            if running.done():
                raise
            # The request that started it gets the error, and the next one tries again.
            running.set_exception(error)
        finally:
            await asyncio.to_thread(access.close)

    async def stop(self) -> None:
        """Stop the MCP server if it runs; a kernel without an answer cannot delay that."""
        self._stopped.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_ENDS)


class McpHandler(SkyHandler):
    """Requests of MCP clients."""

    def initialize(self, **more: Any) -> None:
        """Prepare to note when the client disconnects."""
        super().initialize(**more)
        self._gone = asyncio.Event()
        self._read = False

    def on_connection_close(self) -> None:
        """Tell the SDK that nobody waits any more."""
        self._gone.set()
        super().on_connection_close()

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Refuse: there is no stream of notifications."""
        self.set_header("Allow", "POST")
        raise Refused(405, "this MCP server has no stream of its own; send requests with POST")

    @web.authenticated
    @authorized
    async def delete(self) -> None:
        """Refuse: there are no sessions."""
        self.set_header("Allow", "POST")
        raise Refused(405, "this MCP server has no sessions")

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer a request of the protocol."""
        endpoint: McpEndpoint = self.settings["sky_jupyter_mcp"]
        try:
            manager = await endpoint.manager()
        except ImportError:
            raise Refused(501, _MISSING) from None
        await manager.handle_request(self._scope(), self._receive, self._sender())

    def _scope(self) -> dict[str, Any]:
        """Return the request in ASGI's form, without its credentials."""
        request = self.request
        headers = [(name.lower(), value) for name, value in request.headers.get_all()]
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.protocol,
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            # The query string may contain a token.
            "query_string": b"",
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers if name not in _CREDENTIALS
            ],
            "client": None,
            "server": None,
        }

    async def _receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self.request.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def _sender(self) -> Callable[[Message], Awaitable[None]]:
        body: list[bytes] = []
        kind = "application/json"

        async def send(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                self.set_status(message["status"])
                for name, value in message["headers"]:
                    if name.lower() == b"content-type":
                        kind = value.decode("latin-1")
                    elif name.lower() != b"content-length":
                        self.set_header(name.decode("latin-1"), value.decode("latin-1"))
            elif message["type"] == "http.response.body":
                body.append(message.get("body", b""))
                if not message.get("more_body") and not self._gone.is_set():
                    self.finish(b"".join(body), set_content_type=kind)

        return send


HANDLERS = [(r"/sky-jupyter/mcp", McpHandler)]
