"""Processes of a pool that are stopped or do not answer, and their listeners.

`Control` detects silence. A stopped process is seen by its neighbours: a host watches its children, an agent its
ranks and its host, and this process the link and the local hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, TypeVar

from ...errors import PoolError
from ...node.system.stopped_processes import HOST, ON, PAUSE, STILL, StoppedProcesses
from ..base.event_loop import loop
from ..base.events import Listener, NoticeEvent, TroubleEvent
from ..base.timeouts import TIMEOUTS

T = TypeVar("T")
# The timeout of an answer while a process of the pool is stopped, and the interval of polls.
_HALTED, _LOOK = TIMEOUTS.answers.halted, TIMEOUTS.polls.answer
LINK = "link process"
LINK_KEY = "link"
_MOST_TEXT = 60
_WORDS = {
    HOST: "the host process, which keeps the pool's others,",
    LINK: "the link process, which holds the connections of this notebook,",
    "forkserver": "the forkserver, which makes the kernels,",
}
_REPLACE = "; two interrupts of its cell replace its kernel"
ANEW = "; `%sky restart` recreates the pool without it"


class Watchdog:
    """One pool's stopped and silent processes; changed on the loop only.

    Parameters
    ----------
    beside : callable
        Returns the processes that this one can watch: pid -> name as in `node.system.stopped_processes`.
    tell : callable
        Called with every change.
    """

    def __init__(self, beside: Callable[[], Mapping[int, str]], tell: Callable[[TroubleEvent], None]) -> None:
        # Descriptions of current troubles, by subject; new listeners get them all.
        self.troubles: dict[str, str] = {}
        self.beside, self._tell = beside, tell
        self._waiting: list[Listener] = []
        # The names of the ranks among their subjects.
        self._whose: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    # -- any thread --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def telling(self, listener: Listener) -> Iterator[None]:
        """Report to a listener why the pool does not answer, inside the context."""
        loop().loop.call_soon_threadsafe(self._begin)
        for key, text in list(self.troubles.items()):
            listener(TroubleEvent(text, about=key))
        self._waiting.append(listener)
        try:
            yield
        finally:
            self._waiting.remove(listener)

    def close(self) -> None:
        """Stop watching: this process manages the pool no more."""
        loop().loop.call_soon_threadsafe(self._end)

    @property
    def why(self) -> str:
        """All troubles as a suffix for messages; "" if there are none."""
        return "".join(f"; {text}" for text in list(self.troubles.values()))

    @property
    def keeper_stands_still(self) -> bool:
        """Whether a process that makes kernels is stopped."""
        return any(key.startswith("keeper ") for key in list(self.troubles))

    @property
    def is_halted(self) -> bool:
        """Whether a stopped process keeps the pool from answering."""
        return self.keeper_stands_still or LINK_KEY in self.troubles

    def answer(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run work on the loop; raise PoolError after ``seconds``.

        The timeout is shorter while the pool is known to be halted.
        """
        future, began = loop().submit(work), time.monotonic()
        try:
            while not futures.wait([future], timeout=_LOOK).done:
                taken = time.monotonic() - began
                if taken > (min(seconds, _HALTED) if self.is_halted else seconds):
                    raise PoolError(f"the pool has not answered in {taken:.0f} s{self.why or ': try again'}")
            return future.result()
        finally:
            future.cancel()

    # -- on the loop -------------------------------------------------------------------------------

    def tell(self, event: NoticeEvent) -> bool:
        """Send an event to the listeners; return whether there are any."""
        waiting = list(self._waiting)
        for listener in waiting:
            listener(event)
        return bool(waiting)

    def trouble(self, key: str, text: str) -> None:
        """Report a trouble that lasts until `over`."""
        if self.troubles.get(key) != text:
            self.troubles[key] = text
            self._tell(TroubleEvent(text, about=key))

    def over(self, key: str, text: str = "") -> None:
        """End a trouble; ``text`` is the message, if any."""
        self._whose.pop(key, None)
        if self.troubles.pop(key, None) is not None:
            self._tell(TroubleEvent(text, about=key, over=True))

    def forget(self, *, keepers: bool = True) -> None:
        """End all troubles but the link's.

        Those of keepers stay too unless ``keepers``.
        """
        for key in [key for key in self.troubles if key != LINK_KEY and (keepers or not key.startswith("keeper "))]:
            self.over(key)

    def renew(self, ranks: Iterable[int]) -> None:
        """End the troubles of ranks whose processes have been replaced."""
        names = {f"rank {rank}" for rank in ranks}
        for key in [key for key, who in self._whose.items() if who in names]:
            self.over(key)

    def on_standstill(self, change: Any, place: str = "") -> None:
        """Handle a report of `node.system.stopped_processes` about a process."""
        if not isinstance(change, Mapping):
            return
        who, pid, state = change.get("who"), change.get("pid"), change.get("state")
        if type(pid) is not int or not isinstance(who, str) or not who.isprintable() or len(who) > _MOST_TEXT:
            return
        rank = who.startswith("rank ")
        key = LINK_KEY if who == LINK else f"{'rank' if rank else 'keeper'} {pid}{place}"
        name = _named(who)
        if state == STILL:
            if rank:
                self._whose[key] = who
            self.trouble(
                key,
                f"{name} suspended{place}: process {pid} was stopped by a signal or a debugger; `kill -CONT {pid}` "
                f"there resumes it{_REPLACE if rank else '' if who == LINK else ANEW}",
            )
        else:
            self.over(key, f"{name} running again{place}" if state == ON else "")

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._look())

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        standstill = StoppedProcesses()
        while True:
            for change in standstill.look(self.beside()):
                self.on_standstill(change)
            await asyncio.sleep(PAUSE)


def _named(who: str) -> str:
    """Return a process's name for messages, with its verb."""
    if who.startswith("agents "):
        return f"the agents of nodes {who[7:]} are"
    if who.startswith("agent "):
        return f"the agent of node {who[6:]} is"
    return f"{_WORDS.get(who, who if who.startswith('rank ') else f'the {who}')} is"
