"""What function calls share: their view of the pool, and a function on its nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...capture.blobs import Blob
from ...capture.collect import Capture
from ..base.event_loop import Tick, no_tick
from ..base.events import Listener, ignore
from ..runs.run import Run
from ..transfer.fetch_values import ValuesContext

if TYPE_CHECKING:
    from ..hosts.launch import Host
    from ..transfer.python_versions import PoolPythons
    from .supervisor import Supervisor


@dataclass
class FunctionBundle:
    """What calls share on the nodes: a function and the values it reads."""

    content: dict[str, Any]
    capture: Capture
    # The run that owns the files.
    run: Run
    # The modules that the nodes have been sent for its calls.
    modules: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.modules |= self.capture.modules


class Submission(Protocol):
    """The submission of runs as seen by calls."""

    def new_run(self, ranks: Sequence[int], listener: Listener, capture: Capture) -> Run: ...

    def ship(self, run: Run, on_send: Listener, tick: Tick, call: Blob | None = None) -> dict[str, Any]:
        """Send what a run needs to its nodes."""
        ...

    def register(self, runs: Sequence[Run]) -> None:
        """Register runs about to start; raise PoolError if the pool has ended meanwhile."""
        ...


class TaskContext(ValuesContext, Protocol):
    """The pool as seen by its calls."""

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def pythons(self) -> PoolPythons: ...

    @property
    def submission(self) -> Submission: ...

    @property
    def shape(self) -> int: ...

    @property
    def is_guest(self) -> bool: ...

    def surround(
        self,
        modules: frozenset[str],
        listener: Listener,
        hosts: Sequence[Host] | None = None,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
        *,
        run: str = "",
        put: bool = False,
        again: bool = False,
        text: str = "",
        follow: bool = True,
        within: float = 0.0,
    ) -> dict[str, Any]:
        """Return what ranks need besides values; send new files, packages and settings."""
        ...

    def note_writes(self, run: Run, namespace: dict[str, Any]) -> None:
        """Record what a run has assigned on the nodes."""
        ...

    def explaining_end(self) -> contextlib.AbstractContextManager[None]:
        """Raise the reason of the pool's end, instead of the error that it caused."""
        ...
