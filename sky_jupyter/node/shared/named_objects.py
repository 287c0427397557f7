"""`sky.dict` and its like: what the pool shares under a name, made by who asks first and gone with the pool.

On a rank they are its pool's, in a notebook the current pool's.
"""

from __future__ import annotations

from typing import Literal

from ...errors import SpecError
from .agent_channel import shares
from .objects import SharedBarrier, SharedCounter, SharedDict, SharedLock, SharedQueue, SharedSet

Consistency = Literal["strong", "eventual"]


def dict(name: str, *, consistency: Consistency | None = None) -> SharedDict:
    """The pool's dict of this name.

    Parameters
    ----------
    name : str
        Any.
    consistency : {"strong", "eventual"}, optional
        Skyward's; here all is strong.
    """
    _known(consistency)
    return SharedDict(name)


def set(name: str, *, consistency: Consistency | None = None) -> SharedSet:
    """The pool's set of this name; see `dict`."""
    _known(consistency)
    return SharedSet(name)


def counter(name: str, *, consistency: Consistency | None = None) -> SharedCounter:
    """The pool's counter of this name; see `dict`."""
    _known(consistency)
    return SharedCounter(name)


def queue(name: str, maxsize: int = 0) -> SharedQueue:
    """The pool's queue of this name, in which at most ``maxsize`` items wait, or any number."""
    return SharedQueue(name, maxsize)


def lock(name: str, *, timeout: float | None = None, ttl: float | None = None) -> SharedLock:
    """The pool's lock of this name.

    Parameters
    ----------
    timeout : float, optional
        How many seconds ``with`` waits for it; without limit unless given.
    ttl : float, optional
        Skyward's, for holders that are gone; here it is free as soon as its holder's process has ended.
    """
    if ttl is not None and not ttl > 0:
        raise SpecError(f"ttl must be a number of seconds above 0, not {ttl!r}")
    return SharedLock(name, timeout)


def barrier(name: str, n: int | None = None, *, parties: int | None = None) -> SharedBarrier:
    """The pool's barrier of this name, at which ``n`` (or ``parties``) wait for each other: all ranks unless given."""
    if n is not None and parties is not None and n != parties:
        raise SpecError(f"barrier {name!r}: n={n} and parties={parties} are two words for one thing")
    given = parties if n is None else n
    return SharedBarrier(name, shares().world_size() if given is None else given)


def _known(consistency: str | None) -> None:
    if consistency not in (None, "strong", "eventual"):
        raise SpecError(f"consistency must be 'strong' or 'eventual', not {consistency!r}; here both are strong")
