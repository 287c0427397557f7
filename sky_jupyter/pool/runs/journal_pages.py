"""Pages of a run's events, read from the nodes' journals from any event on.

Nodes run the user's code, so their answers are validated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import PoolError
from ...node.protocol import rpc
from ...node.protocol.journal_events import Gap, checked, is_count, parse, text_of
from ...util.text import format_size

if TYPE_CHECKING:
    from ..control.control_client import Control

COUNT = 1000
MOST_COUNT = 100_000
# For all nodes together; one more event of any size may come.
_MOST_BYTES = 1 << 20
_LEAST_BYTES = 4096
_MOST_EVENT = 4 << 20
# Only the notebook's own process may unpickle these.
_PICKLED = ("value", "exception")


@dataclass(frozen=True)
class Page:
    """Events of one node's journal, from one number to another.

    Parameters
    ----------
    first, next : int
        Numbers of its first event and of the next page's.
    end : int
        Number of the node's next event.
    over : bool
        Whether the run has ended there.
    events : tuple of dict
        Events as in `node.protocol.journal_events`, each with its number ``seq``; a gap replaces events that are not
        kept.
    """

    node: int
    first: int
    next: int
    end: int
    over: bool
    events: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """The printed text, with a line for each gap."""
        return "".join(map(text_of, self.events))


async def ask(
    control: Control, run: str, rank: int | None, nodes: Collection[int] | None, start: int, count: int
) -> list[Page]:
    """Return a page from each node that answers; see `JournaledRuns.page`."""
    asked = sorted(control.there if nodes is None else control.there & set(nodes))
    most = max(_LEAST_BYTES, _MOST_BYTES // max(1, len(asked)))
    answers = await control.ask(rpc.READ_PAGE, asked, run=run, start=start, most=most) if asked else {}
    found = [read(node, answer, rank, count) for node, answer in sorted(answers.items()) if answer is not None]
    if not found:
        raise PoolError(f"no node that answers knows run {run}" if asked else "the node does not answer")
    return found


def read(node: int, answer: Mapping[str, Any], rank: int | None, count: int) -> Page:
    """Parse a node's answer for a rank; raise PoolError if it is malformed."""
    first: Any
    following: Any
    end: Any
    first, following, end = (answer.get(name) for name in ("first", "next", "end"))
    data = answer.get("data")
    numbers = is_count(first) and is_count(following) and is_count(end)
    if not numbers or not first <= following <= end or not isinstance(data, (bytes, bytearray, memoryview)):
        raise PoolError(f"node {node} sent a page that cannot be read")
    stop, at, events = min(following, first + count), first, []
    for line in bytes(data).split(b"\n"):
        event = parse(line) if line else None
        if event is None:
            continue
        number = event.get("seq")
        if not is_count(number) or number >= stop:
            break
        gap = Gap.from_json(event) if event.get("kind") == "gap" else None
        # A gap may extend past the page: the next page begins after it.
        at = max(at, number + 1 if gap is None else min(gap.next, end))
        sound = _sound(event, len(line)) if gap is None else gap.to_json()
        if sound is not None and (rank is None or gap is not None or sound.get("rank") == rank):
            events.append(sound)
    return Page(node, first, max(at, stop), end, bool(answer.get("over")), tuple(events))


def _sound(event: dict[str, Any], size: int) -> dict[str, Any] | None:
    if event.get("kind") in ("begin", "notice") and not is_count(event.get("rank")):
        text = event.get("text")
        return {"kind": "notice", "seq": event["seq"], "text": text} if isinstance(text, str) else None
    if not is_count(event.get("rank")):
        return None
    if size > _MOST_EVENT:
        what: dict[str, Any] = {name: event[name] for name in ("seq", "rank", "t") if name in event}
        return {
            **what,
            "kind": "stream",
            "name": "stderr",
            "text": f"… {format_size(size)} of output, not shown here …\n",
        }
    sound = checked(event)
    return None if sound is None else {name: value for name, value in sound.items() if name not in _PICKLED}
