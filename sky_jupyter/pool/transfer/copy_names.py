"""Copy of names between ranks, such as to the new kernel of a dead rank.

All names go in one pickle, so that objects that belong together stay together. The source writes it, the notebook
passes it on without reading it, and the targets assign the names as a cell would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...capture.blobs import blob_of
from ...capture.cell_names import analyse
from ...capture.collect import Binding, Capture
from ...capture.ledger import Ledger
from ...errors import PoolError, SpecError
from ...util.text import rank_label
from ..base.event_loop import Tick
from ..base.events import Listener
from ..runs.result import CellError, CellResult
from ..runs.run import Run
from .fetch_values import FetchedValue, discard
from .pull_variable import PullContext

# What the pickle is called on the targets, until its names are assigned.
_CARRIER = "_sky_copied"


class CellSubmission(Protocol):
    """The submission of cells."""

    def begin_cell(
        self,
        code: str,
        capture: Capture,
        *,
        ranks: Sequence[int] | None = None,
        on_send: Listener = ...,
        tick: Tick = ...,
    ) -> Run:
        """Start a cell on ranks."""
        ...


class CopyContext(PullContext, Protocol):
    """The pool, which runs the cell that assigns."""

    ledger: Ledger
    modules: set[str]

    @property
    def submission(self) -> CellSubmission: ...

    def attend(self, run: Run, tick: Tick = ...) -> CellResult:
        """Wait for a run and return its result; raise CellError if ranks failed."""
        ...

    def note_writes(self, run: Run, namespace: dict[str, Any]) -> None:
        """Record in the ledger which names a run has assigned."""
        ...


@dataclass(frozen=True)
class Copied:
    """Result of a copy; ``left`` has the names that were not copied, with reasons."""

    source: int
    targets: tuple[int, ...]
    names: tuple[str, ...]
    left: Mapping[str, str]

    def __str__(self) -> str:
        said = [f"{name}: not copied: {why}" for name, why in self.left.items()]
        if self.names:
            said.insert(0, f"{', '.join(self.names)}: copied from rank {self.source} to {rank_label(self.targets)}")
        return "\n".join(said)


def missing(pool: CopyContext, namespace: Mapping[str, Any]) -> dict[int, frozenset[str]]:
    """Return the names that each rank lacks and others have, except modules.

    Modules are imported again.
    """
    facts = pool.ledger.facts(namespace)
    own = [one for one in facts if one.origin == "nodes" and not one.gone and not one.stale]
    parted = {one.name: one.ranks for one in own if one.ranks is not None and one.name not in pool.modules}
    return {
        rank: frozenset(name for name, ranks in parted.items() if rank not in ranks)
        for rank in range(pool.spec.world_size)
    }


def plan(
    pool: CopyContext,
    namespace: Mapping[str, Any],
    names: Sequence[str] = (),
    source: int | None = None,
    targets: Sequence[int] | None = None,
) -> tuple[int, dict[frozenset[str], list[int]]]:
    """Return the rank to copy from, and the ranks to copy to by the names they get.

    Parameters
    ----------
    pool : CopyContext
        The pool.
    namespace : mapping
        The notebook's namespace.
    names : sequence of str
        The names; by default those that a target lacks.
    source : int, optional
        The rank to copy from; by default the first one that lacks least.
    targets : sequence of int, optional
        The ranks to copy to; by default those that lack a name, or all others if names are given.

    Returns
    -------
    (int, dict)
        The source, and the targets.

    Raises
    ------
    SpecError
        When there is no such rank, or the source is a target.
    """
    lacks = missing(pool, namespace)
    if asked := [*(targets or ()), *(() if source is None else (source,))]:
        pool.check_ranks(asked)
    given = set(targets or ())
    if source is None:
        others = [rank for rank in lacks if rank not in given]
        source = min(others, key=lambda rank: (len(lacks[rank]), rank), default=0)
    if source in given:
        raise SpecError(f"rank {source} is copied from, and cannot be one that is copied to")
    groups: dict[frozenset[str], list[int]] = {}
    for rank in lacks if targets is None else sorted(given):
        wanted = frozenset(names) or lacks[rank] - lacks[source]
        if rank != source and wanted:
            groups.setdefault(wanted, []).append(rank)
    return source, groups


def copy(
    pool: CopyContext,
    names: Collection[str],
    source: int,
    targets: Sequence[int],
    namespace: dict[str, Any],
    listener: Listener,
    tick: Tick,
) -> Copied:
    """Copy names from one rank to others, where they replace what has the same names.

    Parameters
    ----------
    pool : CopyContext
        The pool.
    names : collection of str
        The names.
    source : int
        The rank that has them.
    targets : sequence of int
        The ranks that get them.
    namespace : dict
        The notebook's namespace.
    listener : callable
        Receives the progress.
    tick : callable
        Called every poll.

    Returns
    -------
    Copied
        The names that were copied, and those that cannot be pickled.

    Raises
    ------
    SpecError
        When the source lacks a name.
    PoolError
        When the values cannot be fetched, or cannot be rebuilt on a target.
    """
    wanted = sorted(names)
    content = {"names": wanted, "strict": True}
    found = pool.fetch([source], content, f"names of rank {source}", listener, tick, _check)[source]
    try:
        blob = None if found.path is None else blob_of(found.path)
    finally:
        discard(found)
    there = [name for name in wanted if name not in found.left]
    if blob is None or not there:
        return Copied(source, tuple(targets), (), found.left)
    code = f"# copied from rank {source}: {', '.join(there)}\nglobals().update({_CARRIER}); del {_CARRIER}"
    capture = Capture((Binding(_CARRIER, "value", blob=blob),), names=analyse(code), namespace=namespace)
    run = pool.submission.begin_cell(code, capture, ranks=targets, on_send=listener, tick=tick)
    why = ""
    try:
        pool.attend(run, tick)
    except CellError as error:
        rank, first = next(iter(error.errors.items()))
        why = f"what rank {source} has could not be built on rank {rank}: {first}"
    finally:
        pool.note_writes(run, namespace)
    if why:
        # Not raised in the handler: IPython shows an error natively if its context is a group of errors.
        raise PoolError(why.replace(f"'{_CARRIER}' could not", "a value could not"))
    return Copied(source, tuple(targets), tuple(there), found.left)


def _check(found: Mapping[int, FetchedValue]) -> None:
    """Raise the errors that are known before anything crosses the link."""
    for rank, brought in found.items():
        if brought.lacks is not None:
            raise SpecError(f"rank {rank} has no {brought.lacks}; `%sky names` lists what the nodes have")
        if brought.gone:
            raise PoolError(f"the names of rank {rank} cannot be copied: {brought.gone}")


def lines(done: Iterable[Copied]) -> str:
    """Describe what was copied."""
    return "\n".join(filter(None, map(str, done)))


__all__ = ["Copied", "copy", "lines", "missing", "plan"]
