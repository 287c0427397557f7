"""How a pool outlives the notebook's kernel, in words for the run's view."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Outliving:
    """Way in which a pool outlives the kernel of the notebook that began a run on it.

    ``how`` is ``kept`` for a pool of ``--keep``, and ``joined`` for one that another notebook manages. It is ``lease``
    for a pool that ends with its kernel if the kernel ends in order, and after its lease of so many seconds if the
    kernel dies.
    """

    how: Literal["kept", "joined", "lease"]
    lease: float | None = None
