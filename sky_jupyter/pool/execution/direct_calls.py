"""Short calls that the calling thread makes itself, on a socket to local agents.

No other call may be under way. The loop's thread takes no part in such a call: waking it, and being woken by it, costs
more than the call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...node.protocol import shared_bytes
from ...node.protocol import short_call_frames as frames
from ...node.protocol.shared_bytes import AnyBytes, SharedBytes, SpareFiles
from ..base.timeouts import TIMEOUTS
from .short_call import ShortCall

if TYPE_CHECKING:
    from .short_call_channels import CallChannel, DirectLine
    from .task_context import TaskContext

_log = logging.getLogger(__name__)
_TICK = TIMEOUTS.polls.direct_calls
# The limit of bytes of arguments: more do not fit into a socket at once, unless they are shared.
_MOST = frames.MOST_ARGUMENTS if shared_bytes.IS_POSSIBLE else 1 << 16


class DirectCall(Protocol):
    """Call or cell that is made directly.

    Attributes
    ----------
    id : str
        Its id, which it keeps when it is opened.
    ranks, left : list of int, set of int
        Its ranks; the ranks that it still waits for.
    arguments : bytes or SharedBytes
        What is sent in addition to the frame.
    incarnations : dict of int to str
        The incarnations of the agents that it was sent to, by node.
    sent, opened : bool
        Whether ranks may have begun it; whether it continues the long way.
    began : float
        When it was sent.
    """

    id: str
    ranks: list[int]
    left: set[int]
    incarnations: dict[int, str]
    sent: bool
    opened: bool
    began: float

    @property
    def arguments(self) -> AnyBytes: ...

    @property
    def everywhere(self) -> bool:
        """Whether it takes the turn of cells and of calls of all ranks."""
        ...

    @property
    def stays(self) -> bool:
        """Whether only its own ranks may run it."""
        ...

    @property
    def key(self) -> bytes:
        """The key of its function; meaningless if it has none."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether it has taken longer than the short way allows."""
        ...

    def packed(
        self, known: set[bytes], ranks: list[int], *, here: bool, spare: SpareFiles | None = None
    ) -> tuple[bytes, list[SharedBytes]]:
        """Return its frames, and the shared bytes in the last of them."""
        ...

    def take(self, value: Sequence[Any], nodes: Collection[int], per_node: int) -> bool:
        """Take a rank's result; return False if not awaited or not on one of ``nodes``."""
        ...


class CallsContext(Protocol):
    """Short calls of a pool, as seen by direct ones."""

    pool: TaskContext
    spare: SpareFiles
    placing: threading.Lock

    @property
    def is_idle(self) -> bool:
        """Whether calls are possible, none is under way, and the channels are current."""
        ...

    def load_of(self, rank: int) -> int:
        """Return the number of calls that a rank runs or has queued."""
        ...

    def take_over(self, call: DirectCall) -> None:
        """Count a direct call that continues the long way."""
        ...


