"""Requests of frontends to pools, answered in JSON on the control channel.

A request may come from anything that can talk to the notebook's kernel, in any form and thread; it always gets an
answer. See docs/actions.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..capture.ledger import NameFacts
from ..errors import PoolError, SkyError, SpecError
from ..spec.pool_spec import MAX_NODES
from ..util import control_channel
from ..util.control_channel import Reply
from ..util.text import nearest, rank_label
from ..util.validate import Check, is_flag, list_of, whole
from . import name_origins
from .base.timeouts import TIMEOUTS
from .lifecycle import status
from .open_pools import pools
from .runs import journal_pages

if TYPE_CHECKING:
    from .pool import Pool
    from .runs.run import Run

_log = logging.getLogger(__name__)
# The limit of requests at a time; further ones are refused.
_MOST_AT_A_TIME = 32
# So many of them are reserved for urgent requests.
_LEFT_FOR_URGENT = 8
_URGENT = ("interrupt", "down")
# A longer request goes on in the background, and the answer says so.
_PATIENCE = TIMEOUTS.answers.request
# Two interrupts within this time count as one: a double click.
_DOUBLE = TIMEOUTS.interrupts.double_click
_MOST_TEXT = 64
_MOST_HOST = 300
_MOST_PATH = 4096
_MOST_RANKS = 4096
_MOST_RUNS = 200
_SHOWN_RUNS = 50
_MOST_NUMBER = 1 << 53
_MOST_LINES = 100
_READS = 5
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
Answer = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Validated parameters of a request."""

    pool: str | None = None
    run: str | None = None
    rank: int | None = None
    ranks: tuple[int, ...] | None = None
    start: int = 0
    count: int | None = None
    form: str = "events"
    since: int | None = None
    lines: int | None = None
    hard: bool = False
    nodes: int | None = None
    node: int | None = None
    add: tuple[str, ...] = ()
    remove: tuple[int, ...] = ()
    path: str = ""
    after: str = ""
    fetch: str | None = None
    stop: bool = False


class FrontendRequestHandler:
    """Handler of these requests; the kernel keeps it from the first one on.

    Runs on the kernel's control thread.
    """

    def __init__(self) -> None:
        self._worked_on = 0

    async def __call__(self, content: dict[str, Any], request: dict[str, Any]) -> Reply:
        self._worked_on += 1
        try:
            most = _MOST_AT_A_TIME if content.get("action") in _URGENT else _MOST_AT_A_TIME - _LEFT_FOR_URGENT
            if self._worked_on > most:
                return control_channel.refusal("too many requests at a time; wait for their answers")
            return await _answer_in_thread(content), ()
        finally:
            self._worked_on -= 1


def _answer_in_thread(content: Any) -> asyncio.Future[dict[str, Any]]:
    future: Future[dict[str, Any]] = Future()
    # A daemon: a request that hangs does not keep the kernel from ending.
    work = threading.Thread(target=lambda: future.set_result(answer(content)), name="sky-request", daemon=True)
    work.start()
    return asyncio.wrap_future(future)


def answer(content: Any) -> Answer:
    """Execute a request and return its answer; never raise. Thread-safe."""
    try:
        action, request = read(content)
        done = {"status": "ok", **ACTIONS[action](request)}
    except SkyError as error:
        done = _refusal(str(error))
    except FutureTimeout:
        done = _refusal("the pool did not answer in time; it may be unreachable just now")
    except Exception as error:
        _log.exception("a request could not be answered")
        done = _refusal(f"{type(error).__name__}: {error}")
    return sound(done)


def _refusal(message: str) -> Answer:
    return {"status": "error", "message": message}


def read(content: Any) -> tuple[str, Request]:
    """Return a request's action and parameters; ignore unknown ones.

    Raises SpecError if the action is unknown or a value invalid.
    """
    if not isinstance(content, Mapping):
        raise SpecError(f"a request is an object with an 'action', not {type(content).__name__}")
    action = content.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        shown = repr(action[:_MOST_TEXT]) if isinstance(action, str) else type(action).__name__
        hint = nearest(action[:_MOST_TEXT], ACTIONS) if isinstance(action, str) else ""
        raise SpecError(f"no action {shown}; there are {', '.join(ACTIONS)}{hint}")
    given: dict[str, Any] = {}
    for name, (field, is_good, allowed) in _FIELDS.items():
        value = content.get(name)
        if value is None or (name == "rank" and value == "all"):
            continue
        if not is_good(value):
            raise SpecError(f"{action}: {name!r} must be {allowed}")
        given[field] = tuple(value) if isinstance(value, list) else value
    return action, Request(**given)


def _text(most: int) -> Check:
    return lambda value: isinstance(value, str) and 0 < len(value) <= most and value.isprintable()


