"""Interface of the agent for its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..journal.run_record import RunRecord
from ..protocol.host_config import HostConfig
from .kernel_client import RankKernel


class CallAhead(Protocol):
    """Short call of one rank, as seen by others that wait for that rank.

    Attributes
    ----------
    run : str
        Its name on this node.
    left : set of int
        Its rank, until it has ended or was withdrawn.
    record : RunRecord
        Its journal, once it is opened.
    """

    run: str
    left: set[int]
    record: RunRecord | None


class AgentContext(Protocol):
    """Agent of a node, as the parts that run function calls use it.

    Attributes
    ----------
    folder : Path
        The node's folder.
    config : HostConfig
        The pool's shape.
    node : int
        The node's number.
    incarnation : str
        Id of the agent; each agent of this node has another one.
    manager, heard : int, float
        The generation of the manager that is obeyed, and the time of its last call.
    guests_heard : dict of str to float
        The time of each guest's last call.
    runs : dict of str to RunRecord
        The known runs and calls.
    send : callable
        Sends a batch to the notebooks; None while the control plane is not connected.
    ranks : mapping of int to RankKernel
        The ranks of this node by their numbers.
    """

    folder: Path
    config: HostConfig
    node: int
    incarnation: str
    manager: int
    heard: float
    guests_heard: dict[str, float]
    runs: dict[str, RunRecord]
    send: Callable[[dict[str, Any]], None] | None

    @property
    def ranks(self) -> Mapping[int, RankKernel]: ...

    def open_short(self, run: str) -> bool:
        """Give a short call a journal if it has none; return False if it is unknown."""
        ...

    def short_calls_of(self, rank: int) -> Sequence[CallAhead]:
        """Return the single-rank calls that a rank is running, or has queued."""
        ...

    def known(self, run: str) -> RunRecord:
        """Return a run's record; raise LookupError if it is unknown."""
        ...

    def is_partial(self, ranks: Iterable[int]) -> bool:
        """Return True if these are not all ranks of the pool."""
        ...

    def open(self, run: str, mine: list[int], begin: dict[str, Any]) -> RunRecord:
        """Open a run's journal and return its record."""
        ...

    def on_event(self, rank: int, run: str, event: dict[str, Any]) -> None:
        """Record an event of a run, and forward it."""
        ...

    def forward(self, record: RunRecord) -> None:
        """Forward the journal's events that the manager has not been sent."""
        ...

    def flush_soon(self) -> None:
        """Forward all records after a short delay, in one batch."""
        ...

    def background(self, work: Any) -> None:
        """Run a coroutine that nobody awaits."""
        ...

    async def forget(self, run: str) -> None:
        """Delete a run's journal."""
        ...
