"""Random numbers of Keras in a rank: common ones, and a rank's own.

Code that all ranks run draws the same numbers on each rank, so that initial weights agree. A cell or call that leaves
out some ranks draws from a separate stream; otherwise the ranks would differ afterwards.
"""

from __future__ import annotations

import contextlib
import random
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED

_KERAS = (GLOBAL_RANDOM_SEED, GLOBAL_SEED_GENERATOR)


@dataclass(frozen=True)
class _Stream:
    """State of the generators of Python, numpy, Keras and torch."""

    python: Any
    numpy: Any
    keras: tuple[Any, ...]
    torch: Any = None

    @classmethod
    def now(cls) -> _Stream:
        kept = tuple(global_state.get_global_attribute(name) for name in _KERAS)
        return cls(random.getstate(), np.random.get_state(), kept, _torch() and _torch().get_rng_state())

    def go_on(self) -> None:
        """Restore this state in all these generators."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        for name, value in zip(_KERAS, self.keras, strict=True):
            global_state.set_global_attribute(name, value)
        if self.torch is not None:
            _torch().set_rng_state(self.torch)


# At most one item: the common seed from which this rank's own stream began, and the stream.
_own: list[tuple[Any, _Stream]] = []


def _torch() -> Any:
    return sys.modules.get("torch") if keras.backend.backend() == "torch" else None


@contextlib.contextmanager
def own(rank: int) -> Iterator[None]:
    """Use a rank's own random numbers in the block, derived from the common seed.

    Afterwards the common numbers continue.
    """
    common = _Stream.now()
    seed = common.keras[0]
    if _own and _own[0][0] == seed:
        _own[0][1].go_on()
    else:
        keras.utils.set_random_seed(zlib.crc32(f"{seed} of rank {rank}".encode()) % 2**31)
    try:
        yield
    finally:
        _own[:] = [(seed, _Stream.now())]
        common.go_on()