def _is_path(value: object) -> bool:
    # A file's name may have any characters but NUL.
    return isinstance(value, str) and len(value) <= _MOST_PATH and "\0" not in value


_RANK, _MARK = whole(0, MAX_NODES * _MOST_RANKS), whole(0, _MOST_NUMBER)
# Parameters: the field of `Request`, the check of a value, and its description for messages.
_FIELDS: Mapping[str, tuple[str, Check, str]] = {
    "pool": ("pool", _text(_MOST_TEXT), "a pool's name"),
    "run": ("run", lambda value: isinstance(value, str) and bool(_ID.match(value)), "a run's id"),
    "rank": ("rank", _RANK, "a rank's number, or 'all'"),
    "ranks": ("ranks", list_of(_RANK, 1, _MOST_RANKS), f"a list of 1 to {_MOST_RANKS} ranks' numbers"),
    "from": ("start", whole(-_MOST_NUMBER, _MOST_NUMBER), "an event's number, or below 0 so many before the end"),
    "count": ("count", whole(1, journal_pages.MOST_COUNT), f"a number from 1 to {journal_pages.MOST_COUNT}"),
    "as": ("form", lambda value: value in ("events", "text"), "'events' or 'text'"),
    "since": ("since", _MARK, "the 'mark' of an earlier answer, or 0"),
    "lines": ("lines", whole(0, _MOST_LINES), f"a number from 0 to {_MOST_LINES}"),
    "hard": ("hard", is_flag, "true or false"),
    "nodes": ("nodes", whole(1, MAX_NODES), f"a number from 1 to {MAX_NODES}"),
    "node": ("node", whole(0, MAX_NODES), "a node's number"),
    "path": ("path", _is_path, f"a path of at most {_MOST_PATH} letters"),
    "after": ("after", _is_path, "the 'last' of an earlier answer"),
    "fetch": ("fetch", lambda value: isinstance(value, str) and bool(_ID.match(value)), "a fetch's id"),
    "stop": ("stop", is_flag, "true or false"),
    "add": ("add", list_of(_text(_MOST_HOST), 1, MAX_NODES), "a list of hosts, such as gpu1 or me@gpu2:2222"),
    "remove": ("remove", list_of(whole(0, MAX_NODES), 1, MAX_NODES), "a list of nodes' numbers"),
}


# -- the actions -----------------------------------------------------------------------------------


def _status(request: Request) -> Answer:
    chosen = pools.all() + pools.starting if request.pool is None else [_need(request.pool)]
    current = pools.current
    return {"pools": [{**status.of(pool, request.since, request.lines), "current": pool is current} for pool in chosen]}


def _interrupt(request: Request) -> Answer:
    pool = _need(request.pool)
    if pools.interrupt_start(pool):
        return {"runs": [], "message": f"the start of pool {pool.spec.name} is interrupted"}
    if request.run is None and pool.stop_resizing():
        return {
            "runs": [],
            "message": f"the change of pool {pool.spec.name}'s nodes is cancelled; the pool stays as it was",
        }
    pressed = [run for run in _running(pool) if request.run in (None, run.id)]
    ranks = sorted({rank for run in pressed for rank in run.left})
    for run in pressed:
        if request.hard:
            pool.press(run, max(1, run.hard_presses - run.presses))
        elif monotonic() - run.pressed >= _DOUBLE:
            pool.press(run)
    what = f"{rank_label(ranks)} interrupted" if ranks else "nothing runs"
    return {"runs": [run.id for run in pressed], "message": f"pool {pool.spec.name}: {what}"}


def _restart(request: Request) -> Answer:
    pool = _need(request.pool)
    ranks = None if request.ranks is None else pool.check_ranks(request.ranks)
    what = f"pool {pool.spec.name}: new kernels on {'all ranks' if ranks is None else rank_label(ranks)}"
    return _in_time(pool, lambda: pool.restart(ranks=ranks), what)


def _resize(request: Request) -> Answer:
    pool = _need(request.pool)
    plan = pool.planned(request.nodes, request.add, request.remove)
    before = pool.spec.nodes
    what = f"pool {pool.spec.name}: {before} node{'s' if before > 1 else ''} -> {plan.spec.nodes}"
    if plan.is_of(pool.spec):
        return {"done": True, "message": f"{what}, as it is already"}
    return _in_time(pool, lambda: pool.resize(request.nodes, add=request.add, remove=request.remove), what)


def _down(request: Request) -> Answer:
    pool = _need(request.pool)
    if pools.interrupt_start(pool):
        return {"done": False, "message": f"the start of pool {pool.spec.name} is interrupted, and it ends"}

    def end() -> None:
        pool.lifecycle.stop_comeback()
        with pool.changing("ended"):
            pool.down()
        pools.discard(pool)

    return _in_time(pool, end, f"pool {pool.spec.name}: ended")


