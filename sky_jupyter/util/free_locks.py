"""asyncio's locks, taken without waiting."""

from __future__ import annotations

import asyncio


def taken_now(lock: asyncio.Lock) -> bool:
    """Take a lock if it is free and nobody waits for it; return whether it was taken."""
    taking = lock.acquire()
    try:
        taking.send(None)
    except StopIteration:
        return True
    taking.close()
    return False