class DirectCalls:
    """Calls of one pool that are made directly; made by its `ShortCalls`."""

    def __init__(self, short: CallsContext) -> None:
        self._short = short
        # Replaced as a whole, by the loop.
        self._lines: dict[CallChannel, DirectLine] = {}
        # One thread at a time makes a call. ``rank`` is that call's rank; -1 for none.
        self._lock = threading.Lock()
        self.call: DirectCall | None = None
        self.rank = -1

    @property
    def is_possible(self) -> bool:
        """Whether there are agents on this machine."""
        return bool(self._lines)

    # -- the loop ----------------------------------------------------------------------------------

    def add(self, channel: CallChannel, line: DirectLine) -> None:
        """Use a line for as long as a channel to the same agents is open."""
        self._lines = {**self._lines, channel: line}

    def drop(self, channel: CallChannel) -> None:
        """Close the line that belongs to a channel."""
        lines = dict(self._lines)
        if (line := lines.pop(channel, None)) is not None:
            line.close()
        self._lines = lines

    def close(self) -> None:
        """Close all lines."""
        for channel in self._lines:
            self.drop(channel)

    # -- any thread --------------------------------------------------------------------------------

    def make(self, call: DirectCall, presses: list[object]) -> bool:
        """Make a call until it is over or opened; return False if the loop must send it.

        Parameters
        ----------
        call : ShortCall or ShortCell
            The call.
        presses : list
            Gets an item when the call must be stopped.

        Returns
        -------
        bool
            Whether it was made.
        """
        if not self._lines or len(call.arguments) > _MOST or not self._lock.acquire(blocking=False):
            return False
        self.call = call
        try:
            return self._make(call, presses)
        finally:
            self.call, self.rank = None, -1
            self._lock.release()

    def _make(self, call: DirectCall, presses: list[object]) -> bool:
        short = self._short
        pool, supervisor = short.pool, short.pool.supervisor
        with short.placing:
            if not short.is_idle:
                return False
            ranks = call.ranks if call.everywhere else self._rank_for(call)
            if ranks and not call.everywhere:
                self.rank = ranks[0]
        per_node = pool.spec.ranks_per_node
        nodes = dict.fromkeys(rank // per_node for rank in ranks)
        line = next(
            (one for one in self._lines.values() if one.is_open and nodes.keys() <= one.incarnations.keys()), None
        )
        if line is None or not ranks:
            return False
        if call.everywhere and not supervisor.take_turn_directly():
            return False
        call.began = time.perf_counter()
        is_sent = False
        try:
            is_sent = line.send(*call.packed(line.known, ranks, here=True, spare=short.spare))
        finally:
            if not is_sent:
                line.known.discard(call.key)
                if call.everywhere:
                    supervisor.leave_turn_directly()
        if not is_sent:
            return False
        call.sent, call.ranks, call.left = True, ranks, set(ranks)
        call.incarnations.update((node, line.incarnations[node]) for node in nodes)
        if not self._follow(call, line, per_node, presses):
            return False
        if call.opened:
            # A call of all ranks keeps its turn.
            short.take_over(call)
            return True
        if call.everywhere:
            supervisor.leave_turn_directly()
        return True

    def _follow(self, call: DirectCall, line: DirectLine, per_node: int, presses: list[object]) -> bool:
        """Wait until a call is over or opened; return False if the agent gave it back."""
        is_asked = False
        while call.left and not call.opened:
            self._await(call, line, per_node)
            if isinstance(call, ShortCall) and not call.sent and not call.opened:
                call.unsend()
                return False
            is_late = call.is_late
            if call.left and is_late and line.is_open and not (is_asked or presses) and self._is_behind(call):
                # If it is not given back, its rank has begun it.
                is_asked = True
                line.send(frames.pack(frames.WITHDRAW, [call.id]), [])
                continue
            call.opened = bool(call.left) and (call.opened or bool(presses) or is_late or not line.is_open)
        return True

    def _rank_for(self, call: DirectCall) -> list[int]:
        """Return a free rank for a call, as a list; empty if there is none."""
        short, busy = self._short, self._short.pool.supervisor.busy_ranks()
        for rank in call.ranks or range(short.pool.spec.world_size):
            if rank not in busy and not short.load_of(rank):
                return [rank]
        return []

    def _is_behind(self, call: DirectCall) -> bool:
        """Return whether a call may be queued at a busy rank while other ranks are free."""
        return not call.stays and self.rank in self._short.pool.supervisor.busy_ranks()

    def _await(self, call: DirectCall, line: DirectLine, per_node: int) -> None:
        """Read the next frames of a line; ignore those of other calls."""
        try:
            for kind, id, *rest in line.receive(_TICK):
                if id != call.id:
                    continue
                if kind in (frames.DONE, frames.DONE_ALL):
                    for value in rest[0] if kind == frames.DONE_ALL else [rest]:
                        call.take(value, line.incarnations, per_node)
                elif kind == frames.WITHDRAWN:
                    call.sent = False
                elif kind in (frames.OPENED, frames.REFUSED):
                    call.opened = True
                    # A refused call has not begun; but one of all ranks may have begun on others.
                    call.sent = kind == frames.OPENED or call.everywhere
                    if kind == frames.REFUSED:
                        # The agents may not know the function.
                        line.known.discard(call.key)
        except Exception as error:
            # Agents are untrusted input.
            _log.warning("a frame of agents cannot be read: %s: %s", type(error).__name__, error)
            line.close()
