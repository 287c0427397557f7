"""Shared objects of a pool, as user code uses them.

These are dicts, sets, counters, queues, locks and barriers. An object holds only its name. An operation is one request
that the scheduler executes atomically: once a write has been answered, every rank reads its value.

Each method is a generator that yields its request and gets the answer; `_waited` and `_awaited` make the sync and
async methods from it.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
import queue
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ...errors import SpecError
from ...util.validate import is_number, is_whole
from ..serialization import pickling
from .agent_channel import MOST_VALUE, Answer, SharedStateChannel, shares

P = ParamSpec("P")
T = TypeVar("T")
_MISSING = object()


@dataclass(frozen=True)
class SharedRequest:
    """Request of a method to the scheduler."""

    what: dict[str, Any]
    data: Sequence[bytes]
    # What the request waits for, for the message of an interrupt.
    where: str
    of: SharedStateChannel

    def answer(self) -> Answer:
        """Send the request and wait for the answer."""
        return self.of.ask(self.what, self.data, self.where)


Steps = Generator[SharedRequest, Answer, T]


def _waited(method: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Turn a generator of requests into a blocking method."""
    # So that help() shows the final return type.
    method.__annotations__["return"] = str(method.__annotations__["return"]).removeprefix("Steps[").removesuffix("]")

    @functools.wraps(method)
    def work(*args: P.args, **kwargs: P.kwargs) -> T:
        steps = method(*args, **kwargs)
        try:
            request = next(steps)
            while True:
                request = steps.send(request.answer())
        except StopIteration as end:
            return cast("T", end.value)

    vars(work)["steps"] = method
    return work


