"""Dask client of the control plane: calls of agents, and which of them answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import NodeLost, PoolError
from ...node.protocol import rpc
from ...node.protocol.host_config import member_name
from ...node.protocol.rpc import PING_MANY, REPLACED, AgentCall
from ...util.background_tasks import BackgroundTasks
from ...util.text import format_ranks
from ..base.event_loop import NoAnswer
from ..base.timeouts import TIMEOUTS
from .failure_detector import DOUBT, LATE_DOUBT, SILENCE, FailureDetector, NodeWatcher

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
_POLL = TIMEOUTS.polls.control
# Above this number of agents, the scheduler broadcasts the calls.
_DIRECT = 16
# More nodes than this are pinged by the scheduler; more processes are asked along a tree of agents.
_MANY = 64
# While nodes join, the pause between two polls of the members, as a multiple of a poll's duration.
_PART = 5
_BEAT = TIMEOUTS.liveness.beat
_DIAL_TIMEOUT = TIMEOUTS.liveness.dial
# The same for the first connection; the interval at which a broken pool is noticed meanwhile.
_FIRST_DIAL, _WATCH = TIMEOUTS.liveness.first_dial, TIMEOUTS.polls.broken
# The delay after a broken connection until its cause is known.
_LAST_WORDS = TIMEOUTS.liveness.last_words


class _NotJointly(Exception):
    """Error of a joint call of agents of an earlier version."""


class Watcher(NodeWatcher, Protocol):
    """Receiver of events on nodes and connections; called on the loop."""

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Handle events of a run that an agent forwards."""

    def on_replaced(self) -> None:
        """Handle the takeover of the pool by another manager."""


