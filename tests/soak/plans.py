"""What a run of a soak shall do, what may become of it, and the cell that does it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

NODES, RANKS_PER_NODE = 2, 2
WORLD = NODES * RANKS_PER_NODE


@dataclass
class Planned:
    """What a run shall do, and what may become of it.

    Parameters
    ----------
    fates : dict of int to str
        How ranks end that do not end well.
    """

    number: int
    kind: str
    ranks: list[int]
    fates: dict[int, str] = field(default_factory=dict)
    ending: str = "value"
    pace: float = 0.0
    grace: float = 1.0
    call: str = ""
    sent: bytes | None = None
    id: str = ""
    # What else happened while it was on.
    presses: int = 0
    lost_nodes: set[int] = field(default_factory=set)
    killed_ranks: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        parts = [f"#{self.number} {self.call or 'cell'} {self.kind}, ends with {self.ending} on {self.ranks}"]
        parts += [f"fates {self.fates}"] if self.fates else []
        return ", ".join(parts)

    def cell(self, seed: int, marks: Path) -> str:
        """The code of it."""
        endings = {
            "value": "None",
            "large": f"words.large({self.number}, rank)",
            "digest": "words.digest(sent)",
            "meet": "words.meet(rank, joins=True)",
            "sleep": "time.sleep(30)",
            "ignore": "time.sleep(30)",
        }
        return textwrap.dedent(f"""\
            import os, signal, time
            import sky_jupyter as sky
            from tests.soak import words
            rank = sky.instance_info().rank
            soak_seen = [*globals().get("soak_seen", []), {self.number}]
            words.mark({str(marks)!r}, {self.number}, rank, "x")
            words.say({seed}, {self.number}, rank, {self.kind!r}, {self.pace})
            if {self.ending == "ignore"}:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            if {self.fates!r}.get(rank) == "sleeps":
                time.sleep(30)
            words.end({self.fates!r}.get(rank, ""), {self.number}, rank)
            ending = {endings[self.ending]}
            words.mark({str(marks)!r}, {self.number}, rank, "y")
            ({self.number}, rank, os.getpid(), soak_seen, ending)
        """)
