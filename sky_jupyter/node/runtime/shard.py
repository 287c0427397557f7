"""Sharding of data over the ranks: each rank takes its part, by one rule.

No framework is imported for it: an array's type is recognised by its module and its attributes.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, overload

from ...errors import SpecError
from ...util.validate import is_whole
from .instance_info import instance_info

if TYPE_CHECKING:
    from typing_extensions import Unpack

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
# Lengths and world sizes that were warned of, so that a loop over epochs warns once.
_warned: set[tuple[int, int]] = set()


class _How(TypedDict, total=False):
    shuffle: bool
    seed: int
    drop_last: bool
    node: int | None
    total_nodes: int | None


@overload
def shard(array: A, /, **how: Unpack[_How]) -> A: ...
@overload
def shard(first: A, second: B, /, **how: Unpack[_How]) -> tuple[A, B]: ...
@overload
def shard(first: A, second: B, third: C, /, **how: Unpack[_How]) -> tuple[A, B, C]: ...
@overload
def shard(first: A, second: B, third: C, fourth: D, /, **how: Unpack[_How]) -> tuple[A, B, C, D]: ...
@overload
def shard(*arrays: Any, **how: Unpack[_How]) -> tuple[Any, ...]: ...
def shard(
    *arrays: Any,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    node: int | None = None,
    total_nodes: int | None = None,
) -> Any:
    """Return this rank's part of each array.

    Without `drop_last`, rank r gets the items r, r + world_size, r + 2 * world_size, …: every item is on exactly one
    rank, and lengths differ by at most one. With `drop_last`, it gets block r of `world_size` contiguous blocks of
    equal length, and the rest of the items is left out. Ranks that train in step need equal lengths: give
    `drop_last=True` unless the length is a multiple of `world_size`.

    Parameters
    ----------
    *arrays : list, tuple, str, range, numpy, torch, jax, pandas or datasets object
        Arrays of equal lengths. The same items are taken from all, so that pairs stay pairs.
    shuffle : bool
        Whether to put the items in a random order first, the same on all ranks.
    seed : int
        Selects the random order; use the epoch's number for a new order in each epoch.
    drop_last : bool
        Whether all ranks get the same number of items; see above.
    node : int, optional
        The number of the part; by default this rank's number. Skyward's node is a rank here.
    total_nodes : int, optional
        The number of parts; by default the pool's number of ranks. If both are given, no pool is needed.

    Returns
    -------
    object or tuple
        One part for one array, a tuple of parts for several. Each has its array's type, but a shuffled range becomes a
        list.

    Raises
    ------
    SpecError
        When lengths differ, or an argument has no length or no items by number.
    NotInPoolError
        When it is called outside a pool.

    Warns
    -----
    UserWarning
        On rank 0, when ranks get different lengths.
    """
    if not arrays:
        raise SpecError("shard needs at least one array, as in sky.shard(x, y)")
    length = common_length({f"argument {at} of shard": array for at, array in enumerate(arrays, 1)})
    rank, world_size = _place(node, total_nodes)
    if node is None:
        _warn_if_uneven(length, rank, world_size, drop_last)
    chosen = indices(length, rank, world_size, shuffle, seed, drop_last)
    parts = tuple(take(array, chosen) for array in arrays)
    return parts[0] if len(parts) == 1 else parts


def _place(node: int | None, total_nodes: int | None) -> tuple[int, int]:
    """Return the number of the part and of all parts; by default this rank's."""
    if node is None or total_nodes is None:
        info = instance_info()
        node = info.rank if node is None else node
        total_nodes = info.world_size if total_nodes is None else total_nodes
    if not is_whole(total_nodes) or not is_whole(node, 0, total_nodes - 1):
        raise SpecError(f"shard has no part {node!r} of {total_nodes!r}: parts are numbered from 0")
    return node, total_nodes


def common_length(arrays: Mapping[str, Any]) -> int:
    """Return the common length of named arrays.

    Raises SpecError when lengths differ, or when something has no length or no items by number.
    """
    lengths = [_length(what, array) for what, array in arrays.items()]
    if len(set(lengths)) > 1:
        raise SpecError(
            f"shard takes the same index set for all arrays, so their lengths must be equal, "
            f"not {', '.join(map(str, lengths))}"
        )
    return lengths[0]


def part(array: Any, rank: int, world_size: int) -> Any:
    """Return a rank's part as an object that does not share the whole's memory.

    Raises SpecError when its items cannot be taken.
    """
    mine = take(array, indices(len(array), rank, world_size))
    if _of(array, "torch") and hasattr(mine, "clone"):
        # A view would be pickled together with the whole array.
        return mine.detach().clone().requires_grad_(mine.requires_grad)
    if hasattr(mine, "iloc"):
        return mine.copy()
    if _of(array, "datasets"):
        return _whole_dataset(mine)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(mine, numpy.ndarray):
        return mine if mine.flags.c_contiguous else mine.copy(order="C")
    return mine


