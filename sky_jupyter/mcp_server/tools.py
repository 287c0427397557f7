"""The tools of the MCP server, over the pools of other processes.

What they return are facts of the registry, output and values; folders, keys and tokens are in none of it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Annotated, Any, TypeVar

import anyio
from anyio import to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from ..access import pool_facts
from ..access.log_pages import LocalPages
from ..access.pool_access import PoolAccess
from ..errors import SkyError
from ..node.protocol.journal_events import text_of
from ..pool.runs.journal_pages import Page
from ..pool.runs.log_reader import PagesContext
from ..util.text import first_line, plain

_MOST_TEXT = 40_000
_MOST_EVENTS = 1000
_MOST_WAIT = 50.0
_LOOK = 0.3
_NAME = re.compile(r"[^\W\d]\w*\Z")
_INSTRUCTIONS = (
    "Pools of nodes on which Jupyter notebooks run cells with %%sky: every rank of a pool runs the same cell. "
    "Begin with list_pools. A pool may be left out where there is only one."
)

F = TypeVar("F", bound=Callable[..., Any])
Pool = Annotated[
    str | None, Field(description="A pool's name or id; not needed if only one is running.", max_length=64)
]
Run = Annotated[str | None, Field(description="A run's id; without it, the newest.", pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Rank = Annotated[int, Field(ge=0, le=1 << 24)]


def build(access: PoolAccess, *, allow_run: bool = False) -> MCPServer[Any]:
    """Return the server with its tools.

    Parameters
    ----------
    access : PoolAccess
        Access to the pools.
    allow_run : bool
        Whether an agent may run cells; the tool is there only then.

    Returns
    -------
    MCPServer
        The server, to be run by a transport.
    """
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    server: MCPServer[Any] = MCPServer(
        "sky-jupyter", instructions=_INSTRUCTIONS, version=_version(), log_level="WARNING", subscriptions=False
    )
    # The SDK configures the log of the whole process, which may be Jupyter Server's.
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    tools = PoolTools(access)
    look, act = ToolAnnotations(read_only_hint=True), ToolAnnotations(read_only_hint=False, destructive_hint=True)
    for tool in (tools.list_pools, tools.list_runs, tools.read_output, tools.where, tools.names):
        server.add_tool(_told(tool), annotations=look)
    # It opens what a rank has pickled, in the notebook: a person should be asked.
    server.add_tool(_told(tools.pull), annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False))
    server.add_tool(_told(tools.interrupt), annotations=act)
    if allow_run:
        server.add_tool(_told(tools.run_cell), annotations=act)
    return server


def _version() -> str:
    # A checkout may be used without being installed.
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("sky-jupyter")
    return ""


def _told(tool: F) -> F:
    """Return a tool whose foreseen errors reach the agent in words."""
    if inspect.iscoroutinefunction(tool):

        @functools.wraps(tool)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _in_words():
                return await tool(*args, **kwargs)

        return awaited  # type: ignore[return-value]

    @functools.wraps(tool)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _in_words():
            return tool(*args, **kwargs)

    return called  # type: ignore[return-value]


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except SkyError as error:
        raise ToolError(plain(str(error))) from None
    except (OSError, TimeoutError) as error:
        raise ToolError(f"{type(error).__name__}: {first_line(error)}") from None


class PoolTools:
    """The tools; each docstring is what an agent is told of it.

    Parameters
    ----------
    access : PoolAccess
        Access to the pools.
    """

    def __init__(self, access: PoolAccess) -> None:
        self._access = access

    def list_pools(self) -> dict[str, Any]:
        """List the live pools: name, nodes, state, what runs, and who manages each."""
        return {"pools": self._access.pools()}

    def list_runs(self, pool: Pool = None, count: Annotated[int, Field(ge=1, le=200)] = 20) -> dict[str, Any]:
        """List what ran on a pool, the newest first, with states and times."""
        row = self._access.find(pool)
        return {"runs": pool_facts.of_runs(self._access.runs(row, count))}

    def read_output(
        self,
        pool: Pool = None,
        run: Run = None,
        rank: Annotated[Rank | None, Field(description="One rank only.")] = None,
        node: Annotated[int | None, Field(description="One node only; needed with `start`.", ge=0)] = None,
        start: Annotated[
            int | None, Field(description="A page begins here: `next` of an earlier page.", ge=0, lt=1 << 53)
        ] = None,
    ) -> dict[str, Any]:
        """Read a page of a run's output and tracebacks; without `start`, the end of it.

        Where a node's `cut` is true, one text was longer than a page; its rest is on no page.
        """
        row = self._access.find(pool)
        found = self._access.run(row, run)
        nodes = None if node is None else {node}
        if start is not None and node is None:
            raise SkyError("`start` counts the events of one node: give its `node`, too")
        with self._access.log(row) as source:
            first = -_MOST_EVENTS if start is None else start
            pages = source.page(found.id, rank, first, _MOST_EVENTS, nodes=nodes)
        if not pages:
            raise SkyError(f"run {found.id} has no output on node {node}")
        share = _MOST_TEXT // len(pages)
        return {"run": pool_facts.of_run(found), "nodes": [_page(page, share, tail=start is None) for page in pages]}

    def where(self, pool: Pool = None) -> dict[str, str]:
        """Show each rank's stack, whatever it is doing; takes about a second."""
        return {"stacks": plain(self._access.where(self._access.find(pool)))[:_MOST_TEXT]}

    def interrupt(self, pool: Pool = None, run: Run = None) -> dict[str, Any]:
        """Interrupt what runs on a pool, as Ctrl-C does; names on the ranks stay."""
        row = self._access.find(pool)
        chosen = None if run is None else self._access.run(row, run).id
        reply = self._access.ask(row, {"action": "interrupt", "run": chosen})
        return {"message": reply["message"], "runs": reply["runs"]}

    def names(self, pool: Pool = None) -> dict[str, Any]:
        """List the variables on a pool's ranks with type, shape and size."""
        reply = self._access.ask(self._access.find(pool), {"action": "names"})
        return {"names": reply["names"], "notes": reply["notes"]}

    def pull(
        self,
        name: Annotated[str, Field(description="A variable's name.", max_length=200)],
        rank: Annotated[Rank, Field(description="Whose value.")] = 0,
        pool: Pool = None,
    ) -> dict[str, Any]:
        """Read a small value of one rank: as JSON where it can be that, else as text."""
        if not _NAME.match(name):
            raise SkyError(f"{name[:40]!r} is not the name of a variable")
        request = {"action": "value", "name": name, "rank": rank}
        found = self._access.evaluate(self._access.find(pool), request)
        return {key: value for key, value in found.items() if key != "status"}

    async def run_cell(
        self,
        code: Annotated[str, Field(description="Python, as in a cell below %%sky.", min_length=1, max_length=100_000)],
        pool: Pool = None,
        ranks: Annotated[
            list[Rank] | None, Field(description="These ranks only.", min_length=1, max_length=4096)
        ] = None,
        timeout: Annotated[
            float | None, Field(description="Seconds after which all ranks are stopped.", gt=0, le=1e6)
        ] = None,
        wait: Annotated[
            float, Field(description="Seconds to wait for its end; it goes on after that.", ge=0, le=_MOST_WAIT)
        ] = 20.0,
    ) -> dict[str, Any]:
        """Run a cell on the ranks of a pool.

        It sees the notebook's names as a %%sky cell does; the last expression of each rank is in its output.
        """
        row = await to_thread.run_sync(self._access.find, pool)
        request = {"action": "run", "code": code, "ranks": ranks, "timeout": timeout}
        began = await to_thread.run_sync(self._access.evaluate, row, request)
        with self._access.log(row) as source, anyio.move_on_after(wait):
            while not await to_thread.run_sync(_is_over, source, began["run"]):  # noqa: ASYNC110 - other processes end it
                await anyio.sleep(_LOOK)
        pages = await to_thread.run_sync(_pages, source, began["run"])
        over = await to_thread.run_sync(_is_over, source, began["run"])
        share = _MOST_TEXT // max(1, len(pages))
        shown = [_page(page, share, tail=True) for page in pages]
        return {"run": began["run"], "over": over, "notes": began["notes"], "nodes": shown}


