"""Call on the short way, and the function that it calls."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...node.protocol import shared_bytes
from ...node.protocol import short_call_frames as frames
from ...node.protocol.journal_events import checked
from ...node.protocol.shared_bytes import AnyBytes, SharedBytes, SpareFiles
from ..base.events import ignore
from ..base.timeouts import TIMEOUTS
from ..runs.result import CellResult, Outcome
from ..runs.run import Run, new_id
from .task_context import FunctionBundle

_SHORT = TIMEOUTS.polls.short_calls
# A rank is sent as many calls ahead as take _AHEAD seconds together, at most _MOST_AHEAD; calls longer than _TINY, one
# by one.
_AHEAD, _MOST_AHEAD, _TINY = 0.02, 16, 0.01


@dataclass(frozen=True)
class ShortResult:
    """Value of a short call on one rank.

    Parameters
    ----------
    rank, node : int
        The rank and its node.
    elapsed : float
        Seconds that it took there.
    pickled : bytes or SharedBytes
        Pickle of the value.
    type : str
        The name of the value's type.
    writes : dict
        The names that the call has assigned there, in the fields of a journal's end event.
    """

    rank: int
    node: int
    elapsed: float
    pickled: AnyBytes
    type: str
    writes: Mapping[str, Any] = field(default_factory=dict)

    def value(self) -> Any:
        """Return the value; a `RemoteRepr` if it cannot be rebuilt here."""
        try:
            return shared_bytes.loads(self.pickled)
        except Exception:
            return CellResult([Outcome(self.rank, self.node, "ok", self.end())], self.elapsed).head

    def end(self) -> dict[str, Any]:
        """Return the end event that a run would have."""
        value = base64.b64encode(bytes(self.pickled)).decode()
        return {**self.bare_end(), "type": self.type, "value": value}

    def bare_end(self) -> dict[str, Any]:
        """Return that event without the value."""
        about = {"kind": "end", "status": "ok", "bound": True, "rank": self.rank, "elapsed": self.elapsed}
        return checked({**self.writes, **about}) or about


class ShortCall:
    """Call on the short way; sent by `ShortCalls.send`.

    Parameters
    ----------
    ranks : list of int
        Its ranks; empty for the least busy one.
    function : WarmFunction
        Its function.
    arguments : bytes or SharedBytes
        Pickle of a list with its arguments.
    about : dict
        Further fields for agents: ``"title"`` and ``"timeout"``; ``"all"`` if it runs on all ranks, ``"rank"`` if it is
        for one rank, ``"asks"`` if the user can be asked, ``"together"`` if it makes several calls.
    count : int
        How many calls of the function it makes.

    Attributes
    ----------
    id : str
        Its id, which it keeps when it is opened.
    results : dict
        Its results, by rank.
    opened : bool
        Whether it continues the long way.
    sent : bool
        Whether ranks may have begun it.
    dropped : bool
        Whether it was given up before it was sent.
    moving : bool
        Whether it is being moved to another rank, if its own has not begun it.
    incarnations : dict
        The incarnations of the agents that it was sent to, by node.
    delay : float
        Seconds that its arguments and its value may travel.
    everywhere : bool
        Whether it runs on all ranks.
    """

    def __init__(
        self, ranks: list[int], function: WarmFunction, arguments: AnyBytes, about: dict[str, Any], count: int = 1
    ) -> None:
        self.id = new_id()
        self.ranks, self.function, self.arguments, self.about = ranks, function, arguments, about
        self.everywhere = about.get("all") is True
        self.count = count
        self.left = set(ranks)
        self.results: dict[int, ShortResult] = {}
        self.opened = self.sent = self.dropped = self.moving = False
        self.incarnations: dict[int, str] = {}
        self.delay = 0.0
        self.began = time.perf_counter()
        # Not an Event: an interrupt inside of one may leave it locked.
        self.lock = threading.Lock()
        self.lock.acquire()
        # Called on the loop when it is over, or opened; by default it wakes the thread that waits for the lock.
        self.on_over: Callable[[ShortCall], None] = _wake

    def values(self) -> list[Any]:
        """Return the values of a call that is over, in the order of ranks."""
        return [one.value() for _, one in sorted(self.results.items())]

    def take_values(self, spare: SpareFiles) -> list[Any]:
        """Return a finished call's values, once; give their files to ``spare``."""
        values = self.values()
        for one in self.results.values():
            spare.put(one.pickled)
        return values

    def run_of_writes(self) -> Run | None:
        """Return a run with the names that this finished call assigned; None if none."""
        if not any(one.writes for one in self.results.values()):
            return None
        run = Run(self.id, {one.rank: one.node for one in self.results.values()}, ignore)
        run.capture = self.function.bundle.capture
        for one in self.results.values():
            run.take_end(one.rank, one.bare_end())
        return run

    def unsend(self) -> None:
        """Note that its rank has not begun it, and will not."""
        self.sent = self.moving = False
        self.ranks, self.left = [], set()
        self.incarnations.clear()

    def forget(self) -> None:
        """Forget arguments and values once they are taken, as futures keep the call."""
        self.arguments = b""
        self.results.clear()

    def packed(
        self, known: set[bytes], ranks: list[int], *, here: bool, spare: SpareFiles | None = None
    ) -> tuple[bytes, list[SharedBytes]]:
        """Return the frames for these ranks, and the shared bytes in the last of them.

        Parameters
        ----------
        known : set of bytes
            The functions that the other end of the connection has.
        ranks : list of int
            The ranks.
        here : bool
            Whether the other end is on this machine.
        spare : SpareFiles, optional
            Provides files to which the first ranks may write large values.

        Returns
        -------
        bytes and list of SharedBytes
            The frames, and the shared bytes.
        """
        warm, before = self.function, b""
        if warm.key not in known:
            known.add(warm.key)
            before = frames.pack(frames.FUNCTION, warm.key, warm.content)
        arguments = self.arguments if here else bytes(self.arguments)
        room = spare.take(len(ranks)) if spare is not None and warm.has_large_values else []
        about = {**self.about, "room": room} if room else self.about
        packed, shared = frames.pack_shared(frames.CALL, self.id, warm.key, arguments, ranks, about)
        return before + packed, shared

    def take(self, value: Sequence[Any], nodes: Collection[int], per_node: int) -> bool:
        """Take a rank's result; return False if not awaited or not on one of ``nodes``."""
        rank, elapsed, pickled, name, *writes = value
        if rank not in self.left or rank // per_node not in nodes:
            return False
        self.left.discard(rank)
        own = shared_bytes.own(pickled)
        self.results[rank] = ShortResult(rank, rank // per_node, float(elapsed), own, str(name), *map(dict, writes))
        self.function.note(float(elapsed))
        self.function.has_large_values = isinstance(own, SharedBytes)
        return True

    @property
    def key(self) -> bytes:
        """The key of its function."""
        return self.function.key

    @property
    def title(self) -> str:
        """The name of its function."""
        return str(self.about["title"])

    @property
    def together(self) -> bool:
        """Whether its value is a list, of several calls."""
        return "together" in self.about

    @property
    def stays(self) -> bool:
        """Whether only its own ranks may run it."""
        return self.everywhere or "rank" in self.about

    @property
    def is_waited(self) -> bool:
        """Whether a thread waits for only this call."""
        return self.on_over is _wake

    @property
    def is_late(self) -> bool:
        """Whether it has taken longer than the short way allows."""
        return time.perf_counter() - self.began > _SHORT + self.delay


def _wake(call: ShortCall) -> None:
    call.lock.release()


class WarmFunction:
    """Function whose files the nodes keep, with the request content for its ranks."""

    def __init__(self, key: bytes, bundle: FunctionBundle, content: dict[str, Any]) -> None:
        self.key, self.bundle, self.content = key, bundle, content
        # A running average of a call's seconds; None before one has ended.
        self.seconds: float | None = None
        # Whether the latest value was shared.
        self.has_large_values = False

    @property
    def ahead(self) -> int:
        """The limit of its calls that a rank is sent at a time."""
        if self.seconds is None or self.seconds > _TINY:
            return 1
        return min(_MOST_AHEAD, int(_AHEAD / max(self.seconds, 1e-4)))

    def note(self, seconds: float) -> None:
        """Note how long a call has taken."""
        self.seconds = seconds if self.seconds is None else (3 * self.seconds + seconds) / 4
