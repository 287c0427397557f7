"""Relay of short calls from a notebook's channel to ranks, and of their values.

A call that prints nothing, and ends well and soon, leaves no trace here. Any other call is opened: it gets a journal,
under the name that it had from the start, and continues as a run or task does. docs/design-calls.md describes it all.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tornado.iostream import StreamClosedError

from ...util.free_locks import taken_now
from ..journal.run_record import kept_content
from ..protocol import shared_bytes
from ..protocol import short_call_frames as frames
from ..protocol.journal_events import end_of
from ..protocol.shared_bytes import AnyBytes, SharedBytes
from ..protocol.short_call_frames import Frames, FrameSocket
from .task_calls import TaskRunner, attempt_name

if TYPE_CHECKING:
    from ..journal.run_record import RunRecord
    from .context import AgentContext
    from .kernel_client import RankKernel

# Most ended calls that are kept in case the notebook's connection broke before it got the ends, and most bytes of their
# values.
_KEPT, _KEPT_BYTES = 256, 8 << 20
_READ = 1 << 18
# Seconds of pause after which cells without output get their journals, and the number of cells at once.
_QUIET, _FILED = 0.2, 20


class Tell(Protocol):
    """Function that sends frames to a notebook, and the shared bytes in them."""

    def __call__(self, data: bytes, shared: Sequence[SharedBytes] = ()) -> None: ...


class JointValues:
    """Values of a call on ranks whose agents share a process, sent together.

    If a rank returns more than a value, its agent opens the call, and all results are in journals.

    Parameters
    ----------
    tell : callable
        Sends bytes to the notebook.
    id : str
        The call's id.
    count : int
        Number of the ranks.
    """

    def __init__(self, tell: Tell, id: str, count: int) -> None:
        self._tell, self._id, self._left = tell, id, count
        self._values: list[tuple[Any, ...]] = []
        self._shared = 0

    def add(self, rank: int, elapsed: float, pickled: AnyBytes | None, *more: Any) -> None:
        """Take a rank's value; send all if it is the last or the message is full."""
        self._values.append((rank, elapsed, pickled, *more))
        self._left -= 1
        self._shared += isinstance(pickled, SharedBytes)
        if not self._left or self._shared == shared_bytes.MOST:
            self._tell(*frames.pack_shared(frames.DONE_ALL, self._id, self._values))
            self._values, self._shared = [], 0


@dataclass
class RelayedCall:
    """Call on this node's share of its ranks.

    Attributes
    ----------
    id, run : str
        The call's id, and its name on this node: for a call on one rank, the attempt's.
    ranks : list of int
        All of its ranks.
    about : dict
        More facts for the rank and the journal: title, time limit, and whether it may ask the user.
    shares : bool
        Whether the notebook can be sent shared bytes.
    left : set of int
        Ranks of this node that have not ended.
    ends : list
        Ends so far: rank, event.
    joint : JointValues
        Collects the values of its ranks; None if each is sent alone.
    room : dict
        By rank, a file for its value.
    cell : dict
        The request to its ranks, if it is a cell.
    record : RunRecord
        Its journal, once it is opened.
    content : dict
        Its function with what it reads, which may be forgotten while the call waits; empty for a cell.
    """

    id: str
    run: str
    key: bytes
    arguments: AnyBytes
    ranks: list[int]
    about: dict[str, Any]
    tell: Tell
    shares: bool
    left: set[int]
    joint: JointValues | None = None
    room: dict[int, SharedBytes] = field(default_factory=dict)
    cell: dict[str, Any] | None = None
    began: float = field(default_factory=time.time)
    ends: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    record: RunRecord | None = None
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of its ranks' values."""
        return sum(len(end.get("pickled") or end.get("value") or "") for _, end in self.ends)


class _Lane:
    """Queue of one rank's short calls, and its socket."""

    def __init__(self, rank: RankKernel) -> None:
        self.rank = rank
        self.queue: deque[tuple[int, RelayedCall]] = deque()
        self.running: RelayedCall | None = None
        # Whether this lane has the rank's turn; the task that waits for the turn.
        self.has_turn = False
        self.task: asyncio.Task[None] | None = None
        self.line: FrameSocket | None = None
        # The kernel at the other end of the socket, and the functions that it has received.
        self.generation = 0
        self.known: set[bytes] = set()


