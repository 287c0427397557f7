"""Short way of calls: frames to each agent, without Dask, journal and registry.

A call that is not over soon, prints, fails, or whose channel breaks is *opened*: it continues under the same id as a
run or task, the long way, which can do everything else. See docs/design-calls.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

from ...capture.blobs import Blob
from ...capture.collect import Capture, collect_value
from ...capture.ledger import Ledger
from ...capture.unchanged_functions import Unchanged
from ...node.protocol import short_call_frames as frames
from ...node.protocol.agent_process import process_of
from ...node.protocol.shared_bytes import SpareFiles
from ...util.background_tasks import BackgroundTasks
from ...util.text import format_ranks
from ..base.event_loop import loop
from ..base.events import Listener
from ..base.timeouts import TIMEOUTS
from ..runs.run import Run
from .direct_calls import DirectCall, DirectCalls
from .short_call import ShortCall, WarmFunction
from .short_call_channels import CallChannel, DirectLine, LocalCallChannel, RemoteCallChannel, connect_here
from .task_context import FunctionBundle, TaskContext

_log = logging.getLogger(__name__)
_DIAL = TIMEOUTS.liveness.dial
_REST = TIMEOUTS.links.longest_pause
# A call that takes longer than _SHORT is opened; late calls are looked for at this interval. If calls of its function
# are usually short, a busy machine is the likelier cause: then it is opened only if its rank has ended no call for
# _STALLED times as long.
_SHORT, _STALLED = TIMEOUTS.polls.short_calls, 5
# While calls are under way, the project's files are not checked again within this time.
_BURST = TIMEOUTS.polls.files
# The limit of waiting calls that are skipped, as their ranks are busy.
_MOST_HELD = 256
# Limits: functions whose files are kept on the nodes, and bytes of one function.
_WARM, _MOST_WARM = 32, 16 << 20
_READ = 1 << 18
# The limit of agents behind a link for short calls.
_MOST_TUNNELS = 64


class KnownFunction:
    """Function with the values that it reads, as they were pickled last.

    Parameters
    ----------
    blob : Blob
        The function.
    capture : Capture
        The values that it reads.
    unchanged : Unchanged or None
        Tells whether it is unchanged; None if only pickling it can tell.
    """

    def __init__(self, blob: Blob, capture: Capture, unchanged: Unchanged | None) -> None:
        self.blob, self.capture, self.unchanged = blob, capture, unchanged
        self.size = blob.size + sum(one.size for one in capture.blobs)
        # Functions with the same name are equal.
        parts: list[Any] = [blob.digest, capture.imports]
        parts += [(one.name, one.digest, sorted(one.owners)) for one in capture.bindings]
        parts += [(one.names, one.unit) for one in capture.groups]
        parts += [list(one) for one in capture.sources]
        self.name = hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


class ShortCalls:
    """Short calls of one pool; made by its `PoolTasks`.

    Parameters
    ----------
    pool : TaskContext
        The pool.
    bundle : callable
        Sends a function to the nodes.
    discard : callable
        Deletes a function there.
    wrote : callable
        Receives a run for each call that has assigned names.
    """

    def __init__(
        self,
        pool: TaskContext,
        bundle: Callable[[Blob, Capture], FunctionBundle],
        discard: Callable[[FunctionBundle], None],
        wrote: Callable[[Run], None],
    ) -> None:
        self.pool, self._bundle, self._delete, self._wrote = pool, bundle, discard, wrote
        # Functions by the name of their content; each with the settings that it was called with last.
        self._bundles: OrderedDict[str, FunctionBundle] = OrderedDict()
        self._warm: dict[tuple[str, str], WarmFunction] = {}
        # The latest functions, by their ids: the object, the ledger and its version, and the pickled function.
        self._known: OrderedDict[tuple[int, bool], tuple[Any, Ledger, int, KnownFunction]] = OrderedDict()
        # What ranks were told last in addition to a function, and its JSON text.
        self._around: tuple[dict[str, Any], str] = {}, ""
        self._shape = 0
        self._client: Any = None
        # Calls that threads have sent, and that the loop has not taken yet.
        self._queue: deque[ShortCall] = deque()
        self._is_woken = False
        # On the loop: calls that are not over, channels by node, those that are being opened, and ranks' loads.
        self._active: dict[str, ShortCall] = {}
        self._channels: dict[int, CallChannel] = {}
        # Calls that wait for a connection, by the node that is dialed.
        self._dialing: dict[int, list[ShortCall]] = {}
        self._load: dict[int, int] = {}
        # By rank: the time when it ended its latest call, and its number of opened calls; the number of all opened
        # calls.
        self._progress: dict[int, float] = {}
        self._opened: Counter[int] = Counter()
        self._all_opened = 0
        # Opened calls that are not released.
        self._long: set[DirectCall] = set()
        # Ids of calls that agents are about to be asked to forget.
        self._withdrawn: dict[CallChannel, list[str]] = {}
        # Calls that wait for a less busy rank.
        self._waiting: deque[ShortCall] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        # Processes of agents that are not on this machine; until when no connection to a node is tried again.
        self._not_here: set[str] = set()
        self._resting: dict[int, float] = {}
        self._background = BackgroundTasks()
        # Spare files for arguments and values.
        self.spare = SpareFiles()
        # Held while a call's rank is chosen, until the call counts as the rank's load. Else two calls could get one
        # rank, and would wait forever if the first waits for the second.
        self.placing = threading.Lock()
        # Ranks of calls that threads have opened, and that the loop has not counted yet.
        self._handed: list[int] = []
        self.direct = DirectCalls(self)

    # -- any thread --------------------------------------------------------------------------------

    @property
    def are_possible(self) -> bool:
        """Whether the pool allows short calls: its manager's, whole, unshared, reachable."""
        return self._would_be_possible and not self.pool.control.silent

    @property
    def _would_be_possible(self) -> bool:
        """Whether calls are possible once all agents answer."""
        pool = self.pool
        if not pool.has_control or pool.is_guest:
            return False
        control, supervisor = pool.control, pool.supervisor
        is_whole = not (control.closing or control.crowded or control.lost or control.off)
        is_alone = not (supervisor.turns.shared or supervisor.repairs.mending)
        # A tunnel to each agent costs the link's process some threads.
        is_within_reach = control.direct or len(control.addresses) <= _MOST_TUNNELS
        return is_within_reach and is_whole and control.up.is_set() and is_alone

    def known(self, function: Any, *, everywhere: bool, ledger: Ledger, namespace: dict[str, Any]) -> KnownFunction:
        """Return a function with what it reads, pickled again if it may have changed.

        Parameters
        ----------
        function : callable
            The function.
        everywhere : bool
            Whether all ranks call it: names that they were sent are not sent again.
        ledger : Ledger
            The pool's ledger.
        namespace : dict
            The notebook's namespace.

        Returns
        -------
        KnownFunction
            The function.
        """
        key = id(function), everywhere
        if (found := self._known.get(key)) is not None:
            same, of, version, known = found
            is_sure = same is function and of is ledger and version == ledger.version
            if is_sure and known.unchanged is not None and known.unchanged.holds(namespace):
                return known
        version = ledger.version
        blob, capture = collect_value(
            function, namespace, ledger if everywhere else ledger.unsent(), label=f"<sky.function {_name(function)}>"
        )
        known = KnownFunction(blob, capture, Unchanged.of(function, capture.met, namespace))
        self._known[key] = function, ledger, version, known
        if len(self._known) > 2 * _WARM:
            self._known.popitem(last=False)
        return known

    def warm(self, function: KnownFunction, more: frozenset[str], listener: Listener) -> WarmFunction | None:
        """Return a function as the nodes keep it, sent if new; None if it is not kept.

        Large ones are not kept, nor those that share objects with names of the nodes.

        Parameters
        ----------
        function : KnownFunction
            The function.
        more : frozenset of str
            Modules that its arguments need.
        listener : callable
            Receives notices.

        Returns
        -------
        WarmFunction or None
            The function.
        """
        capture, name = function.capture, function.name
        if capture.call is not None or capture.cut or function.size > _MOST_WARM:
            return None
        if self._shape != self.pool.shape:
            # Some of these nodes, or all, lack the files.
            self._shape = self.pool.shape
            self._bundles.clear()
            self._warm.clear()
        bundle = self._bundles.get(name)
        if bundle is None:
            bundle = self._bundles[name] = self._bundle(function.blob, capture)
            if len(self._bundles) > _WARM:
                self._evict()
        else:
            self._bundles.move_to_end(name)
        # Calls of a burst share a check of the project's files. Each check yields the processor to the loop's thread.
        within = _BURST if self._queue or self._active else 0.0
        around = self.pool.surround(capture.modules | more, listener, within=within)
        if around != self._around[0]:
            self._around = around, json.dumps(around, sort_keys=True) if around else ""
        text = self._around[1]
        warm = self._warm.get((name, text))
        if warm is None:
            key = hashlib.blake2b(f"{name} {bundle.run.id} {text}".encode(), digest_size=12).digest()
            files = {part: bundle.content[part] for part in ("manifest", "blob")}
            for old in [one for one in self._warm if one[0] == name]:
                self._forget(self._warm.pop(old))
            warm = self._warm[name, text] = WarmFunction(key, bundle, {**around, **files})
        return warm

    def _evict(self) -> None:
        """Forget the function that was called longest ago."""
        name, bundle = self._bundles.popitem(last=False)
        for old in [one for one in self._warm if one[0] == name]:
            self._forget(self._warm.pop(old))
        loop().loop.call_soon_threadsafe(self._discard, bundle)

    def _discard(self, bundle: FunctionBundle) -> None:
        """Delete a function's files once no call needs them."""
        if any(call.function.bundle is bundle for call in self._pending()):
            asyncio.get_running_loop().call_later(_SHORT, self._discard, bundle)
        elif not self.pool.control.closing:
            self._delete(bundle)

    def _pending(self) -> list[ShortCall]:
        """Return the calls that are not over; opened ones need their files too."""
        found: list[DirectCall | None] = [*self._active.values(), *self._waiting, *self._queue, *self._long]
        found.append(self.direct.call)
        for dialing in self._dialing.values():
            found += dialing
        return [call for call in found if isinstance(call, ShortCall)]

    def _forget(self, warm: WarmFunction) -> None:
        def forget() -> None:
            for channel in set(self._channels.values()):
                if warm.key in channel.known and channel.is_open:
                    channel.known.discard(warm.key)
                    channel.write(frames.pack(frames.FORGET, warm.key))

        loop().loop.call_soon_threadsafe(forget)

    def send(self, call: ShortCall) -> None:
        """Send a call; its `on_over` is called once it is over or opened."""
        self._queue.append(call)
        if not self._is_woken:
            self._is_woken = True
            loop().loop.call_soon_threadsafe(self._flush)

    def release(self, call: DirectCall) -> None:
        """Note that a call which was opened is over."""

        def release() -> None:
            for rank in call.left if call.sent else ():
                self._unload(rank)
            self._note_opened(call, -1)
            self._flush()

        loop().loop.call_soon_threadsafe(release)

    def drop(self, call: ShortCall) -> None:
        """Drop a call that no rank has begun; open one of all ranks, to stop it as a run.

        A call that its rank has begun ends by itself, or continues the long way like any late call.
        """

        def drop() -> None:
            if call.sent and call.everywhere:
                self._open(call)
            elif call.id in self._active:
                call.moving = False
                self._withdraw(call)
            elif not call.sent:
                self._drop(call)
                self._send_soon()

        loop().loop.call_soon_threadsafe(drop)

    def note(self, call: ShortCall) -> None:
        """Note a call that is over."""
        # Its ranks have read the arguments, and it is not retried.
        self.spare.put(call.arguments)
        call.arguments = b""
        if (run := call.run_of_writes()) is not None:
            self.pool.supervisor.turns.note_wrote(run.writes)
            self._wrote(run)
        ranks = [(one.rank, one.node, one.elapsed) for one in call.results.values()]
        self.pool.supervisor.events.note_short(call.id, call.title, ranks, everywhere=call.everywhere)

    def load_of(self, rank: int) -> int:
        """Return the number of calls that a rank runs or has queued."""
        return self._load.get(rank, 0) + self._handed.count(rank) + (rank == self.direct.rank)

    @property
    def is_idle(self) -> bool:
        """Whether calls are possible, none is under way, and the channels are current."""
        if self._active or self._queue or self._waiting or self._dialing:
            return False
        return self.are_possible and self._client is self.pool.control.client

    def take_over(self, call: DirectCall) -> None:
        """Count a direct call that continues the long way."""
        ranks = list(call.left) if call.sent else []
        self._handed.extend(ranks)

        def take_over() -> None:
            for rank in ranks:
                self._load[rank] = self._load.get(rank, 0) + 1
                self._handed.remove(rank)
            self._note_opened(call, 1)

        loop().loop.call_soon_threadsafe(take_over)

    def connect(self) -> None:
        """Connect to the pool's local agents; until then, cells take the long way."""

        def connect() -> None:
            if self.are_possible:
                self._flush()
                if not (self._channels or self._dialing or self._not_here):
                    self._dialing[0] = []
                    self._background.start(self._dial(0))

        loop().loop.call_soon_threadsafe(connect)

    def open(self, call: ShortCall) -> None:
        """Let a call continue the long way, unless it is over."""
        loop().loop.call_soon_threadsafe(self._open, call)

    # -- the loop ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what threads have queued."""
        self._is_woken = False
        if not self.pool.has_control:
            # The pool has ended: the long way reports it to the callers.
            for call in [*self._waiting, *(self._queue.popleft() for _ in range(len(self._queue)))]:
                self._open(call)
            self._waiting.clear()
            return
        if self._client is not self.pool.control.client:
            # Dask's connections are new: open new channels, too.
            self._client = self.pool.control.client
            self._not_here.clear()
            self._resting.clear()
            self.close()
        self._waiting.extend(self._queue.popleft() for _ in range(len(self._queue)))
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send the calls that wait, as long as ranks have little to do."""
        written: dict[CallChannel, list[bytes]] = {}
        # Read once, so that all decisions below agree.
        possible, busy = self.are_possible, self.pool.supervisor.busy_ranks()
        free = [rank for rank in range(self.pool.spec.world_size) if rank not in busy and not self._opened[rank]]
        held: list[ShortCall] = []
        while self._waiting:
            call = self._waiting.popleft()
            if call.opened:
                continue
            ranks = call.ranks or free
            if not possible or not ranks:
                if not self._waits_out(call, possible):
                    self._open(call)
                    continue
                held.append(call)
                if len(held) > _MOST_HELD:
                    break
                continue
            with self.placing:
                rank = min(ranks, key=lambda rank: (self.load_of(rank), rank))
                is_placed = call.everywhere or self.load_of(rank) < call.function.ahead
                if is_placed:
                    self._take(call, call.ranks or [rank], written)
            if not is_placed:
                held.append(call)
                if not call.ranks or len(held) > _MOST_HELD:
                    break
        self._waiting.extendleft(reversed(held))
        for channel, parts in written.items():
            if parts:
                channel.write(b"".join(parts))
        self._sweep_later()

    def _waits_out(self, call: ShortCall, possible: bool) -> bool:
        """Return whether a call waits here, for ranks at opened calls or silent agents.

        On the long way it would take many times as long as its function, and so would all calls behind it. One call is
        opened in any case, whose view shows the reason; so is each call that a thread waits for.
        """
        is_over_soon = possible or self._would_be_possible
        return is_over_soon and self._all_opened > 0 and call.function.ahead > 1 and not call.is_waited

    def _take(self, call: ShortCall, ranks: list[int], written: dict[CallChannel, list[bytes]]) -> None:
        """Send a call to ranks, or queue it until connected; ranks are then chosen again."""
        supervisor, per_node = self.pool.supervisor, self.pool.spec.ranks_per_node
        nodes = sorted({rank // per_node for rank in ranks})
        if lacking := [node for node in nodes if node not in self._channels or not self._channels[node].is_open]:
            for node in (places := sorted(set(map(self._dialed_for, lacking)))):
                if node not in self._dialing:
                    self._dialing[node] = []
                    self._background.start(self._dial(node))
            self._dialing[places[0]].append(call)
            return
        if call.everywhere and not supervisor.take_turn_now(call.id):
            self._open(call)
            return
        self._active[call.id] = call
        call.ranks, call.left = ranks, set(ranks)
        call.sent, call.began = True, time.perf_counter()
        for rank in call.ranks:
            self._load[rank] = self._load.get(rank, 0) + 1
        for channel in dict.fromkeys(self._channels[node] for node in nodes):
            parts = written.setdefault(channel, [])
            mine = [node for node in nodes if node in channel.incarnations]
            call.incarnations.update((node, channel.incarnations[node]) for node in mine)
            call.delay = max(call.delay, channel.delay(len(call.arguments)))
            packed, shared = call.packed(channel.known, call.ranks, here=channel.is_here)
            parts.append(packed)
            if shared:
                channel.write(b"".join(parts), shared)
                parts.clear()

    def _process_of(self, node: int) -> str:
        return process_of(self.pool.control.incarnations.get(node, ""))

    def _dialed_for(self, node: int) -> int:
        """Return the node to dial: the first of its process, if that may be local."""
        process = self._process_of(node)
        if process in self._not_here:
            return node
        return min(
            (other for other in self.pool.control.incarnations if self._process_of(other) == process), default=node
        )

    async def _dial(self, node: int) -> None:
        """Open the channel to a node, or to all of its process; send what waits for it."""
        process = self._process_of(node)
        is_reached = process not in self._not_here and await self._dial_here(node, process)
        if process in self._not_here and self._dialing[node]:
            is_reached = await self._dial_agent(node)
        per_node = self.pool.spec.ranks_per_node
        for call in self._dialing.pop(node):
            # Some agents of the process may not be connected.
            ours = [one for one in {rank // per_node for rank in call.ranks} if self._process_of(one) == process]
            is_whole = process in self._not_here or all(one in self._channels for one in ours)
            if is_reached and is_whole:
                self._queue.append(call)
            else:
                self._open(call)
        self._flush()

    async def _dial_here(self, node: int, process: str) -> bool:
        """Connect to a local process by its first node; return whether agents are there."""
        control = self.pool.control
        path = frames.agents_socket_of(self.pool.hosts[0].folder, node)
        try:
            connected, there = await connect_here(path, control.generation, _DIAL)
            channel = LocalCallChannel(connected, there, self._on_local_frame, self._on_closed)
            try:
                line = DirectLine(*await connect_here(path, control.generation, _DIAL), channel.known)
            except BaseException:
                channel.close()
                raise
        except (OSError, ValueError, TypeError, AttributeError, asyncio.TimeoutError) as error:
            _log.debug("no agents of node %d on this machine: %s: %s", node, type(error).__name__, error)
            self._not_here.add(process)
            return False
        for before in {self._channels[other] for other in there if other in self._channels}:
            # The earlier channel led to fewer agents.
            before.close()
        self._channels.update(dict.fromkeys(there, channel))
        self.direct.add(channel, line)
        return bool(there)

    async def _dial_agent(self, node: int) -> bool:
        """Open a channel to a remote node, by a link's tunnel if needed; return success."""
        from distributed.comm import connect

        if time.monotonic() < self._resting.get(node, 0.0):
            return False
        control, client = self.pool.control, self.pool.control.client
        try:
            address = control.addresses[node]
            if not control.direct:
                host = next(one for one in self.pool.hosts if node in one.nodes)
                address = await asyncio.to_thread(host.reach_agent, address)
            arguments = client.connection_args if client is not None else {}
            comm = await connect(address, timeout=_DIAL, **arguments)
            try:
                asked = time.perf_counter()
                await comm.write({"op": frames.HANDSHAKE, "manager": control.generation, "reply": False})
                read = frames.Frames()
                first = await asyncio.wait_for(comm.stream.read_bytes(_READ, partial=True), _DIAL)
                ((_, incarnation),) = read.feed(first)
                channel = RemoteCallChannel(comm, {node: str(incarnation)}, time.perf_counter() - asked)
            except BaseException:
                comm.abort()
                raise
        except Exception as error:
            # A retry takes long if nothing answers.
            self._resting[node] = time.monotonic() + _REST
            _log.debug("no channel of short calls to node %d: %s: %s", node, type(error).__name__, error)
            return False
        self._channels[node] = channel
        self._background.start(self._read(channel, comm.stream, read))
        return True

    async def _read(self, channel: CallChannel, stream: Any, read: frames.Frames) -> None:
        from tornado.iostream import StreamClosedError

        try:
            while True:
                for frame in read.feed(await stream.read_bytes(_READ, partial=True)):
                    self._on_frame(channel, frame)
        except StreamClosedError:
            pass
        except Exception as error:
            _warn(channel, error)
        finally:
            channel.close()
            self._on_closed(channel)

    def _on_local_frame(self, channel: CallChannel, frame: list[Any]) -> None:
        try:
            self._on_frame(channel, frame)
        except Exception as error:
            _warn(channel, error)
            channel.close()

    def _on_closed(self, channel: CallChannel) -> None:
        """Let calls that wait for answers of a closed channel continue the long way."""
        for node in [node for node, one in self._channels.items() if one is channel]:
            del self._channels[node]
        self.direct.drop(channel)
        per_node = self.pool.spec.ranks_per_node
        for call in list(self._active.values()):
            if any(rank // per_node in channel.incarnations for rank in call.left):
                self._open(call)

    def _on_frame(self, channel: CallChannel, frame: list[Any]) -> None:
        kind, id, *rest = frame
        call = self._active.get(id)
        if call is None or call.incarnations.keys().isdisjoint(channel.incarnations):
            return
        if kind in (frames.DONE, frames.DONE_ALL):
            for value in rest[0] if kind == frames.DONE_ALL else [rest]:
                if call.take(value, channel.incarnations, self.pool.spec.ranks_per_node):
                    self._unload(value[0])
                    self._progress[value[0]] = time.perf_counter()
            if self._waiting:
                self._send_soon()
            if not call.left:
                del self._active[id]
                if call.everywhere:
                    self.pool.supervisor.leave_turn_now(id)
                self.note(call)
                call.on_over(call)
        elif kind == frames.WITHDRAWN and not call.everywhere:
            del self._active[id]
            self._unload(call.ranks[0])
            if call.moving:
                call.unsend()
                self._waiting.append(call)
            else:
                self._drop(call)
            if self._waiting:
                self._send_soon()
        elif kind in (frames.OPENED, frames.REFUSED):
            if kind == frames.REFUSED:
                # The agent may not know the function.
                channel.known.discard(call.function.key)
                if not call.everywhere:
                    self._unload(call.ranks[0])
                    call.sent = False
            self._open(call)

    def _send_soon(self) -> None:
        """Send the waiting calls once all frames that have arrived are handled."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _unload(self, rank: int) -> None:
        self._load[rank] = max(0, self._load.get(rank, 0) - 1)

    def _open(self, call: ShortCall) -> None:
        """Give a call back to its caller, to continue the long way."""
        if call.opened or (call.ranks and not call.left):
            return
        call.opened = True
        self._active.pop(call.id, None)
        # It counts as load of its ranks until it is released.
        self._note_opened(call, 1)
        call.on_over(call)
        if self._waiting:
            # If the pool is ending, the waiting calls must be told.
            self._send_soon()

    def _note_opened(self, call: DirectCall, count: int) -> None:
        """Count an opened call of one rank, and keep the files of any."""
        # One of all ranks that was not sent begins as any run, and nobody releases it.
        if count > 0 and (call.sent or not call.everywhere):
            self._long.add(call)
        else:
            self._long.discard(call)
        if not call.everywhere:
            self._all_opened += count
            if call.sent:
                self._opened[call.ranks[0]] += count

    def _drop(self, call: ShortCall) -> None:
        """Give a call that no rank has begun back to its caller, as dropped."""
        if not call.opened:
            call.opened = call.dropped = True
            call.on_over(call)

    def _withdraw(self, call: ShortCall) -> None:
        """Ask an agent to forget a call, in one frame with all others withdrawn now."""
        channel = self._channels.get(call.ranks[0] // self.pool.spec.ranks_per_node)
        if channel is None:
            return
        if not self._withdrawn:
            asyncio.get_running_loop().call_soon(self._send_withdrawn)
        self._withdrawn.setdefault(channel, []).append(call.id)

    def _send_withdrawn(self) -> None:
        for channel, ids in self._withdrawn.items():
            if channel.is_open:
                channel.write(frames.pack(frames.WITHDRAW, ids))
        self._withdrawn.clear()

    def _sweep_later(self) -> None:
        if self._sweeper is None and (self._active or self._waiting):
            self._sweeper = asyncio.get_running_loop().call_later(_SHORT, self._sweep)

    def _sweep(self) -> None:
        """Open each rank's late call, move those behind it, and send what waits."""
        self._sweeper = None
        behind: dict[int, list[ShortCall]] = {}
        for call in list(self._active.values()):
            if not call.everywhere:
                behind.setdefault(call.ranks[0], []).append(call)
            elif call.is_late:
                self._open(call)
        busy = self.pool.supervisor.busy_ranks()
        for rank, (first, *others) in behind.items():
            if self._is_stuck(rank, first):
                # A call that stays although it was asked to move has begun.
                if not (self._opened[rank] or rank in busy) or not self._move(first):
                    self._open(first)
                for call in others:
                    self._move(call)
        if self._waiting:
            self._send_soon()
        self._sweep_later()

    def _is_stuck(self, rank: int, call: ShortCall) -> bool:
        """Return whether a rank runs a call for long, and has ended none meanwhile."""
        patience = _SHORT * (_STALLED if call.function.ahead > 1 else 1)
        since = max(call.began, self._progress.get(rank, 0.0))
        return call.is_late and since < time.perf_counter() - patience

    def _move(self, call: ShortCall) -> bool:
        """Ask to move a call to another rank; return False if that was asked already.

        A call that is for its rank stays.
        """
        if call.moving or call.stays:
            return False
        call.moving = True
        self._withdraw(call)
        return True

    def close(self) -> None:
        """Close the channels."""
        self.direct.close()
        self.spare = SpareFiles()
        for channel in set(self._channels.values()):
            channel.close()


def _warn(channel: CallChannel, error: Exception) -> None:
    # Agents are untrusted input.
    text = "a frame of nodes %s cannot be read: %s: %s"
    _log.warning(text, format_ranks(sorted(channel.incarnations)), type(error).__name__, error)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))
