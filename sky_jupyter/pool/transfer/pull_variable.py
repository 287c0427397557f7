"""Pull of ranks' variables: a value, a list, or stacked or joined arrays."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...capture.blobs import fingerprint
from ...capture.ledger import Ledger
from ...errors import PoolError, SpecError
from ...node.serialization.sharded_arrays import ShardAssembler
from ...util.text import nearest, rank_label
from ..base.event_loop import Tick
from ..base.events import Listener
from .fetch_values import FetchedValue, ValuesContext, discard, load, not_rebuilt

HOWS = ("stack", "concat")
# Types whose shapes are compared before anything crosses the link.
_ARRAYS = ("numpy.ndarray", "torch.Tensor", "jaxlib._jax.ArrayImpl")


class PullContext(ValuesContext, Protocol):
    """The pool with its ranks."""

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """Return the ranks, by default all; raise SpecError for others."""
        ...


def pull(
    pool: PullContext,
    name: str,
    ranks: Sequence[int] | None,
    how: str | None,
    listener: Listener,
    tick: Tick,
    most: int | None = None,
) -> Any:
    """Fetch a variable of ranks.

    Parameters
    ----------
    pool : PullContext
        The pool.
    name : str
        Name of the variable.
    ranks : sequence of int, optional
        Ranks, by default all.
    how : str, optional
        ``"stack"`` for one array with a new first axis, the ranks; ``"concat"`` for the joined values, which is the
        whole of an array that spans ranks.
    listener : callable
        Receives the progress.
    tick : callable
        Called every poll.
    most : int, optional
        Bytes that each value may have; ranks refuse to write a larger one.

    Returns
    -------
    Any
        The value of a single rank; else a list in rank order, unless ``how`` is given.

    Raises
    ------
    SpecError
        If there is no such name or rank, or the values do not fit together.
    PoolError
        If a value cannot be fetched.
    """
    chosen = pool.check_ranks(ranks)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SpecError(f"{name!r} is not the name of a variable")
    if how is not None and how not in HOWS:
        raise SpecError(f"values are put together by {' or '.join(HOWS)}, not {how!r}{nearest(how, HOWS)}")
    content = {"name": name, "strict": True, "whole": how == "concat", "most": most}

    def check(found: Mapping[int, FetchedValue]) -> None:
        _check(name, found, how)

    found = pool.fetch(chosen, content, name, listener, tick, check)
    try:
        return _put_together(name, [found[rank] for rank in chosen], how)
    finally:
        for brought in found.values():
            discard(brought)


def _check(name: str, found: Mapping[int, FetchedValue], how: str | None) -> None:
    """Raise the errors that are known before anything crosses the link."""
    lacking = {rank: brought.lacks for rank, brought in found.items() if brought.lacks is not None}
    if len(lacking) == len(found):
        where = "no rank has" if len(found) > 1 else f"{rank_label(found)} has no"
        near = next(filter(None, lacking.values()), "")
        raise SpecError(f"{where} {name!r}{near}; `%sky names` lists what the nodes have")
    if lacking:
        have = [str(rank) for rank in found if rank not in lacking]
        lack = f"{rank_label(lacking)} lack{'s' if len(lacking) == 1 else ''}"
        raise SpecError(f"{lack} {name!r}; give the ranks that have it: --on {','.join(have)}")
    for rank, brought in found.items():
        if brought.gone:
            raise PoolError(f"{name!r} of rank {rank} cannot be brought here: {brought.gone}")
        if brought.unpicklable:
            raise PoolError(f"{name!r} of rank {rank} cannot be brought here: {brought.unpicklable}")
    shapes = {brought.shape for brought in found.values() if brought.type in _ARRAYS}
    if how == "stack" and len(shapes) > 1:
        raise SpecError(_differing(name, {rank: brought.shape for rank, brought in found.items()}))


def _differing(name: str, shapes: Mapping[int, Any]) -> str:
    by_shape: dict[Any, list[int]] = {}
    for rank, shape in shapes.items():
        by_shape.setdefault(shape, []).append(rank)
    told = "; ".join(f"{shape} on {rank_label(ranks)}" for shape, ranks in by_shape.items())
    return f"{name!r} cannot be stacked, as its shapes differ: {told}. --concat joins along the first axis"


def _put_together(name: str, found: Sequence[FetchedValue], how: str | None) -> Any:
    whole = ShardAssembler()
    values = []
    for brought in found:
        try:
            with whole.reading():
                values.append(load(brought))
        except Exception as error:
            raise PoolError(f"{name!r} of rank {brought.rank}: {not_rebuilt(error)}") from None
    if whole.arrays:
        if whole.missing:
            on = rank_label(brought.rank for brought in found)
            raise SpecError(
                f"{on} ha{'s' if len(found) == 1 else 've'} only a part of {name!r}; pull it from all ranks"
            )
        return values[0]
    if how is None:
        return values if len(values) > 1 else values[0]
    return together(name, values, how)


def together(name: str, values: list[Any], how: str) -> Any:
    """Stack or join values of ranks.

    Raises SpecError if their type does not allow it, or they do not fit together.
    """
    join: Callable[[list[Any]], Any] | None = {"stack": _stacking, "concat": _joining}[how](values)
    kinds = {f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.") for value in values}
    done = {"stack": "stacked", "concat": "joined"}[how]
    if join is None:
        raise SpecError(f"{name!r} cannot be {done}: it is {' and '.join(sorted(kinds))}; without --{how} it is a list")
    try:
        return join(values)
    except Exception as error:
        raise SpecError(f"{name!r} cannot be {done}: {error}") from None


def _are(values: Sequence[Any], module: str, *kinds: str) -> Any:
    """Return a module if it is loaded and all values have one of its types."""
    loaded = sys.modules.get(module)
    types = tuple(kind for kind in (getattr(loaded, name, None) for name in kinds) if kind is not None)
    return loaded if types and all(isinstance(value, types) for value in values) else None


def _stacking(values: Sequence[Any]) -> Callable[[list[Any]], Any] | None:
    if torch := _are(values, "torch", "Tensor"):
        return lambda tensors: torch.stack([tensor.detach() for tensor in tensors])
    arrays = _are(values, "numpy", "ndarray", "number", "bool_") or _are(values, "jax", "Array")
    if arrays or all(isinstance(value, (bool, int, float, complex)) for value in values):
        import numpy

        return lambda arrays: numpy.stack([numpy.asarray(array) for array in arrays])
    return None


def _joining(values: Sequence[Any]) -> Callable[[list[Any]], Any] | None:
    if torch := _are(values, "torch", "Tensor"):
        return lambda tensors: torch.cat([tensor.detach() for tensor in tensors])
    if _are(values, "numpy", "ndarray") or _are(values, "jax", "Array"):
        import numpy

        return lambda arrays: numpy.concatenate([numpy.asarray(array) for array in arrays])
    if pandas := _are(values, "pandas", "DataFrame", "Series"):
        return pandas.concat
    if polars := _are(values, "polars", "DataFrame", "Series"):
        return polars.concat
    if pyarrow := _are(values, "pyarrow", "Table"):
        return pyarrow.concat_tables
    for kind in (list, tuple):
        if all(isinstance(value, kind) for value in values):
            return lambda parts: kind(item for part in parts for item in part)
    return None


def note(ledger: Ledger, name: str, namespace: dict[str, Any], world_size: int) -> None:
    """Record in the ledger that a notebook's name has the ranks' value.

    The ranks keep their own, different values until the notebook assigns the name or modifies the value.
    """
    before = next((one for one in ledger.facts({}) if one.name == name), None)
    value = namespace[name]
    if before is not None and before.origin == "notebook":
        digest = fingerprint(value, namespace)
        if digest is not None:
            ledger.sent(name, digest, value, size=before.size)
            return
    known = before is not None and not before.gone
    ledger.nodes_wrote(
        [name],
        namespace,
        {name: ledger.uses(name)},
        ranks={name: before.ranks} if known and before is not None and before.ranks is not None else None,
        world_size=world_size,
        sizes={name: before.size if before is not None else None},
    )