def _awaited(waited: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the coroutine variant of a method.

    A wait that is cancelled, as by a timeout, leaves the shared object as it was; any other request takes effect.
    """
    method: Callable[P, Steps[T]] = vars(waited)["steps"]

    @functools.wraps(method)
    async def work(*args: P.args, **kwargs: P.kwargs) -> T:
        steps = method(*args, **kwargs)
        try:
            request = next(steps)
            while True:
                request = steps.send(await request.of.ask_async(request.what, request.data, request.where))
        except StopIteration as end:
            return cast("T", end.value)

    work.__name__, work.__qualname__ = f"{method.__name__}_async", f"{method.__qualname__}_async"
    return work


class SharedObject:
    """Base of shared objects; cheap to create and to send."""

    _kind = ""

    def __init__(self, name: str, *, of: SharedStateChannel | None = None) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise SpecError(f"the name of a shared {self._kind} must be 1 to 200 characters, not {name!r}")
        self.name = name
        self._of = of

    def _request(self, op: str, data: Iterable[bytes] = (), *, where: str = "", **what: Any) -> SharedRequest:
        asked = {"kind": self._kind, "op": op, "name": self._sent_name, **what}
        return SharedRequest(asked, list(data), f"waiting {where}" if where else "", self._of or shares())

    @property
    def _sent_name(self) -> str:
        """The name by which the scheduler knows it."""
        return self.name

    def _ask(self, op: str, data: Iterable[bytes] = (), **what: Any) -> Answer:
        return self._request(op, data, **what).answer()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the channel: a copy uses that of its new process."""
        return {**vars(self), "_of": None}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash((self._kind, self.name))

    def __repr__(self) -> str:
        return f"<sky.{type(self).__name__.removeprefix('Shared').lower()} {self.name!r}>"


class SharedDict(SharedObject):
    """Dict of the pool.

    Keys are strings, numbers, bytes, None or tuples of these. Values are anything that can be pickled, up to 16 MB
    each. Each method is atomic, also `update` and `pop`.
    """

    _kind = "dict"

    @property
    def _sent_name(self) -> str:
        # A set has the names that begin with "set:".
        return f"dict:{self.name}" if self.name.startswith(("set:", "dict:")) else self.name

    def __getitem__(self, key: Any) -> Any:
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    @_waited
    def get(self, key: Any, default: Any = None) -> Steps[Any]:
        """Return the value of a key, or the default."""
        there, data = yield self._request("get", keys=[_name_of(key)])
        return _load(data[0]) if there else default

    get_async = _awaited(get)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update({key: value})

    async def set_async(self, key: Any, value: Any) -> None:
        """Set a key's value."""
        await self.update_async({key: value})

    @_waited
    def update(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), /, **more: Any) -> Steps[None]:
        """Set all items at once."""
        pairs = {**dict(items), **more}
        if pairs:
            data = [*map(_dump, pairs), *map(_dump, pairs.values())]
            yield self._request("put", data, keys=[_name_of(key) for key in pairs])

    update_async = _awaited(update)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; set it to the default if it is missing."""
        there, data = self._ask("setdefault", [_dump(key), _dump(default)], keys=[_name_of(key)])
        return _load(data[0]) if there else default

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    @_waited
    def pop(self, key: Any, *default: Any) -> Steps[Any]:
        """Remove a key and return its value.

        If the key is missing, return the default, or raise KeyError without one.
        """
        there, data = yield self._request("pop", keys=[_name_of(key)])
        if there:
            return _load(data[0])
        if not default:
            raise KeyError(key)
        return default[0]

    pop_async = _awaited(pop)

    def __contains__(self, key: Any) -> bool:
        return bool(self._ask("has", keys=[_name_of(key)])[0])

    def __len__(self) -> int:
        return int(self._ask("size")[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def keys(self) -> list[Any]:
        """Return a snapshot of all keys."""
        return [_load(one) for one in self._ask("keys")[1]]

    def values(self) -> list[Any]:
        """Return a snapshot of all values."""
        return [value for _, value in self.items()]

    def items(self) -> list[tuple[Any, Any]]:
        """Return a snapshot of all keys and values."""
        found = [_load(one) for one in self._ask("items")[1]]
        return list(zip(found[::2], found[1::2], strict=True))

    def clear(self) -> None:
        """Remove all items."""
        self._ask("clear")


class SharedSet(SharedObject):
    """Set of the pool, of strings, numbers, bytes, None or tuples of these."""

    # The keys of a dict, under a name that no `SharedDict` sends.
    _kind = "dict"

    @property
    def _sent_name(self) -> str:
        return f"set:{self.name}"

    @_waited
    def add(self, value: Any) -> Steps[bool]:
        """Add a value; return True if it was new.

        If several ranks add the same value, exactly one gets True.
        """
        return bool((yield self._request("put", [_dump(value), b""], keys=[_name_of(value)]))[0])

    add_async = _awaited(add)

    def update(self, values: Iterable[Any]) -> None:
        """Add all values at once."""
        given = list(values)
        if given:
            self._ask("put", [*map(_dump, given), *[b""] * len(given)], keys=[_name_of(value) for value in given])

    @_waited
    def discard(self, value: Any) -> Steps[bool]:
        """Remove a value; return True if it was in the set."""
        return bool((yield self._request("pop", keys=[_name_of(value)]))[0])

    discard_async = _awaited(discard)

    def remove(self, value: Any) -> None:
        """Remove a value; raise KeyError if it is missing."""
        if not self.discard(value):
            raise KeyError(value)

    @_waited
    def _contains(self, value: Any) -> Steps[bool]:
        """Return True if a value is in the set."""
        return bool((yield self._request("has", keys=[_name_of(value)]))[0])

    contains_async = _awaited(_contains)

    def __contains__(self, value: Any) -> bool:
        return self._contains(value)

    def __len__(self) -> int:
        return int(self._ask("size")[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items())

    def items(self) -> list[Any]:
        """Return a snapshot of all values."""
        return [_load(one) for one in self._ask("keys")[1]]

    def clear(self) -> None:
        """Remove all values."""
        self._ask("clear")


class SharedCounter(SharedObject):
    """Integer of the pool, initially 0.

    Methods that change it return the new value; `reset` returns the former one.
    """

    _kind = "counter"

    @_waited
    def add(self, delta: int = 1) -> Steps[int]:
        """Add ``delta`` and return the new value."""
        return int((yield self._request("add", by=operator.index(delta)))[0])

    add_async = _awaited(add)

    def increment(self, n: int = 1) -> int:
        """Add ``n`` and return the new value."""
        return self.add(n)

    async def increment_async(self, n: int = 1) -> int:
        """Add ``n`` and return the new value."""
        return await self.add_async(n)

    def decrement(self, n: int = 1) -> int:
        """Subtract ``n`` and return the new value."""
        return self.add(-n)

    async def decrement_async(self, n: int = 1) -> int:
        """Subtract ``n`` and return the new value."""
        return await self.add_async(-n)

    @_waited
    def get(self) -> Steps[int]:
        """Return the value."""
        return int((yield self._request("get"))[0])

    get_async = _awaited(get)

    @property
    def value(self) -> int:
        """The current value."""
        return self.get()

    async def value_async(self) -> int:
        """Return the value."""
        return await self.get_async()

    def __int__(self) -> int:
        return self.get()

    @_waited
    def reset(self, value: int = 0) -> Steps[int]:
        """Set the value and return the former one."""
        return int((yield self._request("reset", to=operator.index(value)))[0])

    reset_async = _awaited(reset)


class SharedQueue(SharedObject):
    """FIFO queue of the pool, for items that can be pickled, up to 16 MB each.

    Each item goes to one reader. If a rank is interrupted while it gets an item, the item returns to the front.

    Parameters
    ----------
    name : str
        The queue's name.
    maxsize : int
        Limit of the number of items; 0 for no limit.
    of : SharedStateChannel, optional
        Channel to use; by default that of the process.
    """

    _kind = "queue"

    def __init__(self, name: str, maxsize: int = 0, *, of: SharedStateChannel | None = None) -> None:
        super().__init__(name, of=of)
        if not is_whole(maxsize):
            raise SpecError(f"maxsize must be a whole number from 0, not {maxsize!r}")
        self.maxsize = maxsize

    @_waited
    def put(self, value: Any, timeout: float | None = None) -> Steps[None]:
        """Append an item; wait while the queue is full.

        Raises queue.Full after ``timeout`` seconds.
        """
        there, _ = yield self._put(value, _seconds(timeout))
        if not there:
            raise queue.Full(f"queue {self.name!r} has had no room for {timeout:g} s")

    put_async = _awaited(put)

    def offer(self, value: Any) -> bool:
        """Append an item if there is room now; return False otherwise."""
        return bool(self._put(value, 0.0).answer()[0])

    def _put(self, value: Any, timeout: float | None) -> SharedRequest:
        where = f"for room in queue {self.name!r}"
        return self._request("put", [_dump(value)], maxsize=self.maxsize, timeout=timeout, where=where)

    @_waited
    def get(self, timeout: float | None = None, default: Any = None) -> Steps[Any]:
        """Remove and return the next item; wait while the queue is empty.

        Returns the default after ``timeout`` seconds.
        """
        where = f"for an item of queue {self.name!r}"
        there, data = yield self._request("get", maxsize=self.maxsize, timeout=_seconds(timeout), where=where)
        return _load(data[0]) if there else default

    get_async = _awaited(get)

    def poll(self) -> Any:
        """Remove and return the next item; None if the queue is empty."""
        return self.get(0.0)

    def qsize(self) -> int:
        """Return the number of items."""
        return int(self._ask("size", maxsize=self.maxsize)[0])

    def __len__(self) -> int:
        return self.qsize()

    def __bool__(self) -> bool:
        return True

    def empty(self) -> bool:
        """Return True if the queue is empty."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Return True if there is no room."""
        return 0 < self.maxsize <= self.qsize()

    def clear(self) -> None:
        """Remove all items."""
        self._ask("clear", maxsize=self.maxsize)


