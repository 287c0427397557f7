"""The same training in a cell and in two processes by hand, from the first step to the last."""

from __future__ import annotations

from pathlib import Path

from .byhand import ByHand
from .engines import Ours
from .measure import Options, Row, by_turns, rows

OURS = "in a cell"
BY_HAND = "2 processes by hand"
SCRIPT = Path(__file__).resolve().parent / "scripts" / "digits.py"
PREPARE = "import sky_jupyter as sky; me = sky.instance_info(); train = prepared(me.rank, me.world_size)"
SECONDS = 5.0
QUICK_SECONDS = 2.0


def measure(options: Options) -> list[Row]:
    """Both jobs live side by side and train by turns; while one does, the other only waits."""
    pool = Ours()
    pool.start(2, ("jax", "keras"))
    try:
        pool.run(f"{SCRIPT.read_text()}\n{PREPARE}")
        by_hand = ByHand()
        try:
            epochs = calibrated(by_hand, QUICK_SECONDS if options.quick else SECONDS)
            jobs = {OURS: lambda: {"s": in_cell(pool, epochs)}, BY_HAND: lambda: {"s": by_hand.train(epochs)}}
            samples = by_turns(jobs, options.times(8, quick=2))
        finally:
            by_hand.close()
    finally:
        pool.close()
    return rows(f"{epochs} epochs of Keras on 2 ranks", samples, "s", ours=OURS, best=1.02)


def in_cell(pool: Ours, epochs: int) -> float:
    """Train in a cell; the seconds that the slowest rank took."""
    said = pool.run(f"print(); print('seconds', train({epochs}))")
    return max(float(line.split()[1]) for text in said for line in text.splitlines() if line.startswith("seconds"))


def calibrated(by_hand: ByHand, seconds: float) -> int:
    """The epochs that take about so long on this machine."""
    few = 10
    took = min(by_hand.train(few) for _ in range(2))
    return max(few, round(few * seconds / took))
