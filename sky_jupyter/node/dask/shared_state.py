"""Shared objects of a pool, held by the scheduler.

Queues and locks are Dask's own. Dask has no dicts, sets, counters and barriers that change atomically. Keys and values
are bytes here: only the requesting kernels and notebooks unpickle them.

Each request has an id and is executed once, however often it is sent: a connection may break before the answer arrives.
A requester's name begins with its agent's name, so that its requests and locks end when either of them does.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from distributed.diagnostics.plugin import SchedulerPlugin

from ..protocol import rpc
from ..shared.agent_channel import MOST_VALUE

T = TypeVar("T")
# Seconds after a broken connection until the agent's locks are released.
ABSENCE = 30.0
MOST_ALL = 1 << 30
_MOST_NAMES = 100_000
# Most requesters that are remembered to be gone.
_MOST_GONE = 10_000
# Most answers, and seconds, that answers are kept for retries: as long as a broken connection may take to come back.
_KEEP_ANSWERS, _KEEP_SECONDS = 2000, 60.0
Answer = tuple[Any, list[bytes]]


class RequestRefused(Exception):
    """Request that cannot be executed; `kind` names the exception to raise."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass
class PendingRequest:
    """Request with its answer, once there is one."""

    who: str
    what: dict[str, Any]
    task: asyncio.Future[Answer] | None
    began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether it has an answer, or was cancelled."""
        return self.task is None or self.task.done()


class SharedStateExtension(SchedulerPlugin):
    """Shared state of a pool; made by its scheduler.

    Parameters
    ----------
    scheduler : PoolScheduler
        The pool's scheduler.
    """

    name = "sky-commons"

    def __init__(self, scheduler: Any) -> None:
        self.queues, self.locks = scheduler.extensions["queues"], scheduler.extensions["semaphores"]
        # A restarted scheduler has another epoch, and none of the shared objects.
        self.epoch = secrets.token_hex(8)
        self.size = 0
        self.dicts: dict[str, dict[str, tuple[bytes, bytes]]] = {}
        self.counters: dict[str, int] = {}
        self.barriers: dict[str, Barrier] = {}
        self.asks: OrderedDict[str, PendingRequest] = OrderedDict()
        # Node and connection of each agent or notebook, by the first part of its requesters' names.
        self.homes: dict[str, tuple[str, str]] = {}
        # Number of waiting requests, by kind, operation and name: a later request gets no item before them.
        self.waits: Counter[tuple[str, str, str]] = Counter()
        # Functions that close the connections of requesters on this machine, by the requesters' names; requesters that
        # are gone for good.
        self.closers: dict[str, set[Callable[[], None]]] = {}
        self.gone: OrderedDict[str, None] = OrderedDict()
        for call in rpc.SCHEDULER_CALLS:
            scheduler.handlers[call.op] = getattr(self, call.op)
        scheduler.add_plugin(self, name=self.name)

    # -- requests ----------------------------------------------------------------------------------

    async def sky_shared_request(
        self, who: str, ask: str, what: dict[str, Any], data: Sequence[bytes] = (), epoch: str | None = None
    ) -> dict[str, Any]:
        """Execute a request, once, and return its answer.

        Parameters
        ----------
        who : str
            The requester's name, ``AGENT.RANK.GENERATION.``
        ask : str
            The request's id.
        what : dict
            The request: ``kind``, ``op``, ``name`` and the operation's arguments.
        data : sequence of bytes
            Keys and values.
        epoch : str, optional
            Epoch of the scheduler that the requester knows.

        Returns
        -------
        dict
            ``status`` (``ok``, ``error`` or ``anew``), ``epoch``, and ``value`` and ``data``, or ``kind`` and ``text``.
        """
        if epoch not in (None, self.epoch):
            return {"status": "anew", "epoch": self.epoch}
        asked = self.begin(who, ask, what, data)
        if asked.task is not None and not asked.is_over:
            await asyncio.wait([asked.task])
        return self.answer(asked)

    def begin(self, who: str, ask: str, what: dict[str, Any], data: Sequence[bytes]) -> PendingRequest:
        """Execute a request, or let it wait; return the earlier one with this id, if any."""
        asked = self.asks.get(ask)
        if asked is None:
            asked = self.asks[ask] = PendingRequest(who, what, self._do(who, ask, what, list(data)))
            self._forget_answered()
        return asked

    def forget(self, ask: str) -> None:
        """Forget a request whose answer has been read."""
        self.asks.pop(ask, None)

    def answer(self, asked: PendingRequest) -> dict[str, Any]:
        """Return the answer to a request that is over, as `sky_shared_request` does."""
        if asked.task is None:
            return {"status": "error", "kind": "cancelled", "text": "it was cancelled"}
        try:
            value, found = asked.task.result()
        except RequestRefused as error:
            return {"status": "error", "kind": error.kind, "text": str(error), "epoch": self.epoch}
        return {"status": "ok", "value": value, "data": found, "epoch": self.epoch}

    def _do(self, who: str, ask: str, what: dict[str, Any], data: list[bytes]) -> asyncio.Future[Answer]:
        """Execute a request at once, or in a task if it has to wait."""
        try:
            do = _OPERATIONS.get((what.get("kind"), what.get("op")))
            if do is None or not isinstance(what.get("name"), str):
                raise RequestRefused("TypeError", f"there is no {what.get('op')!r} of a {what.get('kind')!r}")
            if any(len(item) > MOST_VALUE for item in data):
                raise RequestRefused("ValueError", f"a shared value has at most {MOST_VALUE >> 20} MB")
            done = do(self, Operation(who, ask, what["name"], what, data))
        except Exception as error:
            failed: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            # Mark the error as seen: the requester gets it, if it still asks.
            failed.exception()
            return failed
        if not asyncio.iscoroutine(done):
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            future.set_result(done)
            return future
        task, place = asyncio.ensure_future(done), (what["kind"], what["op"], what["name"])
        self.waits[place] += 1
        task.add_done_callback(lambda _: self._on_waited(place))
        return task

    def _on_waited(self, place: tuple[str, str, str]) -> None:
        self.waits[place] -= 1
        if not self.waits[place]:
            del self.waits[place]

    async def sky_shared_cancel(self, ask: str) -> None:
        """Cancel a request; undo it if it has succeeded meanwhile."""
        if (task := self.cancel(ask)) is not None:
            await asyncio.wait([task])

    def cancel(self, ask: str) -> asyncio.Future[Answer] | None:
        """Cancel a request as `sky_shared_cancel` does; return its task if it still runs."""
        asked = self.asks.get(ask)
        if asked is None:
            # The cancellation has arrived before the request.
            self.asks[ask] = PendingRequest("", {}, None)
            return None
        task, asked.task = asked.task, None
        if task is None:
            return None
        if task.done():
            self._undo(ask, asked, task)
            return None
        task.cancel()
        task.add_done_callback(lambda done: self._undo(ask, asked, done))
        return task

    def _undo(self, ask: str, asked: PendingRequest, done: asyncio.Future[Answer]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._give_back(ask, asked, *done.result())

    def _give_back(self, ask: str, asked: PendingRequest, value: Any, data: list[bytes]) -> None:
        kind, op, name = (asked.what.get(key) for key in ("kind", "op", "name"))
        if (kind, op) == ("lock", "acquire") and value:
            self.locks.release(name=_dask(name), lease_id=_lease(asked.who, ask))
        elif (kind, op) == ("queue", "get") and data:
            self._charge(len(data[0]))
            self._put_first(str(name), data[0])

    def _put_first(self, name: str, item: bytes) -> None:
        queue = self.queues.queues.get(_dask(name))
        if queue is None:
            return
        record = {"type": "msgpack", "value": item}
        if queue.empty():
            queue.put_nowait(record)
        else:
            queue._queue.appendleft(record)

    def _forget_answered(self) -> None:
        now = time.monotonic()
        while self.asks:
            asked = next(iter(self.asks.values()))
            if asked.task is not None and not asked.task.done():
                # The oldest request is pending: requeue it and check the others next time.
                self.asks.move_to_end(next(iter(self.asks)))
                return
            if len(self.asks) <= _KEEP_ANSWERS and now - asked.began < _KEEP_SECONDS:
                return
            self.asks.popitem(last=False)

    # -- members -----------------------------------------------------------------------------------

    async def sky_shared_register(self, agent: str, node: str, member: str) -> None:
        """Register the connection of an agent or notebook.

        An earlier agent of the same node is gone: its requests and locks end.
        """
        for other, (its, _) in list(self.homes.items()):
            if other != agent and its == node:
                await self.sky_shared_left(f"{other}.")
                self.homes.pop(other, None)
        self.homes[agent] = node, member

    def enter(self, who: str, close: Callable[[], None]) -> bool:
        """Note a local requester's connection; return False if the requester is gone."""
        if who in self.gone or f"{who.partition('.')[0]}." in self.gone:
            return False
        self.closers.setdefault(who, set()).add(close)
        return True

    def leave(self, who: str, close: Callable[[], None]) -> None:
        """Forget a connection, which has closed."""
        if who in self.closers:
            self.closers[who].discard(close)
            if not self.closers[who]:
                del self.closers[who]

    async def sky_shared_left(self, who: str) -> None:
        """Cancel requests and release locks of requesters that are gone for good.

        ``who`` is a prefix of their names.
        """
        # Requests that are still unread in their connections do not count.
        self.gone[who] = None
        if len(self.gone) > _MOST_GONE:
            self.gone.popitem(last=False)
        for one in [one for one in self.closers if one.startswith(who)]:
            for close in list(self.closers[one]):
                close()
        await self._release(who)

    async def _release(self, who: str) -> None:
        for ask, asked in list(self.asks.items()):
            if asked.who.startswith(who) and asked.task is not None and not asked.task.done():
                await self.sky_shared_cancel(ask)
        for name, leases in list(self.locks.leases.items()):
            for lease in [lease for lease in leases if lease.startswith(who)]:
                self.locks.release(name=name, lease_id=lease)

    def remove_worker(self, scheduler: Any, worker: str, **more: Any) -> None:
        """Note that an agent's connection is gone; it may come back."""
        self._miss(worker)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Note that a notebook's connection is gone."""
        self._miss(client)

    def _miss(self, member: str) -> None:
        for agent, home in self.homes.items():
            if home[1] == member:
                asyncio.get_running_loop().call_later(ABSENCE, self._give_up, agent, home)

    def _give_up(self, agent: str, home: tuple[str, str]) -> None:
        # One that has come back has registered again, perhaps from the same address, as behind a relay.
        if self.homes.get(agent) is not home:
            return
        if any(who.startswith(f"{agent}.") for who in self.closers):
            # Some of its processes are still connected.
            asyncio.get_running_loop().call_later(ABSENCE, self._give_up, agent, home)
            return
        del self.homes[agent]
        self._giving_up = asyncio.ensure_future(self._release(f"{agent}."))

    # -- parts -------------------------------------------------------------------------------------

    def _charge(self, size: int) -> None:
        """Add added or removed bytes to the total size; refuse more than the limit."""
        if size > 0 and self.size + size > MOST_ALL:
            raise RequestRefused(
                "MemoryError",
                f"what the pool shares by name has {self.size / 1e6:.0f} MB, and {MOST_ALL / 1e6:.0f} MB are the most: "
                "`clear()` what is not needed, or keep large values in files and share their names",
            )
        self.size += size

    def _named(self, store: dict[str, Any], name: str, make: Callable[[], T]) -> T:
        if name not in store:
            if len(store) >= _MOST_NAMES:
                raise RequestRefused("MemoryError", f"the pool has {_MOST_NAMES} names of this kind already")
            store[name] = make()
        found: T = store[name]
        return found