class ShortCallRelay:
    """Short calls of a node; made by the agent.

    Parameters
    ----------
    agent : AgentContext
        The agent whose ranks run them.
    tasks : TaskRunner
        Runner that takes over opened calls on one rank.
    """

    def __init__(self, agent: AgentContext, tasks: TaskRunner) -> None:
        self._agent, self._tasks = agent, tasks
        self._lanes = {number: _Lane(rank) for number, rank in agent.ranks.items()}
        self._functions: dict[bytes, dict[str, Any]] = {}
        # By run, calls that are not over; the latest ones that are.
        self._active: dict[str, RelayedCall] = {}
        self._over: OrderedDict[str, RelayedCall] = OrderedDict()
        self._over_bytes = 0
        # Cells that are over, and have no journal yet.
        self._quiet: dict[str, RelayedCall] = {}
        self._filing: asyncio.TimerHandle | None = None
        # Functions that close the connections to notebooks on this machine.
        self.closers: set[Callable[[], None]] = set()

    # -- the channel -------------------------------------------------------------------------------

    async def serve(self, comm: Any, manager: int) -> None:
        """Serve a notebook's channel until it closes; then its calls get journals."""
        stream, read, mine = comm.stream, Frames(), set[str]()

        def tell(data: bytes, shared: Sequence[SharedBytes] = ()) -> None:
            if not stream.closed():
                stream.write(data)

        tell(frames.pack(frames.OPENED, self._agent.incarnation))
        try:
            while manager == self._agent.manager:
                for frame in read.feed(await stream.read_bytes(_READ, partial=True)):
                    self.take(frame, tell, mine, shares=False)
        except StreamClosedError:
            pass
        finally:
            self.leave(mine)

    def hang_up(self) -> None:
        """Close the connections to local notebooks when the agent loses its own."""
        for close in list(self.closers):
            close()

    def leave(self, mine: set[str]) -> None:
        """Give journals to a notebook's calls after its channel has closed."""
        for run in mine & self._active.keys():
            self.open(run)
        # The notebook may not have received their ends.
        for run in mine & self._quiet.keys():
            self.open(run)

    def take(
        self, frame: list[Any], tell: Tell, mine: set[str], joint: JointValues | None = None, *, shares: bool = True
    ) -> None:
        """Handle a frame of a notebook.

        Parameters
        ----------
        frame : list
            The frame.
        tell : callable
            Sends bytes to the notebook.
        mine : set of str
            The runs of its calls, for `leave`.
        joint : JointValues, optional
            Collects the values of its ranks.
        shares : bool
            Whether the notebook is on this machine, and can be sent shared bytes.
        """
        self._agent.heard = time.monotonic()
        kind, *rest = frame
        if kind == frames.CALL:
            id, key, arguments, ranks, about = rest
            run = id if about.get("all") else attempt_name(id, self._agent.node, self._agent.incarnation)
            here = [rank for rank in ranks if rank in self._lanes]
            about = dict(about)
            room = {rank: one for rank, one in zip(ranks, about.pop("room", ()), strict=False) if rank in here}
            cell = about.pop("cell", None)
            call = RelayedCall(id, run, key, arguments, ranks, about, tell, shares, set(here), joint, room, cell)
            if len(mine) > 2 * len(self._active) + _KEPT:
                mine &= self._active.keys() | self._quiet.keys()
            mine.add(run)
            self._begin(call, here)
        elif kind == frames.FUNCTION:
            key, content = rest
            self._functions[key] = content
        elif kind == frames.FORGET:
            self._forget(rest[0])
        elif kind == frames.WITHDRAW:
            for id in rest[0]:
                known = self._active.get(attempt_name(id, self._agent.node, self._agent.incarnation))
                if known is not None and known.record is None and self._remove_waiting(known):
                    tell(frames.pack(frames.WITHDRAWN, id))

    def _remove_waiting(self, call: RelayedCall) -> bool:
        """Remove a call from its rank's queue; return False if the rank has begun it."""
        if any(lane.running is call for lane in self._lanes.values()):
            return False
        call.left.clear()
        self._active.pop(call.run, None)
        return True

    def _forget(self, key: bytes) -> None:
        self._functions.pop(key, None)
        for lane in self._lanes.values():
            self._forget_unused(lane, key)

    def _forget_unused(self, lane: _Lane, key: bytes) -> None:
        """Have a rank forget a function that is forgotten here, after its last call."""
        if key in lane.known and key not in self._functions and all(call.key != key for _, call in lane.queue):
            lane.known.discard(key)
            if lane.line is not None:
                lane.line.send(frames.pack(frames.FORGET, key))

    def _begin(self, call: RelayedCall, here: Sequence[int]) -> None:
        lanes = [self._lanes[rank] for rank in here]
        known = call.run in self._active or call.run in self._agent.runs
        known = known or call.id in self._tasks.cancelled or call.id in self._tasks.missed
        known = known or (call.cell is None and call.key not in self._functions)
        if known or not all(lane.rank.entered and self._connect(lane) for lane in lanes):
            call.tell(frames.pack(frames.REFUSED, call.id))
            return
        self._active[call.run] = call
        call.content = self._functions.get(call.key, {})
        for lane in lanes:
            lane.rank.waiting += 1
            lane.rank.note_waiting(call.run)
            lane.queue.append((lane.rank.next_number(), call))
            if not lane.has_turn and lane.task is None:
                if taken_now(lane.rank.turn):
                    lane.has_turn = True
                    self._next(lane)
                else:
                    lane.task = asyncio.ensure_future(self._await_turn(lane))

    # -- ranks -------------------------------------------------------------------------------------

    def _connect(self, lane: _Lane) -> bool:
        """Connect to a rank's kernel if necessary; return whether it can be reached."""
        rank = lane.rank
        if not rank.pid:
            # A process that the kernel forked may hold its socket open.
            return False
        if lane.generation == rank.generation and lane.line is not None and not lane.line.closed:
            return True
        if lane.line is not None:
            lane.line.close()
        lane.generation, lane.known = rank.generation, set()
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(frames.socket_of(rank.connection_file))
        except OSError:
            connected.close()
            return False
        lane.line = FrameSocket(connected, lambda frame: self._on_answer(lane, frame))
        return True

    async def _await_turn(self, lane: _Lane) -> None:
        await lane.rank.turn.acquire()
        lane.task, lane.has_turn = None, True
        self._next(lane)

    def _next(self, lane: _Lane) -> None:
        """Begin a lane's next call; release the turn if an earlier request comes first."""
        queued = lane.rank.queued
        while lane.queue and not (queued and queued[0] < lane.queue[0][0]):
            _, call = lane.queue.popleft()
            if self._start(lane, call):
                return
        lane.has_turn = False
        lane.rank.turn.release()
        if lane.queue:
            lane.task = asyncio.ensure_future(self._await_turn(lane))

    def _start(self, lane: _Lane, call: RelayedCall) -> bool:
        """Start a call on a rank; return False if it was cancelled or cannot start."""
        rank = lane.rank
        interrupted = rank.take_waiting(call.run)
        if rank.number not in call.left:
            # It was cancelled.
            rank.waiting -= 1
            return False
        if not self._connect(lane):
            if call.record is None and not call.about.get("all"):
                self._active.pop(call.run, None)
                rank.waiting -= 1
                call.tell(frames.pack(frames.REFUSED, call.id))
                return False
            self.open(call.run)
            text = rank.how_ended or "it had not been started"
            end = {"kind": "end", "status": "died", "text": text, "tail": rank.tail(), "t": time.time()}
            self._agent.on_event(rank.number, call.run, end)
            self._end(lane, call, end)
            return False
        assert lane.line is not None
        lane.running, rank.busy_with = call, call.run
        rank.begun.clear()
        rank.short_ends[call.run] = lambda event: self._on_long_end(lane, call, event)
        if call.cell is None and call.key not in lane.known:
            lane.known.add(call.key)
            lane.line.send(frames.pack(frames.FUNCTION, call.key, call.content))
        told: dict[str, Any] = {"partial": self._agent.is_partial(call.ranks)}
        told |= {what: True for what in ("asks", "together") if call.about.get(what) is True}
        if call.cell is not None:
            told["cell"] = call.cell
        if rank.number in call.room:
            told["room"] = call.room.pop(rank.number)
        lane.line.send(*frames.pack_shared(frames.CALL, call.run, call.key, call.arguments, told))
        self._forget_unused(lane, call.key)
        if interrupted:
            rank.begin_interrupt()
        return True

    def _on_answer(self, lane: _Lane, frame: list[Any]) -> None:
        """Handle the value of a call from its rank."""
        kind, run, elapsed, pickled, name, *more = frame
        call, rank = lane.running, lane.rank
        if kind != frames.DONE or call is None or run != call.run or rank.killed:
            return
        rank.short_ends.pop(run, None)
        end: dict[str, Any] = {"kind": "end", "status": "ok", "bound": True, "elapsed": elapsed}
        for told in more:
            end |= end_of({**end, **told})
        if pickled is not None:
            end |= {"type": name, "pickled": pickled}
        if call.record is None and call.joint is not None:
            call.joint.add(rank.number, elapsed, pickled, name, *more)
        elif call.record is None:
            value = pickled if call.shares or pickled is None else bytes(pickled)
            call.tell(*frames.pack_shared(frames.DONE, call.id, rank.number, elapsed, value, name, *more))
        else:
            self._agent.on_event(rank.number, run, self._event_of(end))
        self._end(lane, call, end)
        self._free(lane)

    @staticmethod
    def _event_of(end: dict[str, Any]) -> dict[str, Any]:
        """Return an end in the form of a journal's event."""
        return {"t": time.time(), **(frames.long_end(dict(end)) if "pickled" in end else end)}

    def _on_long_end(self, lane: _Lane, call: RelayedCall, end: dict[str, Any]) -> None:
        """Handle a call's end that came as a message, or with the end of its kernel.

        The journal has the end already.
        """
        self._end(lane, call, end)
        if lane.running is call:
            self._free(lane)

    def _end(self, lane: _Lane, call: RelayedCall, end: dict[str, Any]) -> None:
        lane.rank.waiting -= 1
        call.left.discard(lane.rank.number)
        if call.record is None:
            call.ends.append((lane.rank.number, end))
        if call.left:
            return
        self._active.pop(call.run, None)
        # Its ranks have the arguments and the function; those of many calls would take much memory.
        call.arguments, call.content = b"", {}
        if call.record is None and call.cell is not None:
            self._quiet[call.run] = call
            self._file_later()
        elif call.record is None:
            self._over[call.run] = call
            self._over_bytes += call.size
            while len(self._over) > _KEPT or self._over_bytes > _KEPT_BYTES:
                _, old = self._over.popitem(last=False)
                self._over_bytes -= old.size

    def _free(self, lane: _Lane) -> None:
        lane.running, lane.rank.busy_with = None, None
        lane.rank.begun.set()
        self._next(lane)

    def _file_later(self) -> None:
        if self._filing is None:
            self._filing = asyncio.get_running_loop().call_later(_QUIET, self._file)

    def _file(self) -> None:
        """Give quiet cells journals in a pause of the notebook, or when there are many.

        Other notebooks may ask for them.
        """
        self._filing = None
        if time.monotonic() - self._agent.heard > _QUIET or len(self._quiet) > _KEPT:
            self.file_quiet(_FILED)
        if self._quiet:
            self._file_later()

    def file_quiet(self, most: int | None = None) -> None:
        """Give journals to the first cells that are over without one, at most so many.

        By default, all of them get one.
        """
        for run in list(self._quiet)[:most]:
            self.open(run)

    # -- the long way ------------------------------------------------------------------------------

    def calls_of(self, rank: int) -> list[RelayedCall]:
        """Return the single-rank calls that a rank is running, or has queued."""
        lane = self._lanes[rank]
        calls = [lane.running, *(call for _, call in lane.queue)]
        return [call for call in calls if call is not None and not call.about.get("all")]

    def open(self, run: str) -> bool:
        """Give a call a journal with its ends so far; return False for an unknown call."""
        call = self._active.get(run) or self._quiet.pop(run, None) or self._over.pop(run, None)
        if call is None:
            return False
        if call.record is not None:
            return True
        if run not in self._active and call.cell is None:
            self._over_bytes -= call.size
        mine = sorted({*call.left, *(rank for rank, _ in call.ends)})
        begin: dict[str, Any] = {"kind": "begin", "ranks": call.ranks, "mine": mine, "began": call.began}
        begin |= {"shape": self._agent.config.shape, "code": call.about.get("title", "")}
        if not call.about.get("all"):
            begin["call"] = call.id
        begin |= call.about.get("begin") or {}
        if call.cell is not None:
            begin["content"] = kept_content(call.cell)
        record = call.record = self._agent.open(run, mine, begin)
        record.replied = True
        record.answered_by = self._agent.manager if call.about.get("asks") is True else None
        for rank, end in call.ends:
            record.add(rank, self._event_of(end))
        call.ends = []
        if call.cell is not None and not call.left:
            # The notebook has received the ends, or reads the journal.
            record.take()
            return True
        if call.left:
            call.tell(frames.pack(frames.OPENED, call.id))
            if not call.about.get("all"):
                (rank,) = call.left
                lane = self._lanes[rank]
                self._tasks.adopt(run, lane.rank, call.about.get("timeout"), lambda: self._withdraw(lane, call))
        self._agent.flush_soon()
        return True

    def _withdraw(self, lane: _Lane, call: RelayedCall) -> None:
        """Remove a call from its queue; interrupt it if it has begun just now."""
        if not self._remove_waiting(call):
            self._agent.background(lane.rank.signal(signal.SIGINT))
