"""Cell on the short way: ranks run it as usual and report its end, unjournaled.

Such a cell ends soon, and prints, shows and asks nothing; otherwise it is opened, and continues the long way.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from ...node.protocol import short_call_frames as frames
from ...node.protocol.journal_events import checked
from ...node.protocol.shared_bytes import SharedBytes, SpareFiles
from ..base.timeouts import TIMEOUTS
from ..runs.run import Run

_SHORT = TIMEOUTS.polls.short_calls


class ShortCell:
    """Cell on the short way, made by `DirectCalls`; see `DirectCall` for attributes.

    Parameters
    ----------
    run : Run
        Its run, which knows nothing of the short way.
    content : dict
        The request to its ranks.
    begin : dict
        What the journal tells a later manager, if the cell is opened.

    Attributes
    ----------
    ends : dict
        By rank, the end event that its run is given.
    """

    everywhere = stays = True
    key = arguments = b""

    def __init__(self, run: Run, content: dict[str, Any], begin: dict[str, Any]) -> None:
        self.id, self.ranks = run.id, list(run.outcomes)
        self.left = set(self.ranks)
        self.ends: dict[int, dict[str, Any]] = {}
        self.incarnations: dict[int, str] = {}
        self.sent = self.opened = False
        self.began = time.perf_counter()
        self._about = {"title": begin["code"], "all": True, "begin": begin, "cell": content}
        if content.get("asks"):
            self._about["asks"] = True

    def packed(
        self, known: set[bytes], ranks: list[int], *, here: bool, spare: SpareFiles | None = None
    ) -> tuple[bytes, list[SharedBytes]]:
        """Return its frame."""
        return frames.pack(frames.CALL, self.id, self.key, self.arguments, ranks, self._about), []

    def take(self, value: Sequence[Any], nodes: Collection[int], per_node: int) -> bool:
        """Take a rank's end; return False if invalid, not awaited or not on ``nodes``."""
        rank, _, _, _, end = value
        if rank not in self.left or rank // per_node not in nodes:
            return False
        if (sound := checked({**end, "kind": "end", "rank": rank})) is None:
            return False
        self.left.discard(rank)
        self.ends[rank] = sound
        return True

    @property
    def is_late(self) -> bool:
        """Whether it has taken longer than the short way allows."""
        return time.perf_counter() - self.began > _SHORT
