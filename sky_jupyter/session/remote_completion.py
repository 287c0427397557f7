"""Completion and inspection of nodes' names: by an idle rank, or from sources."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..node.files.file_manifest import from_wire, to_wire
from ..node.protocol import rpc
from ..pool.base.event_loop import loop
from ..pool.base.timeouts import TIMEOUTS
from ..util.validate import is_whole
from . import jedi_completion

if TYPE_CHECKING:
    from ..pool.pool import Pool

T = TypeVar("T")
_JEDI, _RANK = TIMEOUTS.answers.jedi, TIMEOUTS.answers.typing
# How long the answer to ``name?`` is waited for.
ASKED = TIMEOUTS.answers.asked_names
# How long jedi is waited for while nothing else waits: the first name of a large package takes long.
APART = TIMEOUTS.answers.jedi_apart
# The formats of a rank's answer about a name.
_SHOWN = ("text/plain", "text/html")


@dataclass(frozen=True)
class Completions:
    """Texts that may replace the text before the cursor.

    Parameters
    ----------
    start : int
        Where the text to replace begins.
    matches : sequence of pairs
        Each text, with its type as IPython names it.
    """

    start: int
    matches: Sequence[tuple[str, str]]


def complete(pool: Pool, rank: int, code: str, cursor: int, patience: float = _JEDI) -> Completions | None:
    """Return a rank's completions.

    A rank that is busy, or does not answer at once, is not waited for: jedi answers from the pool's cells.

    Parameters
    ----------
    pool : Pool
        The pool.
    rank : int
        The rank.
    code : str
        The cell, without its ``%%sky`` line.
    cursor : int
        Position of the cursor in it.
    patience : float, optional
        Seconds to wait for jedi.

    Returns
    -------
    Completions or None
        None if nothing is known.
    """
    found = _of_rank(pool, rank, _RANK, code=code, cursor=cursor)
    start, matches = (found or {}).get("start"), _sound_matches((found or {}).get("matches"))
    # The replaced text must be in the cell, and not in its first line.
    if matches and is_whole(start, 0, cursor):
        return Completions(start, matches)
    guessed = jedi_completion.complete(list(pool.sources), code, cursor, patience)
    return Completions(*guessed) if guessed is not None else None


def inspect(
    pool: Pool, rank: int, code: str, cursor: int, detail: int, patience: float | None = None
) -> dict[str, Any] | None:
    """Return what a rank knows of the name at the cursor, as a mimebundle.

    See `complete`.

    Parameters
    ----------
    pool : Pool
        The pool.
    rank : int
        The rank.
    code : str
        The cell, without its ``%%sky`` line.
    cursor : int
        Position of the cursor in it.
    detail : int
        0 as for ``name?``, 1 as for ``name??``.
    patience : float, optional
        Seconds to wait for the rank, and for jedi; by default as for Tab.

    Returns
    -------
    dict or None
        None if nothing is known.
    """
    found = _of_rank(pool, rank, patience or _RANK, code=code, cursor=cursor, detail=detail)
    if found is not None:
        return _sound_bundle(found.get("data"))
    text = jedi_completion.inspect(list(pool.sources), code, cursor, detail, patience or _JEDI)
    if text is None:
        return None
    return {"text/plain": f"{text}\n\nRank {rank} is busy: this is from the cells that ran on the pool."}


def complete_path(pool: Pool, nodes: Sequence[int], path: str) -> list[str] | None:
    """Return the nodes' paths with this beginning; None without an answer at once.

    Parameters
    ----------
    pool : Pool
        The pool.
    nodes : sequence of int
        The nodes that are asked.
    path : str
        The beginning of a path.

    Returns
    -------
    list of str or None
        The paths that any of the nodes has, sorted; a folder's ends with a slash.
    """
    if not pool.has_control:
        return None
    found = _answer(pool.control.ask(rpc.COMPLETE_PATH, nodes, path=to_wire(path)), _RANK)
    return None if found is None else sorted({from_wire(one) for one in itertools.chain(*found.values())})


def _of_rank(pool: Pool, rank: int, patience: float, **question: Any) -> dict[str, Any] | None:
    """Return a rank's answer; None if it is busy or late."""
    if not pool.has_control or any(rank in run.left for run in list(pool.supervisor.runs.values())):
        return None
    node = rank // pool.spec.ranks_per_node
    if {None, node} & (pool.control.silent | pool.control.doubted):
        return None
    found = _answer(pool.control.ask(rpc.INSPECT_NAMES, [node], rank=rank, **question), patience)
    return None if found is None else found[node]


def _sound_matches(found: Any) -> list[tuple[str, str]]:
    """Return the valid matches of a rank, which runs the user's code."""
    pairs = (
        [one for one in found if isinstance(one, (list, tuple)) and len(one) == 2]
        if isinstance(found, (list, tuple))
        else []
    )
    return [
        (text, kind) for text, kind in pairs if isinstance(text, str) and isinstance(kind, str) and text.isprintable()
    ]


def _sound_bundle(data: Any) -> dict[str, Any] | None:
    """Return the texts of a rank's mimebundle, without scripts; None if it has none."""
    found = {kind: data[kind] for kind in _SHOWN if isinstance(data.get(kind), str)} if isinstance(data, dict) else {}
    return found if "text/plain" in found else None


def _answer(asking: Coroutine[Any, Any, T], patience: float) -> T | None:
    """Return the agents' answer; None if they fail, or do not answer in time.

    A late question is not cancelled, which would cost a connection; it has a timeout of its own.
    """
    future = loop().submit(asking)
    if not futures.wait([future], timeout=patience).done:
        return None
    try:
        return future.result()
    except Exception:
        # For example a lost node, or agents of an earlier release. A user who types must not be disturbed.
        return None