class Control:
    """Dask client of the control plane, used on the loop only.

    The pool makes it when its scheduler listens, and closes it.

    Parameters
    ----------
    watcher : Watcher
        Receives membership and event callbacks.
    direct : bool
        Whether agents can be reached without the scheduler, which saves two hops per cell.
    generation : int
        The manager's fencing token; agents refuse a lower one than they have seen.
    shape : int
        How often the pool was resized: agents of an earlier shape are ignored.
    guest : str
        The id of a guest, which has no fencing token; "" for the manager.
    """

    def __init__(self, watcher: Watcher, *, direct: bool, generation: int, shape: int = 0, guest: str = "") -> None:
        self.direct = direct
        self.guest = guest
        self._caller: dict[str, Any] = {"guest": guest} if guest else {"manager": generation}
        self.shape = shape
        # Whether the scheduler has agents of other shapes, and whether some are about to join.
        self.crowded = self.joining = False
        self.watcher = watcher
        self.generation = generation
        self.addresses: dict[int, str] = {}
        self.detector = FailureDetector(watcher, self._look_soon)
        # The detector's own collections, which callers of agents read.
        self.incarnations, self.silent, self.lost = self.detector.incarnations, self.detector.silent, self.detector.lost
        self.doubted, self.off, self.whys = self.detector.doubted, self.detector.off, self.detector.whys
        self.client: Client | None = None
        self.closing = False
        # Called as it closes.
        self.closers: list[Callable[[], None]] = []
        # The suffixes that name nodes' machines in messages.
        self.names: dict[int, str] = {}
        # The message of calls after `close`.
        self.why_closed = "the pool's connection has been closed"
        # When an agent was last sent a ping that it answered: its lease began then or later.
        self.heard = time.monotonic()
        self.up = asyncio.Event()
        self._comm: Any = None
        self._nodes = 0
        self._names: dict[str, int] = {}
        # By address, a future that is done once the scheduler has no agent there any more.
        self._gone: dict[str, asyncio.Future[None]] = {}
        # Pings without an answer yet, by node and address.
        self._asked: dict[tuple[int, str], asyncio.Task[str | None]] = {}
        # Nodes that the scheduler is being asked to drop.
        self._dropping: set[int] = set()
        self._tasks = BackgroundTasks()
        self._kick = asyncio.Event()
        # How long the last ping of many nodes took.
        self._many_took = 0.0
        # Whether the members may have changed since the last poll: the scheduler tells when one comes or goes.
        self._stale = True
        # Whether agents that share a process are asked by one request; those of earlier versions answer None to it.
        self._answers_jointly = True
        # Nodes that took no part in a joint call: they are pinged themselves, since another agent may be there.
        self._unsure: set[int] = set()
        # Addresses that an agent did not reach to forward a call: they are asked directly from then on.
        self._unreached: set[str] = set()

    # -- connecting --------------------------------------------------------------------------------

    async def connect(self, address: str, folder: Path, nodes: int, timeout: float, broken: Callable[[], str]) -> None:
        """Connect to the scheduler and wait for all agents.

        Raises NodeLost if ``broken()`` returns a reason, or agents are missing after ``timeout``.
        """
        self._address, self._folder, self._nodes = address, folder, nodes
        self._names = {member_name(node, self.shape): node for node in range(nodes)}
        try:
            await self._meet_all(timeout, broken)
        except OSError:
            # The event of a process that has just ended is about to arrive.
            await asyncio.sleep(_LAST_WORDS)
            raise NodeLost(
                broken() or f"the pool's scheduler, at {address.rpartition('/')[2]}, does not answer"
            ) from None
        self._tasks.start(self._beat())

    async def _meet_all(self, timeout: float, broken: Callable[[], str]) -> None:
        nodes, end = self._nodes, time.monotonic() + timeout
        await self._dial_unless(broken, min(timeout, _FIRST_DIAL))
        while len(self.addresses) < nodes:
            began = time.monotonic()
            await self._learn()
            took = time.monotonic() - began
            if why := broken():
                raise NodeLost(why)
            absent = sorted(set(range(nodes)) - set(self.addresses))
            if absent and time.monotonic() > end:
                raise NodeLost(f"the agents of nodes {format_ranks(absent)} did not start within {timeout:.0f} s")
            # The scheduler lists all members at each poll, and must admit others in between.
            await asyncio.sleep(max(_POLL, _PART * took))
        self.up.set()
        incarnations = await self.ask(rpc.PING)
        self.detector.begin(incarnations, {node: (self.client, place) for node, place in self.addresses.items()})

    async def _dial_unless(self, broken: Callable[[], str], timeout: float) -> None:
        """Connect for the first time; stop if ``broken()`` has a reason."""
        dialing = asyncio.ensure_future(self._dial(timeout))
        try:
            while not dialing.done():
                await asyncio.wait([dialing], timeout=_WATCH)
                if why := broken():
                    raise NodeLost(why)
            dialing.result()
        finally:
            dialing.cancel()

    def move(self, address: str) -> None:
        """Set the scheduler's new address."""
        self._address = address
        self._kick.set()

    async def _dial(self, timeout: float) -> None:
        """Replace the Dask client by a new one."""
        import dask.config
        from distributed import Client

        from ...node.dask import scheduler
        from ...node.dask import settings as dask_settings

        scheduler.patch_batched_send()
        await self._hang_up()
        settings = {**dask_settings.defaults(), "distributed.comm.timeouts.connect": f"{timeout}s"}
        settings |= scheduler.DASK_SETTINGS
        # `_beat` polls the members; Dask's own poll would log its failures in the notebook.
        settings["distributed.client.scheduler-info-interval"] = "1000h"
        with _SILENCE.kept(dask.config.set(settings)):
            client = Client(
                self._address,
                security=scheduler.security(self._folder),
                asynchronous=True,
                set_as_default=False,
                name="sky",
                timeout=timeout,
            )
            try:
                self.client = await client
            except BaseException:
                await _end(client)
                raise
        for name in ("distributed.client", "distributed.core"):
            logging.getLogger(name).addFilter(_is_worth_telling)
        self._comm = self.client.scheduler_comm.comm
        self._stale = True
        # Large messages are bytes, which are fast to read; offloading would measure every message.
        self.client.rpc.allow_offload = False
        # For later connections: Dask would read the user's setting.
        self.client.rpc.timeout = settings["distributed"]["comm"]["timeouts"]["connect"]
        self.client.subscribe_topic("sky", lambda event: self.watcher.on_batch(event[1]))
        self.client.subscribe_topic("all", self._on_member)

    async def _hang_up(self) -> None:
        """Close the client; mute Dask, whose scheduler may be gone."""
        client, self.client = self.client, None
        if client is not None:
            with _SILENCE.kept():
                await _end(client)

    async def close(self) -> None:
        """Disconnect; calls fail from now on."""
        self.closing = self.detector.closed = True
        self.up.set()
        for close in self.closers:
            close()
        for task in list(self._tasks):
            task.cancel()
        await self._hang_up()

    def _on_member(self, event: Any) -> None:
        message = event[1]
        if isinstance(message, dict) and message.get("action") in ("remove-worker", "add-worker"):
            self._stale = True
            self._kick.set()

    # -- membership --------------------------------------------------------------------------------

    @property
    def _connected(self) -> Client:
        """The client. Raises OSError if it was closed meanwhile, as by a failed start."""
        if self.client is None:
            raise ConnectionAbortedError(self.why_closed)
        return self.client

    async def _learn(self) -> None:
        self._stale = False
        workers = (await self._connected.scheduler.identity(n_workers=-1))["workers"]
        named = {str(facts["name"]): address for address, facts in workers.items()}
        self._have({node: named[name] for name, node in self._names.items() if name in named})
        self.crowded = self.joining or len(named) > len(self.addresses)

    def _have(self, addresses: dict[int, str]) -> None:
        """Note where the agents are; break off calls of those that are gone.

        Dask would try to connect to them until its timeout is over.
        """
        self.addresses = addresses
        for address in self._gone.keys() - set(addresses.values()):
            self._gone.pop(address).set_result(None)
        for address in set(addresses.values()) - self._gone.keys():
            self._gone[address] = asyncio.get_running_loop().create_future()

    async def _beat(self) -> None:
        """Poll the members regularly and on changes; this renews leases."""
        while not self.closing:
            began = time.monotonic()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._kick.wait(), _BEAT)
            self._kick.clear()
            if time.monotonic() - began > 2 * _BEAT:
                # This process was suspended: let pending messages be read first.
                await asyncio.sleep(_POLL)
            try:
                await self._look()
            except PoolError:
                self.watcher.on_replaced()
                return

    async def _look(self) -> None:
        began = time.monotonic()
        reached = await self._reach()
        self.detector.hear(None) if reached else self.detector.doubt(None)
        self.detector.note_scheduler(reached, began)
        if not reached:
            return
        began = time.monotonic()
        answers = await self._ping()
        if answers:
            self.heard = began
        self.detector.note({node: node in answers for node in range(self._nodes) if node in self.addresses}, began)
        for node in set(range(self._nodes)) - self.addresses.keys():
            if self.detector.miss(node, began):
                self._tasks.start(self._look_again())
        for node, incarnation in answers.items():
            if node in self.addresses and node not in self._dropping:
                self._unsure.discard(node)
                self.detector.meet(node, incarnation, (self.client, self.addresses[node]))

    def drop(self, node: int) -> None:
        """Make the scheduler send a node's calls to others, as its machine is off.

        If the machine is on after all, its agent loses its connection, registers again, and is met then. Calls of it
        before that are broken off.
        """
        if self.client is not None and node in self.addresses:
            self._dropping.add(node)
            self._tasks.start(self._drop(node))

    async def _drop(self, node: int) -> None:
        try:
            if await self.unregister(node):
                self._have({other: address for other, address in self.addresses.items() if other != node})
        finally:
            self._dropping.discard(node)

    async def unregister(self, node: int) -> bool:
        """Remove an agent from the scheduler, to free its name; return success.

        The scheduler notices the end of an agent by itself, but later.
        """
        if self.client is None or node not in self.addresses:
            return False
        try:
            await self.client.scheduler.unregister(address=self.addresses[node], stimulus_id=f"sky-off-{node}")
        except Exception as error:
            logging.getLogger(__name__).debug("node %s could not be removed: %s", node, error)
            return False
        return True

    async def _reach(self) -> bool:
        """Return whether the scheduler answers; reconnect a broken client."""
        try:
            with self.detector.doubting(None):
                broken = self.client is None or self.client.status != "running"
                if broken or self.client.scheduler_comm.comm is not self._comm:  # type: ignore[union-attr]
                    self.up.clear()
                    await asyncio.wait_for(self._dial(_DIAL_TIMEOUT), _DIAL_TIMEOUT + 1)
                if self._stale or self.joining or len(self.addresses) < self._nodes or self.crowded:
                    await asyncio.wait_for(self._learn(), SILENCE)
                elif len(self.addresses) <= _MANY:
                    # Only check that it answers; with many agents, the pings show that.
                    await asyncio.wait_for(self._connected.scheduler.identity(n_workers=0), SILENCE)
        except (OSError, asyncio.TimeoutError, ValueError):
            # The next poll makes a new client.
            self._comm = None
            return False
        self.up.set()
        return True

    async def _ping(self) -> dict[int, str]:
        """Return the incarnations of the agents that answer.

        Agents that are known to be silent are pinged, but not waited for. Of agents that share a process, one is
        pinged, and answers for all.
        """
        many = len(self.addresses) > _MANY
        beside = self._beside()

        async def one(node: int) -> str | None:
            try:
                with self.detector.doubting(node, beside.get(node, [])):
                    answer: str = (await asyncio.wait_for(self._ask([node], rpc.PING), SILENCE))[node]
            except (OSError, asyncio.TimeoutError, NodeLost):
                self.detector.doubt(node, beside.get(node, []))
                return None
            self.detector.hear(node)
            return answer

        early = await self._ping_many(beside) if many else {}
        late = [place for place in self.addresses.items() if place not in self._asked and place[0] not in early]
        late = [place for place in late if place[0] in beside]
        if many:
            # If many are late, they or the scheduler are busy: pinging each would add to their load.
            late = [place for place in late if place[0] not in self.silent]
            late = late if early and len(late) <= _DIRECT else []
        for place in late:
            self._asked[place] = task = self._tasks.start(one(place[0]))
            # Its error is raised below, if it is awaited there.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        awaited = [task for (node, _), task in self._asked.items() if node not in self.silent]
        if awaited:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_EXCEPTION)
        done = {place: self._asked.pop(place) for place, task in list(self._asked.items()) if task.done()}
        there = {node: task for (node, address), task in done.items() if self.addresses.get(node) == address}
        answers = early | {node: answer for node, task in there.items() if (answer := task.result()) is not None}
        for node in [node for node, answer in answers.items() if answer == self.incarnations.get(node)]:
            for other in beside.get(node, []):
                answers[other] = self.incarnations[other]
                self.detector.hear(other)
        return answers

    def _beside(self) -> dict[int, list[int]]:
        """Return the nodes to ping, each with the nodes that it answers for.

        A lost node is pinged itself, as it will have another agent soon; so is a node that may have another one
        already.
        """
        apart = self.lost | self._unsure
        groups = self.detector.by_process(self.addresses.keys() - apart)
        return {
            **{first: rest for first, *rest in groups},
            **{node: [] for node in self.addresses if node in apart},
        }

    async def _ping_many(self, nodes: Iterable[int]) -> dict[int, str]:
        """Ping nodes through the scheduler, late ones twice; return the answers.

        If there are very many, the scheduler makes some agents ping others.
        """
        places = {node: self.addresses[node] for node in nodes}
        left = {address: node for node, address in places.items() if (node, address) not in self._asked}
        found: dict[int, str] = {}
        for patience in (min(max(DOUBT, 2 * self._many_took), LATE_DOUBT), LATE_DOUBT):
            began = time.monotonic()
            try:
                # The scheduler itself pings late nodes.
                branches = self._branches(list(left)) if not found and len(left) > _MANY else {}
                request = {"workers": list(branches or left), "branches": branches, "patience": patience}
                ask = getattr(self._connected.scheduler, PING_MANY)(**request, **self._caller)
                with _typed():
                    answers = await asyncio.wait_for(ask, patience + SILENCE)
            except (OSError, asyncio.TimeoutError):
                # The next poll first checks whether the scheduler answers.
                self._stale = True
                break
            self._many_took = time.monotonic() - began
            for address, answer in answers.items():
                found[node := left.pop(address)] = answer
                self.detector.hear(node)
            left = {address: node for address, node in left.items() if node not in self.silent}
            if len(left) <= _DIRECT:
                break
        return found

    def _look_soon(self) -> None:
        self._kick.set()

    async def _look_again(self) -> None:
        await asyncio.sleep(0.1)
        self._kick.set()

    @property
    def there(self) -> set[int]:
        """The nodes that are believed to answer."""
        if None in self.silent:
            return set()
        return {node for node in self.addresses if node not in self.silent | self.lost | self.off}

    # -- calls -------------------------------------------------------------------------------------

    async def ask(self, call: AgentCall, nodes: Iterable[int] | None = None, **arguments: Any) -> dict[int, Any]:
        """Call agents in one broadcast; return their answers by node.

        An idempotent call is retried after its connection broke, once the pool is back.

        Parameters
        ----------
        call : AgentCall
            The call, of the `rpc` table.
        nodes : iterable of int, optional
            Nodes to call, by default all.
        **arguments
            The call's arguments.

        Returns
        -------
        dict
            Node -> answer.

        Raises
        ------
        NodeLost
            If a node has no agent any more.
        NoAnswer
            If the call's timeout is over.
        PoolError
            If another manager has taken the pool over.
        Exception
            The error of an agent's handler.
        """
        call.check(arguments)
        asking = self._ask_until_answered(call, nodes, arguments)
        if call.timeout is None:
            return await asking
        limit = call.timeout * TIMEOUTS.scale
        try:
            return await asyncio.wait_for(asking, limit)
        except asyncio.TimeoutError:
            raise NoAnswer(f"the pool has not answered in {limit:g} s") from None

    async def _ask_until_answered(
        self, call: AgentCall, nodes: Iterable[int] | None, arguments: dict[str, Any]
    ) -> dict[int, Any]:
        met = dict(self.incarnations) if call.same_agents else {}
        while True:
            await self.up.wait()
            chosen = list(range(self._nodes)) if nodes is None else list(nodes)
            if self.closing:
                raise NodeLost(self.why_closed)
            if others := [node for node in chosen if node in met and met[node] != self.incarnations.get(node)]:
                # A request to the earlier agent is lost with it.
                raise NodeLost(f"node {others[0]}{self.names.get(others[0], '')} is lost: its agent ended")
            try:
                return await self._ask(chosen, call, **arguments)
            except OSError:
                if not call.idempotent or self.closing:
                    raise await self._broke(chosen) from None
            except NodeLost:
                # It may only have lost its connection, and reconnect.
                if not call.idempotent or self.closing or self.lost & set(chosen):
                    raise
            self._kick.set()
            await asyncio.sleep(0.05)

    async def _ask(self, nodes: list[int], call: AgentCall, **arguments: Any) -> dict[int, Any]:
        if self.client is None:
            raise NodeLost("the pool is not connected")
        absent = [node for node in nodes if node not in self.addresses or (node in self.off and call is not rpc.PING)]
        if absent:
            raise self.is_lost(absent[0])
        arguments |= self._caller
        nodes = list(dict.fromkeys(nodes))
        if call.joint is not None and self._answers_jointly and self.incarnations.keys() >= set(nodes):
            with contextlib.suppress(_NotJointly):
                return await self._ask_jointly(self.detector.by_process(nodes), call.joint, arguments)
            self._answers_jointly = False
        answers = await self._send([self.addresses[node] for node in nodes], call, arguments)
        return dict(zip(nodes, answers, strict=True))

    async def _ask_jointly(
        self, processes: list[list[int]], call: AgentCall, arguments: dict[str, Any]
    ) -> dict[int, Any]:
        """Call the agents of each process by one request, which the first of them takes.

        If there are many processes, the agents of some forward it to the others.
        """
        incarnations = {node: self.incarnations[node] for nodes in processes for node in nodes}
        arguments = {**arguments, "incarnations": incarnations}
        places = [self.addresses[nodes[0]] for nodes in processes]
        if len(places) > _MANY and "branches" in call.optional:
            arguments["branches"] = branches = self._branches(places)
            places = list(branches)
        found: dict[int, Any] = {}
        for answer in await self._send(places, call, arguments):
            if answer is None:
                raise _NotJointly
            found.update(answer)
        if absent := incarnations.keys() - found.keys():
            # As if its address did not answer: the agent is reconnecting, or another one is about to be met.
            self._unsure.update(absent)
            self._unreached.update(self.addresses[node] for node in absent if node in self.addresses)
            raise ConnectionAbortedError(f"the agent of node {min(absent)} is not there any more")
        return found

    def _branches(self, places: list[str]) -> dict[str, list[str]]:
        """Return addresses to ask, each with those to which its agent forwards a call.

        Agents that are late, or that only our link reaches, forward nothing and are asked directly.
        """
        odd = self.detector.apart | self.doubted | self.silent
        alone = self._unreached.union(self.addresses.get(node, "") for node in odd if node is not None)
        near = [place for place in places if place not in alone]
        size = 1 + math.isqrt(len(near))
        branches = {near[at]: near[at + 1 : at + size] for at in range(0, len(near), size)}
        return branches | {place: [] for place in places if place in alone}

    async def _send(self, places: list[str], call: AgentCall, arguments: dict[str, Any]) -> list[Any]:
        """Send a request to each of these addresses; return the answers."""
        if self.direct and len(places) <= _DIRECT and len(self.addresses) <= _MANY:
            return await asyncio.gather(*(self._call(place, call, arguments) for place in places))
        with _typed():
            answers = await self._connected.scheduler.broadcast(msg={"op": call.op, **arguments}, workers=places)
        return [answers[place] for place in places]

    async def _call(self, address: str, call: AgentCall, arguments: dict[str, Any]) -> Any:
        """Call an agent; raise OSError once it is gone."""
        if (gone := self._gone.get(address)) is None or self.client is None:
            raise ConnectionAbortedError(f"there is no agent at {address} any more")
        asking = asyncio.ensure_future(getattr(self.client.rpc(address), call.op)(**arguments))
        try:
            await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise ConnectionAbortedError(f"there is no agent at {address} any more")
        finally:
            asking.cancel()

    def node_named(self, name: object) -> int:
        """Return the node of an agent's name in the control plane; -1 if there is none."""
        return self._names.get(str(name), -1)

    def is_lost(self, node: int) -> NodeLost:
        """Return the error of a lost node."""
        why = self.whys.get(node, "its agent does not answer")
        return NodeLost(f"node {node}{self.names.get(node, '')} is lost: {why}; `%sky restart` recreates it")

    async def _broke(self, nodes: Iterable[int]) -> NodeLost:
        """Return the error of a broken connection, with its cause if known."""
        asked, end = set(nodes), time.monotonic() + _LAST_WORDS
        while time.monotonic() < end:
            if self.closing:
                return NodeLost(self.why_closed)
            if gone := self.lost & asked:
                return self.is_lost(min(gone))
            await asyncio.sleep(_POLL)
        return NodeLost("the connection to the pool broke before it answered; try again, or `%sky restart`")


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Raise an agent's refusal with its type: the scheduler forwards only its text."""
    try:
        yield
    except Exception as error:
        if type(error) is Exception and REPLACED in str(error):
            raise PoolError(REPLACED) from None
        raise


