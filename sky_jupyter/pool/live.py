"""The pools that this process manages: found by name, one of them current; all end with it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from ..errors import PoolError, nearest
from ..node import asking
from .manager import Pool


class LivePools:
    """Held by the module as `pools`; the magics and `Compute` share it."""

    def __init__(self) -> None:
        self._by_name: dict[str, Pool] = {}
        self._current: str | None = None
        self._watching = False
        self._lock = threading.Lock()
        # Pools that are being started, and whether the main thread waits for them.
        self._starting: dict[Pool, bool] = {}

    @property
    def starting(self) -> list[Pool]:
        """Pools that are being started, and are not found by name yet."""
        return list(self._starting)

    @contextlib.contextmanager
    def being_started(self, pool: Pool) -> Iterator[None]:
        """This thread starts a pool."""
        self._starting[pool] = threading.current_thread() is threading.main_thread()
        try:
            yield
        finally:
            with self._lock:
                del self._starting[pool]

    def interrupt_start(self, pool: Pool) -> bool:
        """Interrupt the main thread where it is starting this pool; whether it is. Callable from any thread."""
        with self._lock:
            if pool not in self._starting:
                return False
            if not self._starting[pool]:
                raise PoolError(f"pool {pool.spec.name!r} is being started by a thread, which cannot be interrupted")
            # As the terminal's interrupt would: where the pool's start fails, nothing of it is left.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return True

    def add(self, pool: Pool) -> None:
        """Take a pool in, under its name, and make it current."""
        if not self._watching:
            self._watching = True
            # A host notices the end of its owner by itself; this only makes an orderly end quicker.
            atexit.register(self.end_all)
        self._by_name[pool.spec.name] = pool
        self._current = pool.spec.name

    def get(self, name: str) -> Pool | None:
        """The live pool of this name, or None."""
        pool = self._by_name.get(name)
        if pool is not None and pool.state == "ended":
            self.discard(pool)
            return None
        return pool

    def need(self, name: str | None) -> Pool:
        """The live pool of this name, or the current one.

        Raises
        ------
        PoolError
            When there is none; it says which there are.
        """
        pool = self.current if name is None else self.get(name)
        if pool is None:
            there = [item.spec.name for item in self.all()]
            what = "there is no pool" if name is None else f"there is no pool {name!r}{nearest(name, there)}"
            raise PoolError(f"{what}; live: {', '.join(there) or 'none'}. `%sky up` makes one")
        return pool

    @property
    def current(self) -> Pool | None:
        """The pool that was used last, while it lives."""
        return self.get(self._current) if self._current is not None else None

    def use(self, pool: Pool) -> None:
        """Make a pool the current one."""
        self._current = pool.spec.name

    def all(self) -> list[Pool]:
        """All live pools."""
        return [pool for name in list(self._by_name) if (pool := self.get(name)) is not None]

    def discard(self, pool: Pool) -> None:
        """Forget a pool that has ended."""
        if self._by_name.get(pool.spec.name) is pool:
            del self._by_name[pool.spec.name]
        if self._current == pool.spec.name:
            self._current = next(reversed(self._by_name), None)

    def end_all(self) -> None:
        """End every pool that is not kept, and let go of the others; not in a fork of the process that made them."""
        for pool in self.all():
            if pool.owner == os.getpid():
                with contextlib.suppress(Exception):
                    if pool.spec.keep:
                        pool.release()
                    else:
                        pool.down()


pools = LivePools()
# What `sky.dict` and its like mean in this process.
asking.outside[:] = [lambda: pools.need(None).shared.shares]
