"""Names of the ranks, with summaries of their values: a row for each name.

Ranks run the user's code, so their answers are validated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..capture.ledger import NameFacts
from ..node.protocol import rpc
from ..spec.pool_spec import PoolSpec
from ..util.text import format_size, rank_label, visible
from ..util.validate import is_number, is_whole
from .base.timeouts import TIMEOUTS

if TYPE_CHECKING:
    from .control.control_client import Control

_WITHIN, _MARGIN = TIMEOUTS.answers.names, TIMEOUTS.answers.names_margin
_MOST_NAMES = 1000
_MOST_TEXT = 120
_MOST_AXES = 32
_MOST_NUMBER = 1 << 62
# The limit of different texts in one cell of the table.
_MOST_KINDS = 3
_STATES = ("fresh", "busy", "gone")


@dataclass(frozen=True)
class RankSummary:
    """Summary of a name's value on one rank.

    Parameters
    ----------
    type : str
        Name of its type.
    shape : tuple of int, optional
        Shape of an array or a table.
    items, weights : int, optional
        Number of items of a container, of weights of a model.
    dtype, device : str
        Texts; empty if unknown.
    bytes : int, optional
        Bytes that it takes on the rank, without what it refers to.
    value : int, float, str or None
        A number, or a short text as it is written in code.
    """

    type: str
    shape: tuple[int, ...] | None = None
    items: int | None = None
    weights: int | None = None
    dtype: str = ""
    device: str = ""
    bytes: int | None = None
    value: int | float | str | None = None


@dataclass(frozen=True)
class RankAnswer:
    """Answer of one rank.

    Parameters
    ----------
    state : "fresh", "busy", "gone" or "silent"
        Whether it answered now; if it is busy, the rest is of its last answer.
    at : float, optional
        When it answered; seconds since 1970.
    names : mapping of str to RankSummary
        Its names.
    more : int
        Number of its names that are not listed.
    """

    state: str
    at: float | None = None
    names: Mapping[str, RankSummary] = field(default_factory=dict)
    more: int = 0


@dataclass(frozen=True)
class NameRow:
    """Row of one name, with summaries of the ranks' values.

    Parameters
    ----------
    name : str
        The name.
    facts : NameFacts, optional
        What the pool's ledger knows of it.
    type, value, shape, dtype, device, size : str
        Texts; they say where ranks differ.
    bytes : int, optional
        The most bytes that a rank has of it.
    magnitude : float, optional
        The number to sort by: a value, or a number of items.
    ranks : tuple of int, optional
        Ranks that have it, if others that answered do not.
    """

    name: str
    facts: NameFacts | None = None
    type: str = ""
    value: str = ""
    shape: str = ""
    dtype: str = ""
    device: str = ""
    size: str = ""
    bytes: int | None = None
    magnitude: float | None = None
    ranks: tuple[int, ...] | None = None


class RankNames:
    """Names of all ranks at one moment; made by `ask`.

    Parameters
    ----------
    answers : mapping of int to RankAnswer
        By rank.
    """

    def __init__(self, answers: Mapping[int, RankAnswer]) -> None:
        self.answers = answers

    def rows(self, facts: Sequence[NameFacts]) -> list[NameRow]:
        """Return a row for each name that the ledger or a rank has, sorted.

        Parameters
        ----------
        facts : sequence of NameFacts
            As `Ledger.facts` gives them.

        Returns
        -------
        list of NameRow
            The rows.
        """
        known = {one.name: one for one in facts}
        names = known.keys() | {name for answer in self.answers.values() for name in answer.names}
        return [self._row(name, known.get(name)) for name in sorted(names)]

    def notes(self) -> list[str]:
        """Return lines on ranks that have not answered now."""
        found = []
        busy = [rank for rank, answer in self.answers.items() if answer.state == "busy"]
        asked = [rank for rank in busy if self.answers[rank].at is not None]
        if asked:
            at = min(self.answers[rank].at or 0.0 for rank in asked)
            found.append(f"{_are(asked)} busy: shown as of {time.strftime('%H:%M:%S', time.localtime(at))}")
        if unknown := [rank for rank in busy if rank not in asked]:
            found.append(f"{_are(unknown)} busy, with no earlier listing")
        for state, what in (("gone", "had no kernel just now"), ("silent", "did not answer")):
            if ranks := [rank for rank, answer in self.answers.items() if answer.state == state]:
                found.append(f"{rank_label(ranks)} {what}")
        if more := max((answer.more for answer in self.answers.values()), default=0):
            found.append(f"{more} more names are not shown")
        return found

    def _row(self, name: str, facts: NameFacts | None) -> NameRow:
        there = {rank: answer.names[name] for rank, answer in self.answers.items() if name in answer.names}
        size = facts.size if facts is not None else None
        if not there:
            return NameRow(name, facts, size="" if size is None else format_size(size), bytes=size)
        told = [rank for rank, answer in self.answers.items() if answer.at is not None]
        sizes = {rank: one.bytes for rank, one in there.items() if one.bytes is not None}
        numbers = [one.value for one in there.values() if isinstance(one.value, (int, float))]
        counts = [_count(one) for one in there.values()]
        magnitudes = [*numbers, *(one for one in counts if one is not None)]
        return NameRow(
            name,
            facts,
            type=_merged({rank: one.type for rank, one in there.items()}),
            value=_values(there),
            shape=_merged({rank: _extent(one) for rank, one in there.items()}),
            dtype=_merged({rank: one.dtype for rank, one in there.items()}),
            device=_merged({rank: one.device for rank, one in there.items()}),
            size=_range(sizes.values(), format_size) or ("" if size is None else format_size(size)),
            bytes=max(sizes.values(), default=size),
            magnitude=max(magnitudes, default=None),
            ranks=tuple(there) if len(there) < len(told) else None,
        )


def _are(ranks: Sequence[int]) -> str:
    return f"{rank_label(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _count(one: RankSummary) -> int | None:
    if one.shape is not None:
        count = 1
        for size in one.shape:
            count *= size
        return count
    return one.items if one.items is not None else one.weights


def _extent(one: RankSummary) -> str:
    if one.shape is not None:
        return "x".join(map(str, one.shape)) or "scalar"
    if one.weights is not None:
        return f"{one.weights:,} weight{'' if one.weights == 1 else 's'}"
    if one.items is not None:
        what = "character" if one.type == "str" else "byte" if one.type in ("bytes", "bytearray") else "item"
        return f"{one.items:,} {what}{'' if one.items == 1 else 's'}"
    return ""


def _values(there: Mapping[int, RankSummary]) -> str:
    """Return the values of ranks; for different numbers, their range."""
    values = {rank: one.value for rank, one in there.items() if one.value is not None}
    numbers = [value for value in values.values() if isinstance(value, (int, float))]
    if numbers and len(numbers) == len(there) and len(set(numbers)) > 1:
        return f"{_range(numbers, _number)} on {len(there)} ranks"
    return _merged({rank: _number(value) for rank, value in values.items()}) if len(values) == len(there) else ""


def _number(value: Any) -> str:
    return format(value, ".4g") if isinstance(value, float) else str(value)


def _range(values: Iterable[Any], form: Callable[[Any], str]) -> str:
    chosen = sorted(values)
    if not chosen:
        return ""
    low, high = form(chosen[0]), form(chosen[-1])
    return low if low == high else f"{low} to {high}"


def _merged(texts: Mapping[int, str]) -> str:
    """Return one text for all ranks; if theirs differ, name the ranks of each."""
    kinds: dict[str, list[int]] = {}
    for rank, text in texts.items():
        kinds.setdefault(text, []).append(rank)
    if len(kinds) == 1:
        return next(iter(kinds))
    if len(kinds) > _MOST_KINDS:
        return f"{len(kinds)} different"
    return ", ".join(f"{text or 'none'} on {rank_label(ranks)}" for text, ranks in kinds.items())


# -- the answers -----------------------------------------------------------------------------------


async def ask(control: Control, spec: PoolSpec) -> RankNames:
    """Ask all ranks for their names, by one call per agent.

    The calls are independent: an agent that does not answer delays no other.

    Parameters
    ----------
    control : Control
        Client of the agents.
    spec : PoolSpec
        Spec of the pool.

    Returns
    -------
    RankNames
        What they have.
    """

    async def one(node: int) -> Mapping[Any, Any]:
        try:
            asking = control.ask(rpc.LIST_NAMES, [node], within=_WITHIN)
            answer = (await asyncio.wait_for(asking, _WITHIN + _MARGIN))[node]
        except Exception:
            # The other nodes' answers are shown; the agent's own log has the error.
            return {}
        return answer if isinstance(answer, Mapping) else {}

    answers = await asyncio.gather(*(one(node) for node in range(spec.nodes)))
    now, each = time.time(), spec.ranks_per_node
    return RankNames({rank: read(answers[rank // each].get(rank), now) for rank in range(spec.world_size)})


def read(told: Any, now: float) -> RankAnswer:
    """Return a rank's answer, as far as it is valid.

    Parameters
    ----------
    told : Any
        What the agent returned for the rank; see `NameListing`.
    now : float
        The time; seconds since 1970.

    Returns
    -------
    RankAnswer
        The answer.
    """
    if not isinstance(told, Mapping) or _text(told.get("state")) not in _STATES:
        return RankAnswer("silent")
    names, age, more = told.get("names"), told.get("age"), told.get("more")
    if not isinstance(names, Mapping) or not is_number(age, 0, 1e9):
        return RankAnswer(told["state"])
    found = {
        name: summary
        for name, facts in list(names.items())[:_MOST_NAMES]
        if isinstance(name, str) and name.isidentifier() and (summary := _summary(facts)) is not None
    }
    return RankAnswer(told["state"], now - age, found, more if is_whole(more, 0, _MOST_NUMBER) else 0)


def _summary(facts: Any) -> RankSummary | None:
    if not isinstance(facts, Mapping) or not _text(facts.get("type")):
        return None
    shape, value = facts.get("shape"), facts.get("value")
    good = isinstance(shape, (list, tuple)) and len(shape) <= _MOST_AXES and all(map(_is_count, shape))
    return RankSummary(
        _text(facts.get("type")),
        tuple(shape) if good and shape is not None else None,
        _whole(facts.get("items")),
        _whole(facts.get("weights")),
        _text(facts.get("dtype")),
        _text(facts.get("device")),
        _whole(facts.get("bytes")),
        value if is_number(value, -1e308, 1e308) else _text(value) or None,
    )


def _is_count(value: Any) -> bool:
    return is_whole(value, 0, _MOST_NUMBER)


def _whole(value: Any) -> int | None:
    return value if is_whole(value, 0, _MOST_NUMBER) else None


def _text(value: Any) -> str:
    """Return a short text; "" unless it can be shown."""
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        return ""
    return visible(value) if value.isprintable() else ""