class SharedLock(SharedObject):
    """Lock of the pool; it is released when its holder's process ends.

    It is not reentrant: a rank that takes it twice waits for itself.

    Parameters
    ----------
    name : str
        The lock's name.
    timeout : float, optional
        Default timeout of `acquire` and ``with`` in seconds.
    of : SharedStateChannel, optional
        Channel to use; by default that of the process.
    """

    _kind = "lock"

    def __init__(self, name: str, timeout: float | None = None, *, of: SharedStateChannel | None = None) -> None:
        super().__init__(name, of=of)
        self.timeout = _seconds(timeout)

    @_waited
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Steps[bool]:
        """Acquire the lock; return False on timeout."""
        patience = 0.0 if not blocking else self.timeout if timeout is None else _seconds(timeout)
        return bool((yield self._request("acquire", timeout=patience, where=f"for lock {self.name!r}"))[0])

    acquire_async = _awaited(acquire)

    @_waited
    def release(self) -> Steps[None]:
        """Release the lock; RuntimeError if this rank does not hold it."""
        yield self._request("release")

    release_async = _awaited(release)

    def locked(self) -> bool:
        """Return True if any rank holds it."""
        return bool(self._ask("locked")[0])

    def __enter__(self) -> SharedLock:
        if not self.acquire():
            raise self._not_free()
        return self

    async def __aenter__(self) -> SharedLock:
        if not await self.acquire_async():
            raise self._not_free()
        return self

    def _not_free(self) -> TimeoutError:
        return TimeoutError(f"lock {self.name!r} was not free for {self.timeout:g} s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.release_async()


class SharedBarrier(SharedObject):
    """Reusable barrier of the pool.

    A waiter that is interrupted, or whose process ends, does not count any more: the others wait until another one
    comes, or until their cell's grace period ends.

    Parameters
    ----------
    name : str
        The barrier's name.
    parties : int
        Number of waiters that release it.
    of : SharedStateChannel, optional
        Channel to use; by default that of the process.
    """

    _kind = "barrier"

    def __init__(self, name: str, parties: int, *, of: SharedStateChannel | None = None) -> None:
        super().__init__(name, of=of)
        if not is_whole(parties, 1):
            raise SpecError(f"barrier {name!r}: how many wait must be a whole number from 1, not {parties!r}")
        self.parties = parties

    @_waited
    def wait(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all parties are here; return the order of arrival, from 0.

        Raises TimeoutError after ``timeout`` seconds.
        """
        where = f"at barrier {self.name!r} for {self.parties} in all"
        place, _ = yield self._request("wait", parties=self.parties, timeout=_seconds(timeout), where=where)
        if place is None:
            raise TimeoutError(f"barrier {self.name!r}: not all {self.parties} arrived within {timeout:g} s")
        return int(place)

    wait_async = _awaited(wait)

    def reset(self) -> None:
        """Do nothing: the barrier is reusable as it is."""


# Keys and values.


def _name_of(key: Any) -> str:
    """Return a key as text: equal keys, as in a dict, have equal texts."""
    return repr(_plain(key))


def _plain(key: Any) -> Any:
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    if isinstance(key, str):
        # A member of an Enum equals its text, and its own `str` is another one.
        return str.__str__(key)
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    if isinstance(key, float):
        return int(key) if key.is_integer() else float(key)
    if hasattr(key, "__index__"):
        return operator.index(key)
    raise SpecError(
        f"a key must be a text, a number, bytes, None or a tuple of these, not {type(key).__name__}: it is compared "
        "on the head, which knows no other types"
    )


def _seconds(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if not is_number(timeout, 0, 1e9):
        raise SpecError(f"a timeout must be a number of seconds from 0, or None for no limit, not {timeout!r}")
    return float(timeout)


def _dump(value: Any) -> bytes:
    """Pickle a value; notebook functions go by value."""
    file = io.BytesIO()
    pickling.Pickler(file, pickling.main_namespace()).dump(value)
    data = file.getvalue()
    if len(data) > MOST_VALUE:
        what = f"this {type(value).__name__} has {len(data) / 1e6:.1f} MB"
        raise SpecError(
            f"a shared value can have {MOST_VALUE >> 20} MB, and {what}: "
            "shared values are in the memory of the head's scheduler. Write it to a file, and share its name"
        )
    return data


def _load(data: bytes) -> Any:
    return pickle.loads(data)
