"""Timeouts and retries of a pool's start and end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from ...errors import BootstrapError, HostKeyError, LoginRefused, MachineError, ProvisionError, SkyError
from .timeouts import TIMEOUTS

T = TypeVar("T")
_TICK = TIMEOUTS.polls.retry


class Pauses:
    """Pauses that do not count in a time limit; made by one thread, read by any."""

    def __init__(self) -> None:
        self._past = 0.0
        self._since: float | None = None

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time in the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._past, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """The seconds of all pauses so far."""
        since = self._since
        return self._past + (0.0 if since is None else time.monotonic() - since)


async def within(
    work: Awaitable[T], option: str, limit: float, late: Callable[[str], SkyError], pauses: Pauses | None = None
) -> T:
    """Await work for ``limit`` seconds without ``pauses``, then raise ``late(why)``.

    ``option`` is the name of the limit in `Options`, for the message.
    """
    task = asyncio.ensure_future(work)
    end = time.monotonic() + limit
    try:
        while (left := end - time.monotonic() + (pauses.seconds if pauses else 0.0)) > 0:
            # Not `wait_for`: what the work itself raises may be a TimeoutError.
            await asyncio.wait({task}, timeout=left if pauses is None else max(left, _TICK))
            if task.done():
                return task.result()
        raise late(f"not done within {limit:g} s (Options({option}={limit:g}))")
    finally:
        task.cancel()


def not_prepared(why: str, phase: str) -> BootstrapError:
    """Return the error of nodes that were not prepared in time."""
    return BootstrapError(phase, f"preparing the nodes was {why}")


def not_made(why: str) -> ProvisionError:
    """Return the error of machines that did not exist in time."""
    return ProvisionError(f"having the machines was {why}")


async def attempts(make: Callable[[], Awaitable[T]], most: int, pause: float, tell: Callable[[str], None]) -> T:
    """Await ``make()`` up to ``most`` times while its errors are transient."""
    number = 1
    while True:
        try:
            return await make()
        except (MachineError, ProvisionError) as error:
            if number >= most or not may_pass(error):
                raise
            number += 1
            tell(f"{str(error).partition(chr(10))[0]}; attempt {number} of {most} in {pause:g} s")
        await asyncio.sleep(pause)


def may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed: rejected keys stay rejected."""
    if isinstance(error, ProvisionError):
        return error.passing
    return isinstance(error, MachineError) and not isinstance(error, (HostKeyError, LoginRefused))


def in_time(work: Callable[[], None], seconds: float, tick: Callable[[], None] = lambda: None) -> bool:
    """Run work in a thread for at most ``seconds``; return if it finished.

    Re-raises the error of the work. ``tick`` is called every poll.
    """
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, name="sky-end", daemon=True)
    end = time.monotonic() + seconds
    thread.start()
    while thread.is_alive() and time.monotonic() < end:
        # In slices: a pending interrupt is raised between them.
        thread.join(min(_TICK, max(0.0, end - time.monotonic())))
        tick()
    if raised:
        raise raised[0]
    return not thread.is_alive()