def _pages(source: PagesContext, run: str) -> list[Page]:
    """Return the end of a run's output; empty while no node has begun it."""
    try:
        return source.page(run, None, -_MOST_EVENTS, _MOST_EVENTS)
    except SkyError:
        return []


def _is_over(source: PagesContext, run: str) -> bool:
    pages = _pages(source, run)
    if not pages or not all(page.over for page in pages):
        return False
    # A node may not have begun it when others have ended it.
    return not isinstance(source, LocalPages) or source.is_whole(run)


def _page(page: Page, most: int, *, tail: bool) -> dict[str, Any]:
    """Return a page as JSON: text by rank, in order of events, cut to a length."""
    texts = [(event["seq"], event.get("rank"), plain(text_of(event))) for event in page.events]
    ends = {str(event["rank"]): event["status"] for event in page.events if event["kind"] == "end"}
    texts = [one for one in texts if one[2]]
    kept: list[tuple[int, int | None, str]] = []
    # A text longer than a page is never shown whole.
    short = False
    for one in reversed(texts) if tail else texts:
        if kept and most < len(one[2]):
            break
        short = short or most < len(one[2])
        kept.append((one[0], one[1], one[2][-most:] if tail else one[2][:most]))
        most -= len(one[2])
    kept = kept[::-1] if tail else kept
    cut = len(kept) < len(texts)
    lines: list[dict[str, Any]] = []
    for _, rank, text in kept:
        if lines and lines[-1]["rank"] == rank:
            lines[-1]["text"] += text
        else:
            lines.append({"rank": rank, "text": text})
    following = kept[-1][0] + 1 if cut and not tail else page.next
    first = kept[0][0] if cut and tail else page.first
    whole = page.over and following >= page.end
    return {
        "node": page.node,
        "first": first,
        "next": following,
        "over": whole,
        "ended": ends,
        "output": lines,
        "cut": short,
    }


__all__ = ["PoolTools", "build"]
