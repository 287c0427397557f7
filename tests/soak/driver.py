"""The soak: random actions on one kept pool, under a seed, with each run's record checked.

    python -m tests.soak.driver --seconds 3600 --seed 7

A manager in a process of its own (`tests.soak.manager`) does what this one decides. For a first
part of the time everything may happen: managers, agents, schedulers and kernels are killed, ranks
fail in every way. Then comes a steady part in which the manager, the agents and the kernels of the
first ranks live on, so that their memory can be seen to stay as it is.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.soak import leftovers
from tests.soak.actions import Actions
from tests.soak.child import Failed, Hang
from tests.soak.diary import Diary
from tests.soak.memory import Memory
from tests.soak.stage import Stage

# So much of the time is rough.
ROUGH = 0.4
_LOOKS = 40
_TOLD = 4000
_SHORTEST, _LONGEST = 3.0, 30.0


class Soak:
    """One soak; made and used once.

    Parameters
    ----------
    folder : Path
        Empty; what is written stays there.
    seconds : float
        How long, without the pool's start and end.
    torch : bool
        Whether the ranks have a framework, so that they meet in collectives.
    """

    def __init__(self, folder: Path, seconds: float, seed: int, *, torch: bool = True) -> None:
        self.folder, self.seconds, self.seed, self.torch = folder, seconds, seed, torch
        self.diary = Diary(folder, aloud=True)
        self.stage = Stage(folder, seed, self.diary)
        self.actions = Actions(self.stage, seed, torch=torch)
        self.memory = Memory()
        self.counts: collections.Counter[str] = collections.Counter()
        self.took: collections.Counter[str] = collections.Counter()

    def run(self) -> None:
        """Soak, end the pool, and see that nothing is left; what failed is in the diary."""
        self.diary.note(f"seed {self.seed}")
        try:
            self.stage.up(torch=self.torch)
            self.phase(self.actions.rough(), self.seconds * ROUGH)
            self.diary.note("the steady part begins")
            self.actions.warm_up()
            self.actions.is_steady = True
            self.phase(self.actions.steady(), self.seconds * (1 - ROUGH))
            for text in [*self.memory.problems(), *leftovers.end(self.stage)]:
                self.diary.fail(text)
        except Exception as error:
            if isinstance(error, Hang):
                (self.folder / "hang.txt").write_text(leftovers.tell(self.stage))
                self.diary.note(f"what hangs is told in {self.folder / 'hang.txt'}")
                # That file is gone with the machine of a CI run.
                print(f"the manager is at:\n{self.stage.log.read_text(errors='replace')[-_TOLD:]}")
            self.diary.fail("".join(traceback.format_exception(error)))
        finally:
            leftovers.remove(self.stage)

    def phase(self, actions: dict[Callable[[], None], int], seconds: float) -> None:
        """Do what chance decides, and look at sizes now and then; the steady part's are kept."""
        end = time.monotonic() + seconds
        every = max(_SHORTEST, min(_LONGEST, seconds / _LOOKS))
        next_look = time.monotonic()
        while time.monotonic() < end and not self.diary.full:
            if time.monotonic() >= next_look:
                self.measure()
                next_look = time.monotonic() + every
            (action,) = self.actions.random.choices(list(actions), list(actions.values()))
            self.do(action)

    def do(self, action: Callable[[], None]) -> None:
        """One action; what the manager raised meanwhile is a failure, and no end."""
        name, began = action.__name__, time.monotonic()
        try:
            action()
        except Failed as error:
            self.diary.fail(f"{name}: {error}")
        self.counts[name] += 1
        self.took[name] += time.monotonic() - began

    def measure(self) -> None:
        """Sizes of all processes and folders now; what lies about that should not is told."""
        self.stage.collect_garbage(self.actions.number)
        if self.actions.is_steady:
            self.memory.sample(self.actions.number, self.stage.pids, self.stage.facts)
        for text in leftovers.of_runs(self.stage):
            self.diary.fail(text)

    @property
    def report(self) -> str:
        """How much was done, what it took, the table of sizes, and what failed."""
        done = ", ".join(
            f"{name} {count} ({self.took[name] / count:.1f} s each)" for name, count in sorted(self.counts.items())
        )
        head = f"seed {self.seed}, {self.seconds:.0f} s, {self.actions.number} runs: {done}"
        return f"{head}\n{self.memory.table}\n{self.diary.text}"


def main() -> int:
    """Soak by hand, or for `tests/soak/test_soak.py`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.Random().randrange(1 << 30))
    parser.add_argument("--plain", action="store_true", help="without torch")
    parser.add_argument("--folder", type=Path, help="where to write; a new one unless given")
    options = parser.parse_args()
    # Whoever ends it so has its pool ended too; an interrupt may be ignored where it was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, options.seconds, options.seed, torch=not options.plain)
    soak.run()
    print(soak.report)
    print(f"all actions: {folder / 'actions.log'}")
    return 1 if soak.diary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
