"""`sky.dict` and the other shared objects of a pool, by name.

The first use of a name creates the object, which lives as long as the pool. On a rank, the names are those of its pool;
in a notebook, those of the current pool.
"""

from __future__ import annotations

from typing import Literal

from ...errors import SpecError
from .agent_channel import shares
from .shared_types import SharedBarrier, SharedCounter, SharedDict, SharedLock, SharedQueue, SharedSet

Consistency = Literal["strong", "eventual"]


def dict(name: str, *, consistency: Consistency | None = None) -> SharedDict:
    """Return the pool's shared dict of a name.

    Parameters
    ----------
    name : str
        Any name; the object is made on first use.
    consistency : {"strong", "eventual"}, optional
        For compatibility with Skyward's programs; here both are strong.

    Returns
    -------
    SharedDict
        Its proxy.

    Raises
    ------
    SpecError
        When the consistency is neither of the two.
    """
    _known(consistency)
    return SharedDict(name)


def set(name: str, *, consistency: Consistency | None = None) -> SharedSet:
    """Return the pool's shared set of a name.

    Parameters
    ----------
    name : str
        Any name; the object is made on first use.
    consistency : {"strong", "eventual"}, optional
        For compatibility with Skyward's programs; here both are strong.

    Returns
    -------
    SharedSet
        Its proxy.

    Raises
    ------
    SpecError
        When the consistency is neither of the two.
    """
    _known(consistency)
    return SharedSet(name)


def counter(name: str, *, consistency: Consistency | None = None) -> SharedCounter:
    """Return the pool's shared counter of a name.

    Parameters
    ----------
    name : str
        Any name; the object is made on first use.
    consistency : {"strong", "eventual"}, optional
        For compatibility with Skyward's programs; here both are strong.

    Returns
    -------
    SharedCounter
        Its proxy.

    Raises
    ------
    SpecError
        When the consistency is neither of the two.
    """
    _known(consistency)
    return SharedCounter(name)


def queue(name: str, maxsize: int = 0) -> SharedQueue:
    """Return the pool's shared queue of a name.

    Parameters
    ----------
    name : str
        Any name; the object is made on first use.
    maxsize : int
        The largest number of waiting items; 0 for no limit.

    Returns
    -------
    SharedQueue
        Its proxy.
    """
    return SharedQueue(name, maxsize)


def lock(name: str, *, timeout: float | None = None, ttl: float | None = None) -> SharedLock:
    """Return the pool's shared lock of a name.

    Parameters
    ----------
    name : str
        Any name; the object is made on first use.
    timeout : float, optional
        Seconds that ``with`` waits for the lock; without limit by default.
    ttl : float, optional
        For Skyward's programs, without effect: the lock is free as soon as its holder's process has ended.

    Returns
    -------
    SharedLock
        Its proxy.

    Raises
    ------
    SpecError
        When ``ttl`` is not above 0.
    """
    if ttl is not None and not ttl > 0:
        raise SpecError(f"ttl must be a number of seconds above 0, not {ttl!r}")
    return SharedLock(name, timeout)


def barrier(name: str, n: int | None = None, *, parties: int | None = None) -> SharedBarrier:
    """Return the pool's shared barrier of a name.

    Parameters
    ----------
    name : str
        Any name; the object is made on first use.
    n : int, optional
        The number of waiters that the barrier releases together; the pool's number of ranks by default.
    parties : int, optional
        Another name of ``n``.

    Returns
    -------
    SharedBarrier
        Its proxy.

    Raises
    ------
    SpecError
        When ``n`` and ``parties`` differ.
    NotInPoolError
        When neither is given, and there is no pool whose ranks could be counted.
    """
    if n is not None and parties is not None and n != parties:
        raise SpecError(f"barrier {name!r}: n={n} and parties={parties} are two words for one thing")
    given = parties if n is None else n
    return SharedBarrier(name, shares().world_size() if given is None else given)


def _known(consistency: str | None) -> None:
    if consistency not in (None, "strong", "eventual"):
        raise SpecError(f"consistency must be 'strong' or 'eventual', not {consistency!r}; here both are strong")