def _whole_dataset(chosen: Any) -> Any:
    """Copy a datasets object so that it has a table of its own."""
    # The chosen rows are still a view of the whole table; this copies them.
    table = chosen.with_format("arrow")[:].combine_chunks()
    made = type(chosen)(table, info=chosen.info, split=chosen.split, fingerprint=chosen._fingerprint)
    made.set_format(**chosen.format)
    return made


def indices(
    n: int, rank: int, world_size: int, shuffle: bool = False, seed: int = 0, drop_last: bool = False
) -> Sequence[int]:
    """Return the numbers of a rank's items; a range if they are not shuffled."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        # Other types would hash differently in each process, and the ranks would disagree.
        raise SpecError(f"seed must be a whole number, not {seed!r}")
    mine = range(rank, n, world_size)
    if drop_last:
        size = n // world_size
        mine = range(rank * size, (rank + 1) * size)
    if not shuffle:
        return mine
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return [order[index] for index in mine]


def take(array: Any, chosen: Sequence[int]) -> Any:
    """Return the chosen items of an array as an object of its type."""
    if type(array) in (str, bytes, bytearray, list, tuple) and isinstance(chosen, range):
        return array[_slice(chosen)]
    if isinstance(array, str):
        return "".join(map(array.__getitem__, chosen))
    if isinstance(array, (bytes, bytearray)):
        return type(array)(array[index] for index in chosen)
    if isinstance(array, range):
        if isinstance(chosen, range):
            return array[_slice(chosen)]
        # A range cannot be out of order.
        return [array[index] for index in chosen]
    if isinstance(array, (list, tuple)):
        return _like(array, [array[index] for index in chosen])
    if hasattr(array, "iloc"):  # pandas
        return array.iloc[_slice(chosen) if isinstance(chosen, range) else list(chosen)]
    if _of(array, "datasets"):
        return array.select(chosen)
    try:
        return array[_index(array, chosen)]
    except (TypeError, IndexError, KeyError, ValueError, NotImplementedError) as error:
        how = "by a slice" if isinstance(chosen, range) else "by a list of numbers, as shuffle=True does"
        raise SpecError(
            f"shard cannot take items of {_kind(array)} {how}: {error}; make a list or an array of it first"
        ) from error


def _index(array: Any, chosen: Sequence[int]) -> Any:
    """Return the index of the chosen items for a numpy, torch or jax array."""
    if isinstance(chosen, range):
        # Arrays that have views return one: nothing is copied.
        return _slice(chosen)
    if _of(array, "torch") and hasattr(array, "device"):
        torch = sys.modules["torch"]
        return torch.as_tensor(chosen, dtype=torch.long, device=array.device)
    numpy = sys.modules.get("numpy")
    # jax refuses a list, and numpy takes an empty one for floats.
    return chosen if numpy is None else numpy.asarray(chosen, dtype=numpy.intp)


def _like(array: Any, items: list[Any]) -> Any:
    """Build a sequence of the array's type; a plain one if that fails."""
    if type(array) in (list, tuple):
        return type(array)(items)
    if hasattr(array, "_fields"):  # a namedtuple's fields are not items of a data set
        raise SpecError(f"shard cannot split {_kind(array)}, whose items are fields; give its fields one by one")
    try:
        return type(array)(items)
    except TypeError:
        return items if isinstance(array, list) else tuple(items)


def _slice(numbers: range) -> slice:
    return slice(numbers.start, numbers.stop, numbers.step)


def _length(what: str, array: Any) -> int:
    what = f"{what}, {_kind(array)},"
    if isinstance(array, (Mapping, Set)):
        raise SpecError(f"{what} has no order by number; give lists or arrays, such as its values one by one")
    if not hasattr(array, "__getitem__") or not hasattr(array, "__len__"):
        raise SpecError(f"{what} has no length or no items by number; make a list or an array of it first")
    try:
        return len(array)
    except TypeError as error:  # arrays of no dimension, streamed data sets
        raise SpecError(f"{what} has no length: {error}") from None


def _warn_if_uneven(n: int, rank: int, world_size: int, drop_last: bool) -> None:
    # Only rank 0 warns: all ranks know the same.
    if drop_last or rank != 0 or n % world_size == 0 or (n, world_size) in _warned:
        return
    _warned.add((n, world_size))
    warnings.warn(uneven_text(n, world_size), UserWarning, stacklevel=3)


def uneven_text(n: int, world_size: int, what: str = "shard", advice: str = "") -> str:
    """Return the warning for ranks of different lengths; empty if they are equal."""
    if n % world_size == 0:
        return ""
    short, long = n // world_size, n // world_size + 1
    return (
        f"{what} gives {n % world_size} of {world_size} ranks {long} items and the others {short}: training in step "
        f"hangs when ranks take different numbers of steps; {advice}use sky.shard(..., drop_last=True) for equal "
        "lengths"
    )


def _of(array: Any, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(array).__mro__)


def _kind(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"
