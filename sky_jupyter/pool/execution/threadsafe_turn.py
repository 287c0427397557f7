"""Lock that the loop waits for, and that any thread may take where it is free."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque


class ThreadsafeTurn:
    """Lock for one holder at a time, in the order of those who wait for it on the loop."""

    def __init__(self) -> None:
        # Held for moments only.
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take the turn if it is free; return whether it was."""
        with self._mutex:
            if self._is_taken:
                return False
            self._is_taken = True
            return True

    async def acquire(self) -> None:
        """Wait for the turn, and take it."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._mutex, contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled():
                # It has just been given the turn.
                self.release()
            raise

    def release(self) -> None:
        """Pass the turn on; in any thread."""
        with self._mutex:
            if not self._waiters:
                self._is_taken = False
                return
            waiter = self._waiters.popleft()
        waiter.get_loop().call_soon_threadsafe(self._give, waiter)

    def _give(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            self.release()
        else:
            waiter.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()
