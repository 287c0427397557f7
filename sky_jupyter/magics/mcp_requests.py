"""Requests of MCP clients for the kernel's main thread: run a cell, read a value.

They arrive on the shell channel, so they wait for the notebook's earlier cells. A request evaluates a call of `answer`;
see `access.kernel_requests.evaluate`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from IPython import get_ipython

from ..errors import PoolError, SkyError, SpecError
from ..pool.open_pools import pools
from ..session import cells
from ..session.pools import pull_value
from ..util.text import format_ranks, plain
from .option_table import SCRIPTS

if TYPE_CHECKING:
    from ..pool.pool import Pool

# Maximum characters of a value that are sent to a client; maximum items and bytes of a value that is fetched for that.
MOST_TEXT = 20_000
_MOST_ITEMS = 100_000
_MOST_BYTES = 8_000_000


class Answer:
    """Answer to a request, which the kernel sends as JSON.

    Parameters
    ----------
    content : mapping
        Fields of the answer.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = dict(content)

    def _repr_json_(self) -> dict[str, Any]:
        return self._content

    def __repr__(self) -> str:
        return "<an answer to an agent>"


def answer(text: str) -> Answer:
    """Execute a request, in JSON, and return its answer; never raise."""
    try:
        request = json.loads(text)
        if time.time() > request["until"]:
            raise PoolError("the notebook was busy for too long; nothing was done")
        pool = pools.need(request["pool"])
        return Answer({"status": "ok", **_ACTIONS[request["action"]](pool, request)})
    except (Exception, KeyboardInterrupt) as error:
        told = plain(str(error)) if isinstance(error, SkyError) else f"{type(error).__name__}: {plain(str(error))}"
        return Answer({"status": "error", "message": told[:MOST_TEXT]})


class _OwnText(io.StringIO):
    """Capture of text from the thread that made it; other threads' text is passed on.

    Parameters
    ----------
    stream : file
        The stream to which other threads print: standard output belongs to the whole process.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Keep a text, or pass it on."""
        if threading.get_ident() == self._thread:
            return super().write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush what was passed on."""
        if threading.get_ident() != self._thread:
            self._stream.flush()


def _run(pool: Pool, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start a cell as ``%%sky --detach`` does; return its run's id."""
    words = ["--detach", "--name", pool.spec.name]
    if request.get("ranks") is not None:
        words += ["--on", format_ranks(pool.check_ranks(request["ranks"]))]
    if request.get("timeout") is not None:
        words += ["--timeout", str(request["timeout"])]
    _must_be_free(pool)
    before = set(pool.detached)
    told = _OwnText(sys.stdout)
    with contextlib.redirect_stdout(told):
        get_ipython().run_cell_magic("sky", " ".join(words), request["code"])
    begun = set(pool.detached) - before
    if not begun:
        raise PoolError("no run was begun: the notebook itself answers such a cell")
    (run,) = begun
    return _begun(pool, run, told, "an agent has run a cell")


def _script(pool: Pool, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start a script as ``%sky torchrun --detach`` does; return its run's id."""
    verb, _, rest = str(request["line"]).partition(" ")
    if verb not in SCRIPTS:
        raise PoolError(f"{verb!r} runs no script")
    launch, rest = ("launch ", rest.removeprefix("launch ")) if verb == "accelerate" else ("", rest)
    _must_be_free(pool)
    before = set(pool.detached)
    told = _OwnText(sys.stdout)
    with contextlib.redirect_stdout(told):
        # Not through IPython, which would expand names of the notebook in braces.
        get_ipython().sky_magics.sky(f"{verb} {launch}--detach --name {shlex.quote(pool.spec.name)} {rest}")
    (run,) = set(pool.detached) - before
    return _begun(pool, run, told, "a script was run from a terminal")


def _begun(pool: Pool, run: str, told: _OwnText, what: str) -> dict[str, Any]:
    """Return the answer about a run that has begun."""
    notes = [line for line in told.getvalue().splitlines() if not line.startswith(f"run {run} ")]
    # The user sees these at the next cell on the pool.
    pool.supervisor.news += [*notes, f"{what}: `%sky logs {run}` shows what it printed"]
    return {"run": run, "notes": notes}


def _value(pool: Pool, request: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch a small value of one rank; return it as JSON, or as text."""
    name, rank = request["name"], request["rank"]
    size = next((one.size for one in pool.ledger.facts({}) if one.name == name), None)
    if size is not None and size > _MOST_BYTES:
        raise SpecError(f"{name!r} is too large for an agent: {size} bytes; run a cell that reduces it")
    _must_be_free(pool)
    cells.settle(pool)
    # The ledger does not know each value's size; the rank checks it before anything is sent.
    value = pull_value(pool, name, [rank], most=_MOST_BYTES)
    facts: dict[str, Any] = {"name": name, "rank": rank, "type": f"{type(value).__module__}.{type(value).__qualname__}"}
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple):
        facts |= {"shape": [int(length) for length in shape], "dtype": str(dtype)}
        if math.prod(facts["shape"]) <= _MOST_ITEMS and callable(to_list := getattr(value, "tolist", None)):
            value = to_list()
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        text = json.dumps(value, allow_nan=False)
        if len(text) <= MOST_TEXT:
            return {**facts, "value": value}
    text = repr(value)
    return {**facts, "repr": text[:MOST_TEXT], "cut": len(text) > MOST_TEXT}


def _must_be_free(pool: Pool) -> None:
    """Raise PoolError while something runs: waiting would block the notebook."""
    on = [run.id for run in list(pool.supervisor.runs.values()) if run.left]
    if on:
        raise PoolError(f"pool {pool.spec.name} is busy with run {', '.join(on)}; wait until it is over")


_ACTIONS: Mapping[str, Callable[[Pool, Mapping[str, Any]], dict[str, Any]]] = {
    "run": _run,
    "script": _script,
    "value": _value,
}