def _where(request: Request) -> Answer:
    return {"text": str(_need(request.pool).where())}


def _names(request: Request) -> Answer:
    pool = _need(request.pool)
    names = pool.names()
    return name_origins.to_json(names, names.rows(_facts(pool)), set(pool.modules))


def _facts(pool: Pool) -> list[NameFacts]:
    """Return the ledger's facts; retry, as the main thread may change it meanwhile."""
    for _ in range(_READS):
        # Without the notebook's namespace, which the main thread may change: new assignments are not seen.
        with contextlib.suppress(RuntimeError, KeyError):
            return pool.ledger.facts({})
    return []


def _page(request: Request) -> Answer:
    pool, run = _need(request.pool), request.run
    if run is None:
        known = [item.id for item in list(pool.supervisor.runs.values())]
        run = known[-1] if known else next((row.id for row in pool.registry.runs(pool.id, 1)), None)
    if run is None:
        raise PoolError(f"nothing has run on pool {pool.spec.name!r} yet")
    only = None if request.node is None else {request.node}
    found = pool.page(run, request.rank, request.start, request.count or journal_pages.COUNT, nodes=only)
    nodes = []
    for page in found:
        facts = {"node": page.node, "from": page.first, "next": page.next, "end": page.end, "over": page.over}
        what = {"text": page.text} if request.form == "text" else {"events": list(page.events)}
        nodes.append({**facts, **what})
    return {"run": run, "nodes": nodes}


def _runs(request: Request) -> Answer:
    chosen = pools.all() if request.pool is None else [_need(request.pool)]
    most = min(request.count or _SHOWN_RUNS, _MOST_RUNS)
    rows: list[dict[str, Any]] = []
    for pool in chosen:
        on = {run.id for run in _running(pool)}
        for row in pool.registry.runs(pool.id, most):
            state = "running" if row.id in on else row.state
            facts = {"id": row.id, "pool": pool.spec.name, "state": state, "code": row.code, "began": row.began}
            rows.append(
                {**facts, "elapsed": row.elapsed, "ranks": list(row.ranks), "detached": row.id in pool.detached}
            )
    return {"runs": sorted(rows, key=lambda row: -row["began"])[:most]}


def _lacking(request: Request) -> Answer:
    from .transfer import copy_names

    lacks = copy_names.missing(_need(request.pool), {})
    return {"ranks": [rank for rank, names in lacks.items() if names]}


def _files(request: Request) -> Answer:
    from .transfer import rank_file_requests

    return rank_file_requests.list_files(_need(request.pool), request.rank or 0, request.path, request.after)


def _file(request: Request) -> Answer:
    from .transfer import rank_file_requests

    return rank_file_requests.show_file(_need(request.pool), request.rank or 0, request.path, request.start)


def _fetch(request: Request) -> Answer:
    from .transfer.rank_file_requests import fetches

    if request.fetch is not None:
        return fetches.status(request.fetch, stop=request.stop)
    return fetches.begin(_need(request.pool), request.rank or 0, request.path)


ACTIONS: Mapping[str, Callable[[Request], Answer]] = {
    "status": _status,
    "interrupt": _interrupt,
    "restart": _restart,
    "resize": _resize,
    "down": _down,
    "where": _where,
    "names": _names,
    "log": _page,
    "runs": _runs,
    "lacking": _lacking,
    "files": _files,
    "file": _file,
    "fetch": _fetch,
}


def _need(name: str | None) -> Pool:
    starting = pools.starting
    if name is None and pools.current is None and len(starting) == 1:
        return starting[0]
    found = next((pool for pool in starting if pool.spec.name == name), None)
    return pools.need(name) if found is None else found


def _running(pool: Pool) -> Sequence[Run]:
    return [run for run in list(pool.supervisor.runs.values()) if run.left]


def _in_time(pool: Pool, work: Callable[[], object], what: str) -> Answer:
    """Run work in a thread; after a timeout it goes on in the background.

    The next cell then reports a failure.
    """
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def tell(done: Future[None]) -> None:
        if done.exception() is not None:
            pool.supervisor.news.append(f"it was asked for, and failed ({what}): {done.exception()}")

    threading.Thread(target=run, name="sky-action", daemon=True).start()
    try:
        future.result(_PATIENCE)
    except FutureTimeout:
        if future.done():
            raise
        future.add_done_callback(tell)
        return {"done": False, "message": f"{what}: begun, and not done yet"}
    return {"done": True, "message": what}


# -- the wire --------------------------------------------------------------------------------------


def sound(value: Answer) -> Answer:
    """Return the answer with valid Unicode and finite numbers, for JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return value
    try:
        return dict(_clean(value))
    except RecursionError:
        return _refusal("the answer is nested too deep to be sent")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


__all__ = ["ACTIONS", "FrontendRequestHandler", "Request", "answer", "read", "sound"]
