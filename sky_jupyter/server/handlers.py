"""REST below ``/sky-jupyter/``, behind Jupyter's authentication and XSRF check.

``GET pools``, ``GET pools/ID/runs``, ``GET pools/ID/log?run=RUN``, ``POST pools/ID/terminal`` with a ``rank``, and
``POST pools/ID/ACTION`` with an action of `ACTIONS`. Of a kernel's answer, only the fields in `SHOWN` are returned.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async
from tornado import web

from ..errors import PoolError, SkyError
from ..pool.registry.registry import PoolRow, Registry
from . import run_output
from .end_orphaned_pool import Ends
from .manager_kernels import Kernel, Kernels, manager_of
from .pool_list import Listing

ACTIONS = ("interrupt", "restart", "down", "where", "files", "file", "fetch")
# Fields that a page may send besides the action, and fields of the kernel's answer that it gets.
GIVEN = ("rank", "path", "after", "from", "fetch", "stop")
SHOWN = (
    *("message", "done", "text", "runs"),
    *("path", "ranks", "entries", "more", "last", "kind", "data", "size", "modified", "from", "next"),
    *("fetch", "name", "there", "total", "state"),
)
_ID = r"(?P<pool>[A-Za-z0-9_-]{1,64})"
_PAGE = 2000
_MOST_RANKS = 1 << 20
# Status 1 and 255 mean that the terminal was not opened, or has broken. A page closes its tab when the program ends.
_READ_FIRST = """"$@"
case $? in 1|255) printf 'Enter closes this terminal. '; read _ ;; esac"""


@dataclass(frozen=True)
class Parts:
    """Objects that the handlers use."""

    registry: Registry
    kernels: Kernels
    listing: Listing
    ends: Ends


class Refused(web.HTTPError):
    """An answer with the reason why something was not done, in words for a person."""

    def __init__(self, status: int, text: str) -> None:
        # tornado formats the message, in which each % must be doubled; an argument is not changed.
        super().__init__(status, "%s", text)
        self.text = text


class SkyHandler(APIHandler):
    """Base class of the handlers."""

    auth_resource = "sky_jupyter"

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the reason as JSON."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        if isinstance(error, Refused):
            self.set_header("Content-Type", "application/json")
            self.finish(json.dumps({"message": error.text, "reason": None}))
        else:
            super().write_error(status_code, **kwargs)

    @property
    def parts(self) -> Parts:
        parts: Parts = self.settings["sky_jupyter"]
        return parts

    async def row(self, pool: str) -> PoolRow:
        """Return the live pool of this id."""
        rows = await asyncio.to_thread(self.parts.registry.pools) if self.parts.registry.path.exists() else []
        row = next((row for row in rows if row.id == pool), None)
        if row is None:
            raise Refused(404, f"there is no live pool {pool}; it has ended")
        return row

    async def manager(self, row: PoolRow) -> Kernel:
        """Return this server's kernel that manages a pool."""
        kernels = await self.parts.kernels.by_process()
        found = manager_of(row.owner, kernels) if row.is_here else None
        if found is None:
            raise Refused(409, f"pool {row.name} is managed by {row.who}, which is not a kernel of this server")
        return found


