"""Pools of this process, by name; all but kept and joined ones end with it."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import PoolError
from ..node.shared import outside_ranks
from ..util.text import nearest

if TYPE_CHECKING:
    from ..spec.pool_spec import PoolSpec
    from .pool import Pool
    from .registry.ended_pools import Gone


class OpenPools:
    """Pools of this process; the magics and `Compute` share `pools`."""

    def __init__(self) -> None:
        self._by_name: dict[str, Pool] = {}
        self._current: str | None = None
        # Remote pools that have ended, by name, and which of them was current.
        self._gone: dict[str, Gone] = {}
        self._lost: str | None = None
        self._watching = False
        self._lock = threading.Lock()
        # Pools that are being started, and whether the main thread starts them.
        self._starting: dict[Pool, bool] = {}
        # Names reserved for pools that are being made.
        self._named: list[str] = []

    @property
    def starting(self) -> list[Pool]:
        """The pools that are being started; `get` does not find them."""
        return list(self._starting)

    @contextlib.contextmanager
    def being_started(self, pool: Pool) -> Iterator[None]:
        """List a pool as being started by this thread, inside the context."""
        self._starting[pool] = threading.current_thread() is threading.main_thread()
        try:
            yield
        finally:
            with self._lock:
                del self._starting[pool]

    def interrupt_start(self, pool: Pool) -> bool:
        """Interrupt the main thread if it starts this pool; return whether it does.

        Raises PoolError if another thread starts it. Thread-safe.
        """
        with self._lock:
            if pool not in self._starting:
                return False
            if not self._starting[pool]:
                raise PoolError(f"pool {pool.spec.name!r} is being started by a thread, which cannot be interrupted")
            # Like the terminal's interrupt: the pool's start fails and leaves nothing.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return True

    def add(self, pool: Pool) -> None:
        """Register a pool under its name, and make it current."""
        if not self._watching:
            self._watching = True
            # A host detects the end of its owner by itself; this only speeds it up.
            atexit.register(self.end_all)
        self._by_name[pool.spec.name] = pool
        self._gone.pop(pool.spec.name, None)
        self.use(pool)

    def get(self, name: str) -> Pool | None:
        """Return the live pool of this name, or None."""
        pool = self._by_name.get(name)
        if pool is not None and pool.state == "ended":
            self.discard(pool)
            return None
        return pool

    @contextlib.contextmanager
    def naming(self, name: str, *, other: bool) -> Iterator[str]:
        """Reserve a name; with ``other``, a similar one that is free."""
        with self._lock:
            taken = {*self._named, *(pool.spec.name for pool in [*self.all(), *self.starting])} if other else set()
            name = next(text for text in _numbered(name) if text not in taken)
            self._named.append(name)
        try:
            yield name
        finally:
            with self._lock:
                self._named.remove(name)

    def need(self, name: str | None) -> Pool:
        """Return the live pool of this name, or the current one.

        Raises PoolError, with the names of live pools, if there is none.
        """
        pool = self.current if name is None else self.get(name)
        if pool is None:
            there = self.names
            if (gone := self.gone(name)) is not None:
                raise PoolError(gone.refusal("%sky up --provider local", there))
            what = "there is no pool" if name is None else f"there is no pool {name!r}{nearest(name, there)}"
            raise PoolError(f"{what}; live: {', '.join(there) or 'none'}. `%sky up` makes one")
        pool.must_be_ours()
        return pool

    @property
    def current(self) -> Pool | None:
        """The pool that was used last, if it is live."""
        return self.get(self._current) if self._current is not None else None

    def use(self, pool: Pool) -> None:
        self._current, self._lost = pool.spec.name, None

    def gone(self, name: str | None = None) -> Gone | None:
        """Return the ended remote pool of this name, or the last current."""
        name = self._lost if name is None else name
        return self._gone.get(name) if name is not None else None

    def miss(self, gone: Gone) -> None:
        """Record a missing remote pool: no other becomes current instead."""
        self._gone[gone.name] = gone
        self._current, self._lost = None, gone.name

    def forget(self, name: str | None = None) -> Gone | None:
        """Forget an ended remote pool, so that cells run here again."""
        gone = self.gone(name)
        if gone is not None:
            del self._gone[gone.name]
            if self._lost == gone.name:
                self._lost = None
        return gone

    def fail(self, spec: PoolSpec, error: BaseException) -> None:
        """Record a remote pool that could not be started."""
        if spec.provider.survives_manager:
            told = str(error).partition("\n")[0] or "interrupted"
            self.miss(_gone(spec, f"was not started ({told})"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all live pools."""
        return tuple(pool.spec.name for pool in self.all())

    def all(self) -> list[Pool]:
        return [pool for name in list(self._by_name) if (pool := self.get(name)) is not None]

    def discard(self, pool: Pool, gone: Gone | None = None) -> None:
        """Forget a pool that has ended; ``gone`` tells how, by default that it was ended."""
        if self._by_name.get(pool.spec.name) is pool:
            del self._by_name[pool.spec.name]
        current = self._current == pool.spec.name
        if current:
            self._current = next(reversed(self._by_name), None)
        gone = gone or pool.gone
        if (gone is None and not pool.spec.provider.survives_manager) or pool.state == "taken":
            return
        gone = gone or _gone(pool.spec, f"has ended: {pool.why_expired}" if pool.expired else "was ended")
        if current and (pool.expired or self._current is None or pool.is_guest):
            self.miss(gone)
        else:
            self._gone[gone.name] = gone

    def end_all(self) -> None:
        """End all pools, but release kept and joined ones; do nothing in a fork."""
        for pool in self.all():
            if pool.owner == os.getpid():
                with contextlib.suppress(Exception):
                    if pool.spec.keep or pool.is_guest:
                        pool.release()
                    else:
                        pool.down()


def _gone(spec: PoolSpec, what: str) -> Gone:
    # Imported here: `%load_ext` needs this module, but not a pool's spec.
    from .registry.ended_pools import Gone

    return Gone.of(spec, what)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


pools = OpenPools()
# `sky.dict` and others use the current pool in this process.
outside_ranks.offered[:] = [lambda: pools.need(None).shared.shares]
