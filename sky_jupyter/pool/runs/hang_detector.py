"""Detection of hangs: silent runs whose ranks wait in a collective."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ...util.text import rank_label
from ..base.events import NoticeEvent
from ..base.timeouts import TIMEOUTS
from .run import Run
from .stacks import IDLE, RankStack, StackReport

AFTER = TIMEOUTS.answers.hang
_CONFIRM = TIMEOUTS.answers.hang_confirm
_LONGEST = TIMEOUTS.answers.hang_longest
# A main thread that exceeded either between two samples has made progress: seconds of CPU time, and voluntary
# context switches. The shortest collective takes more; handling a signal takes less.
_MOVED = 0.0003
_SLEPT = 3
_HINT = "the button Where shows the stacks; an interrupt frees them"

Look = Callable[[Run, bool], Awaitable[StackReport]]


class HangDetector:
    """Hang detector of one run; `attend` runs on the loop until cancelled.

    Parameters
    ----------
    run : Run
        The run.
    look : callable
        ``await look(run, native)`` returns the ranks' stacks.
    after : float
        Seconds of silence before the first check; the interval then doubles.
    confirm : float
        Seconds between a check's two samples.
    """

    def __init__(self, run: Run, look: Look, *, after: float = AFTER, confirm: float = _CONFIRM) -> None:
        self.run = run
        self.look = look
        self.after = after
        self.confirm = confirm

    async def attend(self) -> None:
        """Check the run whenever it is silent for long; report findings."""
        heard, pause, told = self.run.heard, self.after, ""
        looked = 0.0
        while True:
            if self.run.heard != heard:
                heard, pause = self.run.heard, self.after
            wait = max(heard, looked) + pause - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            # Ranks may wait for a rank that waits for the user.
            text = "" if self.run.questions.are_open else await self.examine()
            looked, pause = time.monotonic(), min(pause * 2, _LONGEST)
            if text and text != told:
                told = text
                self.run.events.note("hang", text)
                self.run.listener(NoticeEvent(f"{text}. {_HINT}", self.run.id))

    async def examine(self) -> str:
        """Return a description of the hang; "" if none is certain."""
        heard = self.run.heard
        first = await self.look(self.run, False)
        # A single rank waits for no other.
        if len(first.places) < 2 or not any(place.doing == "waits" for place in first.places):
            return ""
        await asyncio.sleep(self.confirm)
        second = await self.look(self.run, True)
        if self.run.heard != heard or not self.run.left or self.run.questions.are_open:
            return ""
        return verdict(first, second)


def verdict(first: StackReport, second: StackReport) -> str:
    """Compare two samples of a silent run; describe the hang, or return "".

    A hang is either ranks that wait for ranks elsewhere, or all ranks waiting.
    """
    before = {place.rank: place for place in first.places}
    stuck = [place for place in second.places if place.doing == "waits" and _same(before.get(place.rank), place)]
    ranks = {place.rank for place in stuck}
    others = [place for place in second.places if place.rank not in ranks and place.doing not in ("absent", "idle")]
    if not stuck or any(place.doing == "waits" or before[place.rank].doing == "waits" for place in others):
        # Some ranks make progress: the run is slow or busy.
        return ""
    text = second.summary()
    if others:
        return text
    if absent := [place.rank for place in second.places if place.doing == "absent"]:
        return f"{text}: what it waits for may be {rank_label(absent)}, which this run leaves out"
    if any(place.accelerated or place.cpu >= IDLE for place in stuck):
        # Other threads compute for them, or an accelerator may compute, whose progress is not visible.
        return ""
    return f"{text}: all of them, and nothing moves, perhaps with different shapes, or in another order on each rank"


def _same(before: RankStack | None, now: RankStack) -> bool:
    """Return whether a main thread has not moved between two samples."""
    if before is None or before.doing != "waits" or before.frames != now.frames:
        return False
    return abs(now.ran[0] - before.ran[1]) < _MOVED and abs(now.switches[0] - before.switches[1]) <= _SLEPT