class PoolsHandler(SkyHandler):
    """The list of pools."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        try:
            pools = await self.parts.listing.pools()
        except SkyError as error:
            raise Refused(503, str(error)) from None
        self.finish(json.dumps({"pools": pools}))


class RunsHandler(SkyHandler):
    """The runs of a pool."""

    @web.authenticated
    @authorized
    async def get(self, pool: str) -> None:
        await self.row(pool)
        self.finish(json.dumps({"runs": await self.parts.listing.runs(pool)}))


class LogHandler(SkyHandler):
    """Newest output of a run.

    For local nodes it is read here, else requested from the kernel that manages the pool.
    """

    @web.authenticated
    @authorized
    async def get(self, pool: str) -> None:
        row = await self.row(pool)
        known = await self.parts.listing.runs(pool)
        wanted = self.get_query_argument("run", None)
        run = next((run for run in known if wanted in (None, run["id"])), None)
        if run is None:
            raise Refused(404, f"there is no run {wanted} on pool {row.name}" if wanted else "nothing has run yet")
        ranks = await asyncio.to_thread(run_output.local, row, run["id"])
        if ranks is None:
            ranks = await self.ask_for_log(row, run["id"])
        self.finish(json.dumps({"run": run, "ranks": ranks}))

    async def ask_for_log(self, row: PoolRow, run: str) -> list[dict[str, Any]]:
        if not row.owner_lives:
            raise Refused(409, f"only `%sky attach {row.name}` can bring what was printed on {row.provider} nodes")
        kernel = await self.manager(row)
        content = {"action": "log", "pool": row.name, "run": run, "from": -_PAGE, "count": _PAGE}
        try:
            reply = await self.parts.kernels.ask(kernel.id, content)
        except PoolError as error:
            raise Refused(409, str(error)) from None
        return run_output.by_rank(event for node in reply.get("nodes", ()) for event in node.get("events", ()))


class TerminalHandler(SkyHandler):
    """A terminal of this server on a rank's node, if this server has terminals."""

    @web.authenticated
    @authorized
    async def post(self, pool: str) -> None:
        manager = self.settings.get("terminal_manager") if self.settings.get("terminals_available") else None
        if manager is None:
            raise Refused(409, "this server has no terminals; `sky-jupyter shell` in a terminal of your own opens one")
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, "execute", "terminals")):
            raise Refused(403, "terminals of this server are not for you")
        rank = (self.get_json_body() or {}).get("rank", 0)
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < _MOST_RANKS:
            raise Refused(400, "'rank' must be a rank's number")
        row = await self.row(pool)
        if not row.is_here:
            raise Refused(409, f"pool {row.name} is managed by {row.who}: a terminal opens there")
        made = await ensure_async(manager.create(shell_command=terminal_command(row.id, rank)))
        self.finish(json.dumps({"terminal": made["name"]}))


def terminal_command(pool: str, rank: int) -> list[str]:
    """Return the program of a rank's terminal; after an error it waits for a key."""
    program = Path(sys.executable).with_name("sky-jupyter")
    words = [str(program)] if program.exists() else [sys.executable, "-m", "sky_jupyter"]
    return ["/bin/sh", "-c", _READ_FIRST, "sh", *words, "shell", pool, str(rank)]


class ActionHandler(SkyHandler):
    """An action on a pool."""

    @web.authenticated
    @authorized
    async def post(self, pool: str, action: str) -> None:
        if action not in ACTIONS:
            raise Refused(404, f"there is no action {action}, but {', '.join(ACTIONS)}")
        row, body = await self.row(pool), self.get_json_body()
        given = {name: body[name] for name in GIVEN if name in body} if isinstance(body, dict) else {}
        try:
            # While a program ends the pool, that program is its owner.
            if action == "down" and (row.id in self.parts.ends or not row.owner_lives):
                reply = {"message": await self.parts.ends.end(row)}
            elif row.owner_lives:
                kernel = await self.manager(row)
                reply = await self.parts.kernels.ask(kernel.id, {**given, "action": action, "pool": row.name})
            else:
                raise PoolError(f"no notebook manages pool {row.name}: `%sky attach {row.name}` attaches to it")
        except PoolError as error:
            raise Refused(409, str(error)) from None
        self.finish(json.dumps({name: reply[name] for name in SHOWN if name in reply}))


HANDLERS = [
    (r"/sky-jupyter/pools", PoolsHandler),
    (rf"/sky-jupyter/pools/{_ID}/runs", RunsHandler),
    (rf"/sky-jupyter/pools/{_ID}/log", LogHandler),
    (rf"/sky-jupyter/pools/{_ID}/terminal", TerminalHandler),
    (rf"/sky-jupyter/pools/{_ID}/(?P<action>[a-z]{{1,32}})", ActionHandler),
]
