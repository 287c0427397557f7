"""The watch over a silent run: says which ranks wait in a collective that can never complete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ...util.text import rank_label
from ..base.events import NoticeEvent
from ..base.timeouts import TIMEOUTS
from .run import Run
from .stacks import IDLE, Place, Where

AFTER = TIMEOUTS.answers.hang
_CONFIRM = TIMEOUTS.answers.hang_confirm
_LONGEST = TIMEOUTS.answers.hang_longest
# A main thread that did more than this between two looks has gone on: seconds of CPU time, and how
# often it went to sleep. The shortest collective takes more; answering a signal takes less.
_MOVED = 0.0003
_SLEPT = 3
_HINT = "the button Where shows the stacks; an interrupt frees them"

Look = Callable[[Run, bool], Awaitable[Where]]


class Watch:
    """One a run; `attend` runs on the loop until it is cancelled.

    Parameters
    ----------
    run : Run
        What is watched over.
    look : callable
        ``await look(run, native)`` says where the ranks are.
    after : float
        Seconds of silence after which it looks; then after twice as long, and so on.
    confirm : float
        Seconds between the two looks that make it sure.
    """

    def __init__(self, run: Run, look: Look, *, after: float = AFTER, confirm: float = _CONFIRM) -> None:
        self.run = run
        self.look = look
        self.after = after
        self.confirm = confirm

    async def attend(self) -> None:
        """Look whenever the run has been silent for long, and tell its listener what is new."""
        heard, pause, told = self.run.heard, self.after, ""
        looked = 0.0
        while True:
            if self.run.heard != heard:
                heard, pause = self.run.heard, self.after
            wait = max(heard, looked) + pause - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            text = await self.examine()
            looked, pause = time.monotonic(), min(pause * 2, _LONGEST)
            if text and text != told:
                told = text
                self.run.listener(NoticeEvent(f"{text}. {_HINT}", self.run.id))

    async def examine(self) -> str:
        """What is wrong, in one line; empty where nothing is, or nothing can be told."""
        heard = self.run.heard
        first = await self.look(self.run, False)
        # One rank alone waits for nobody.
        if len(first.places) < 2 or not any(place.doing == "waits" for place in first.places):
            return ""
        await asyncio.sleep(self.confirm)
        second = await self.look(self.run, True)
        if self.run.heard != heard or not self.run.left:
            return ""
        return verdict(first, second)


def verdict(first: Where, second: Where) -> str:
    """What two looks at a silent run say together: ranks that wait for ranks that are elsewhere, or all."""
    before = {place.rank: place for place in first.places}
    stuck = [place for place in second.places if place.doing == "waits" and _same(before.get(place.rank), place)]
    ranks = {place.rank for place in stuck}
    others = [place for place in second.places if place.rank not in ranks and place.doing not in ("absent", "idle")]
    if not stuck or any(place.doing == "waits" or before[place.rank].doing == "waits" for place in others):
        # Some come and go: the run is slow, or busy, and may still be well.
        return ""
    text = second.summary()
    if others:
        return text
    if absent := [place.rank for place in second.places if place.doing == "absent"]:
        return f"{text}: what it waits for may be {rank_label(absent)}, which this run leaves out"
    if any(place.accelerated or place.cpu >= IDLE for place in stuck):
        # Something computes for them, or an accelerator may, which nobody here could see.
        return ""
    return f"{text}: all of them, and nothing moves, perhaps with different shapes, or in another order on each rank"


def _same(before: Place | None, now: Place) -> bool:
    """Whether a main thread is where it was, and did nothing in between."""
    if before is None or before.doing != "waits" or before.frames != now.frames:
        return False
    return abs(now.ran[0] - before.ran[1]) < _MOVED and abs(now.switches[0] - before.switches[1]) <= _SLEPT
