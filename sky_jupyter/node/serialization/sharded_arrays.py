"""The part that a rank has of an array that spans ranks, and the whole from all ranks' parts.

A result brings what its rank has. Where the whole is wanted, each rank's pickle has its pieces with
their places; a `ShardAssembler` puts them together as the pickles are read, wherever in a value they are.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

Piece = tuple[tuple[int, ...], Any]
"""Where a piece begins along each axis of the whole array, and the piece itself."""

_whole: contextvars.ContextVar[ShardAssembler | None] = contextvars.ContextVar("whole", default=None)


def reduced(value: Any, *, whole: bool = False) -> Any:
    """How to pickle what only spans ranks, or lies on an accelerator, so that a notebook without either has it.

    Returns
    -------
    tuple or NotImplemented
        As ``reducer_override`` returns it.
    """
    jax: Any = sys.modules.get("jax")
    torch: Any = sys.modules.get("torch")
    array: Any = getattr(jax, "Array", ())
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return _reduced_tensor(value, torch, whole)
    if jax is not None and isinstance(value, array) and not value.is_fully_addressable:
        return (part, (value.shape, _pieces_of_jax(value))) if whole else (as_is, (_block(value),))
    sharded: Any = sys.modules.get("torch.distributed._shard.sharded_tensor")
    if sharded is not None and isinstance(value, sharded.ShardedTensor):
        pieces = [(tuple(shard.metadata.shard_offsets), shard.tensor) for shard in value.local_shards()]
        if whole:
            nothing = torch.empty((0,) * len(value.size()), dtype=value.dtype)
            return part, (tuple(value.size()), pieces or [((0,) * nothing.ndim, nothing)])
        return as_is, (pieces[0][1] if len(pieces) == 1 else [piece for _, piece in pieces],)
    return NotImplemented


def as_is(value: Any) -> Any:
    """What was pickled in the place of another value."""
    return value


def _reduced_tensor(tensor: Any, torch: Any, whole: bool) -> Any:
    spread = sys.modules.get("torch.distributed.tensor")
    if spread is not None and isinstance(tensor, spread.DTensor):
        if whole:
            return part, (tuple(tensor.shape), _pieces_of_dtensor(tensor))
        return as_is, (tensor.detach().to_local(),)
    # A parameter is pickled with the tensor that it holds.
    if tensor.device.type in ("cpu", "meta") or isinstance(tensor, torch.nn.Parameter):
        return NotImplemented
    host = tensor.detach().cpu()
    return as_is, (host.requires_grad_() if tensor.requires_grad else host,)


def _pieces_of_jax(array: Any) -> list[Piece]:
    """This process's shards as numpy, each once: replicas hold the same index."""
    import numpy

    found = {}
    for shard in array.addressable_shards:
        found[tuple(place.start or 0 for place in shard.index)] = shard
    pieces = [(start, numpy.asarray(shard.data)) for start, shard in found.items()]
    # Where this process has none of it, the kind has to be told all the same.
    return pieces or [((0,) * array.ndim, numpy.empty((0,) * array.ndim, array.dtype))]


def _block(array: Any) -> Any:
    """This process's part of a global array, as numpy: its shards put together in the order of their indices."""
    import numpy

    if array.is_fully_replicated:
        return numpy.asarray(array.addressable_data(0))
    parts = dict(_pieces_of_jax(array))
    if not array.ndim:
        return next(iter(parts.values()))
    starts = [sorted({start[axis] for start in parts}) for axis in range(array.ndim)]
    if len(parts) != math.prod(map(len, starts)):
        raise ValueError("this rank's shards of the array make no block; `%sky pull NAME --concat` brings the whole")

    def block(axis: int, prefix: tuple[int, ...]) -> Any:
        if axis == array.ndim:
            return parts[prefix]
        return [block(axis + 1, (*prefix, start)) for start in starts[axis]]

    return numpy.block(block(0, ()))


def _pieces_of_dtensor(tensor: Any) -> list[Piece]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as place_of

    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError("the tensor's ranks have partial sums of it; redistribute it before it is pulled whole")
    _, offset = place_of(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.detach().to_local()
    return [(tuple(offset), local.cpu())]


# Where pickles are read.


def part(shape: tuple[int, ...], pieces: Sequence[Piece]) -> Any:
    """What a rank's pickle has in the place of an array that spans ranks."""
    whole = _whole.get()
    if whole is None:
        raise ValueError("a part of an array that spans ranks, and nobody who puts them together")
    return whole.take(shape, pieces)


class ShardAssembler:
    """Puts arrays together from the pickles of several ranks, which are read one after the other.

    The arrays of the first pickle are made as large as the whole; those of the others fill them.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._filled: list[dict[tuple[int, ...], int]] = []
        self._at = 0
        # Whether all of its arrays are known.
        self._begun = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A pickle of another rank is read meanwhile."""
        self._at = 0
        token = _whole.set(self)
        try:
            yield
        finally:
            _whole.reset(token)
        self._begun = True
        if self._at != len(self.arrays):
            raise ValueError("the ranks do not have the same arrays in it")

    def take(self, shape: tuple[int, ...], pieces: Sequence[Piece]) -> Any:
        """The array of which these are pieces, filled with them."""
        number, self._at = self._at, self._at + 1
        if number == len(self.arrays):
            if self._begun:
                raise ValueError("the ranks do not have the same arrays in it")
            self.arrays.append(_empty_like(pieces[0][1], shape))
            self._filled.append({})
        array, filled = self.arrays[number], self._filled[number]
        if tuple(array.shape) != tuple(shape) or array.dtype != pieces[0][1].dtype:
            raise ValueError(
                f"the ranks do not have the same arrays in it: {tuple(array.shape)} of {array.dtype} on one, "
                f"{tuple(shape)} of {pieces[0][1].dtype} on another"
            )
        for start, piece in pieces:
            size = math.prod(piece.shape)
            if size and start not in filled:
                array[tuple(slice(at, at + length) for at, length in zip(start, piece.shape, strict=True))] = piece
                filled[start] = size
        return array

    @property
    def missing(self) -> int:
        """How many elements nobody has brought."""
        sizes = [math.prod(array.shape) for array in self.arrays]
        return sum(sizes) - sum(sum(filled.values()) for filled in self._filled)


def _empty_like(piece: Any, shape: tuple[int, ...]) -> Any:
    if hasattr(piece, "new_empty"):  # torch
        return piece.new_empty(shape)
    import numpy

    return numpy.empty(shape, piece.dtype)
