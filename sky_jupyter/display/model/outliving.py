"""How a pool outlives the notebook's kernel, in words for the run's view."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Outliving:
    """How a pool outlives the kernel of the notebook that began a run on it.

    ``how`` is ``kept`` for a pool of ``--keep``, ``joined`` for one that another notebook manages, and ``lease`` for
    one that ends with its kernel in order, and with its lease of so many seconds where the kernel dies.
    """

    how: Literal["kept", "joined", "lease"]
    lease: float | None = None