async def _end(client: Client) -> None:
    """Close a client for good.

    Its finaliser, which may run in any thread, must find nothing to do.
    """
    with contextlib.suppress(Exception):
        await client.close(timeout=1)
    if client.status != "closed":
        # If Dask's own reconnect failed, awaiting this task raises that error each time.
        client._handle_report_task = None
        with contextlib.suppress(Exception):
            await client.close(timeout=1)
        client.status = "closed"
    _cut(client)


def _cut(client: Client) -> None:
    """Abort the connections that a client left open when closing timed out."""
    with contextlib.suppress(Exception):
        client.scheduler_comm.abort()
    for pooled in (client.rpc.available, client.rpc.occupied):
        for comm in [comm for several in list(pooled.values()) for comm in several]:
            with contextlib.suppress(Exception):
                comm.abort()


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Return False for Dask's reports that its own reconnect failed: we reconnect.

    The same for reports that it closes connections to very many nodes, which it opens again.
    """
    return not any(text in record.getMessage() for text in ("IOStream is not idle", "Collecting unused comms"))


class _Silence:
    """Settings of Dask while connections are made or closed; used on the loop.

    Several pools may be at it at a time, and each setting is the process's: all are restored once none is.
    """

    def __init__(self) -> None:
        self._users, self._stack = 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def kept(self, *settings: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
        """Mute Dask, with these settings, in the block."""
        self._users += 1
        try:
            for one in (*settings, _quiet()):
                self._stack.enter_context(one)
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._stack.close()


_SILENCE = _Silence()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Mute Dask's loggers, and its warning of differing packages."""
    loggers = [logging.getLogger(name) for name in ("distributed.client", "distributed.comm", "distributed.core")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Mismatched versions found")
            yield
    finally:
        for logger, value in zip(loggers, before, strict=True):
            logger.disabled = value