@dataclass(frozen=True)
class Operation:
    """Arguments of an operation."""

    who: str
    ask: str
    name: str
    what: dict[str, Any]
    data: list[bytes]

    @property
    def timeout(self) -> float | None:
        """Seconds that the requester waits; None for no limit."""
        timeout = self.what.get("timeout")
        return None if timeout is None else max(0.0, float(timeout))

    def keyed(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield each key as text, its pickle and its value."""
        count = len(self.what["keys"])
        values = self.data[count:] or [b""] * count
        yield from zip(self.what["keys"], self.data[:count], values, strict=True)


def _dask(name: Any) -> str:
    return f"sky-{name}"


def _lease(who: str, ask: str) -> str:
    return who + ask


async def _within(work: Awaitable[T], timeout: float | None) -> tuple[bool, T | None]:
    """Wait for work; return whether it finished, and its result.

    Work that was cancelled has had no effect.
    """
    task = asyncio.ensure_future(work)
    given_up = False
    try:
        await asyncio.wait([task], timeout=timeout)
    except asyncio.CancelledError:
        given_up = True
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        # If it finished during a cancellation, the canceller undoes it.
        return True, task.result()
    if given_up:
        raise asyncio.CancelledError
    return False, None


# Dicts and sets.


def _dict_get(self: SharedStateExtension, ask: Operation) -> Answer:
    held = self.dicts.get(ask.name) or {}
    (key,) = ask.what["keys"]
    return key in held, [held[key][1]] if key in held else []


def _dict_has(self: SharedStateExtension, ask: Operation) -> Answer:
    return ask.what["keys"][0] in self.dicts.get(ask.name, ()), []


def _dict_put(self: SharedStateExtension, ask: Operation) -> Answer:
    """Set all items at once; return True if none of the keys existed."""
    held: dict[str, tuple[bytes, bytes]] = self._named(self.dicts, ask.name, dict)
    given = {key: (pickled, value) for key, pickled, value in ask.keyed()}
    fresh = not any(key in held for key in given)
    self._charge(sum(map(_weight, given.values())) - sum(_weight(held[key]) for key in given if key in held))
    held.update(given)
    return fresh, []


def _dict_setdefault(self: SharedStateExtension, ask: Operation) -> Answer:
    found = _dict_get(self, ask)
    if not found[0]:
        _dict_put(self, ask)
    return found


def _dict_pop(self: SharedStateExtension, ask: Operation) -> Answer:
    found, held = _dict_get(self, ask), self.dicts.get(ask.name, {})
    if found[0]:
        self._charge(-_weight(held.pop(ask.what["keys"][0])))
    return found


def _dict_size(self: SharedStateExtension, ask: Operation) -> Answer:
    return len(self.dicts.get(ask.name, {})), []


def _dict_keys(self: SharedStateExtension, ask: Operation) -> Answer:
    return None, [key for key, _ in self.dicts.get(ask.name, {}).values()]


def _dict_items(self: SharedStateExtension, ask: Operation) -> Answer:
    return None, [part for pair in self.dicts.get(ask.name, {}).values() for part in pair]


def _dict_clear(self: SharedStateExtension, ask: Operation) -> Answer:
    self._charge(-sum(map(_weight, self.dicts.pop(ask.name, {}).values())))
    return None, []


def _weight(pair: tuple[bytes, bytes]) -> int:
    return len(pair[0]) + len(pair[1]) + 200


# Counters.


def _counter_add(self: SharedStateExtension, ask: Operation) -> Answer:
    self._named(self.counters, ask.name, int)
    self.counters[ask.name] += int(ask.what["by"])
    return self.counters[ask.name], []


def _counter_get(self: SharedStateExtension, ask: Operation) -> Answer:
    return self.counters.get(ask.name, 0), []


def _counter_reset(self: SharedStateExtension, ask: Operation) -> Answer:
    before = self._named(self.counters, ask.name, int)
    self.counters[ask.name] = int(ask.what["to"])
    return before, []


# Queues: Dask's.


def _queue(self: SharedStateExtension, ask: Operation) -> Any:
    name, most = _dask(ask.name), int(ask.what.get("maxsize") or 0)
    if name not in self.queues.queues:
        self.queues.create(name=name, maxsize=most)
    queue = self.queues.queues[name]
    if most and queue.maxsize != most:
        limit = f"of at most {queue.maxsize} items" if queue.maxsize else "without a limit"
        raise RequestRefused("ValueError", f"queue {ask.name!r} is one {limit}; it cannot be one of at most {most}")
    return queue


def _queue_put(self: SharedStateExtension, ask: Operation) -> Answer | Awaitable[Answer]:
    queue = _queue(self, ask)
    (item,) = ask.data
    if queue.full() or self.waits["queue", "put", ask.name]:
        return _queue_put_later(self, ask, item)
    self._charge(len(item))
    queue.put_nowait({"type": "msgpack", "value": item})
    return True, []


async def _queue_put_later(self: SharedStateExtension, ask: Operation, item: bytes) -> Answer:
    self._charge(len(item))
    done = False
    try:
        done, _ = await _within(self.queues.put(name=_dask(ask.name), data=item), ask.timeout)
    finally:
        if not done:
            self._charge(-len(item))
    return done, []


def _queue_get(self: SharedStateExtension, ask: Operation) -> Answer | Awaitable[Answer]:
    queue = _queue(self, ask)
    if queue.empty() or self.waits["queue", "get", ask.name]:
        return _queue_get_later(self, ask)
    return _queue_got(self, queue.get_nowait())


async def _queue_get_later(self: SharedStateExtension, ask: Operation) -> Answer:
    done, record = await _within(self.queues.get(name=_dask(ask.name)), ask.timeout)
    return _queue_got(self, record) if done and record is not None else (False, [])


def _queue_got(self: SharedStateExtension, record: dict[str, Any]) -> Answer:
    self._charge(-len(record["value"]))
    return True, [record["value"]]


def _queue_size(self: SharedStateExtension, ask: Operation) -> Answer:
    return _queue(self, ask).qsize(), []


async def _queue_clear(self: SharedStateExtension, ask: Operation) -> Answer:
    _queue(self, ask)
    for record in await self.queues.get(name=_dask(ask.name), batch=True):
        self._charge(-len(record["value"]))
    return None, []


# Locks: Dask's semaphores with one lease, which ends with its holder and not by timeout.


async def _lock_acquire(self: SharedStateExtension, ask: Operation) -> Answer:
    name = _dask(ask.name)
    self.locks.create(name=name, max_leases=1, lease_timeout=None)
    done, got = await _within(self.locks.acquire(name=name, lease_id=_lease(ask.who, ask.ask)), ask.timeout)
    return done and bool(got), []


def _lock_release(self: SharedStateExtension, ask: Operation) -> Answer:
    name = _dask(ask.name)
    mine = [lease for lease in self.locks.leases.get(name, ()) if lease.startswith(ask.who)]
    if not mine:
        raise RequestRefused("RuntimeError", f"lock {ask.name!r} is not held by this rank")
    self.locks.release(name=name, lease_id=mine[0])
    return None, []


def _lock_locked(self: SharedStateExtension, ask: Operation) -> Answer:
    return bool(self.locks.leases.get(_dask(ask.name))), []


# Barriers.


class Barrier:
    """Waiters under one name, and their number of parties."""

    def __init__(self) -> None:
        self.parties = 0
        self.waiting: dict[str, asyncio.Future[int]] = {}


async def _barrier_wait(self: SharedStateExtension, ask: Operation) -> Answer:
    barrier = self._named(self.barriers, ask.name, Barrier)
    parties = int(ask.what["parties"])
    if barrier.waiting and barrier.parties != parties:
        raise RequestRefused(
            "ValueError", f"barrier {ask.name!r} is waited at by others for {barrier.parties} in all, not {parties}"
        )
    barrier.parties = parties
    future = barrier.waiting[ask.ask] = asyncio.get_running_loop().create_future()
    if len(barrier.waiting) >= parties:
        for number, one in enumerate(barrier.waiting.values()):
            if not one.done():
                one.set_result(number)
        barrier.waiting = {}
    try:
        done, place = await _within(future, ask.timeout)
    finally:
        barrier.waiting.pop(ask.ask, None)
    return (place if done else None), []


_OPERATIONS: dict[tuple[Any, Any], Callable[[SharedStateExtension, Operation], Any]] = {
    ("dict", "get"): _dict_get,
    ("dict", "has"): _dict_has,
    ("dict", "put"): _dict_put,
    ("dict", "setdefault"): _dict_setdefault,
    ("dict", "pop"): _dict_pop,
    ("dict", "size"): _dict_size,
    ("dict", "keys"): _dict_keys,
    ("dict", "items"): _dict_items,
    ("dict", "clear"): _dict_clear,
    ("counter", "add"): _counter_add,
    ("counter", "get"): _counter_get,
    ("counter", "reset"): _counter_reset,
    ("queue", "put"): _queue_put,
    ("queue", "get"): _queue_get,
    ("queue", "size"): _queue_size,
    ("queue", "clear"): _queue_clear,
    ("lock", "acquire"): _lock_acquire,
    ("lock", "release"): _lock_release,
    ("lock", "locked"): _lock_locked,
    ("barrier", "wait"): _barrier_wait,
}
