"""Arrays that span ranks: pickling of a rank's part, and assembly of the whole.

A result has the rank's own part. For the whole array, each rank's pickle has its pieces with their offsets; a
`ShardAssembler` joins them while the pickles are read.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

Piece = tuple[tuple[int, ...], Any]
"""A piece's offset in the whole array, and the piece."""

_whole: contextvars.ContextVar[ShardAssembler | None] = contextvars.ContextVar("whole", default=None)


def reduced(value: Any, *, whole: bool = False) -> Any:
    """Return a reduction of an array that spans ranks or is on an accelerator.

    Then the notebook can load it without the other ranks or an accelerator. NotImplemented for other values. With
    ``whole``, the rank's pieces are pickled for a `ShardAssembler`.
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
    """Return a value that was pickled in place of another one."""
    return value


def _reduced_tensor(tensor: Any, torch: Any, whole: bool) -> Any:
    spread = sys.modules.get("torch.distributed.tensor")
    if spread is not None and isinstance(tensor, spread.DTensor):
        if whole:
            return part, (tuple(tensor.shape), _pieces_of_dtensor(tensor))
        return as_is, (tensor.detach().to_local(),)
    # A parameter is pickled through its tensor.
    if tensor.device.type in ("cpu", "meta") or isinstance(tensor, torch.nn.Parameter):
        return NotImplemented
    host = tensor.detach().cpu()
    return as_is, (host.requires_grad_() if tensor.requires_grad else host,)


def _pieces_of_jax(array: Any) -> list[Piece]:
    """Return this process's shards as numpy arrays, without replicas."""
    import numpy

    found = {}
    for shard in array.addressable_shards:
        found[tuple(place.start or 0 for place in shard.index)] = shard
    pieces = [(start, numpy.asarray(shard.data)) for start, shard in found.items()]
    # If this process has no shard, an empty piece has the dtype.
    return pieces or [((0,) * array.ndim, numpy.empty((0,) * array.ndim, array.dtype))]


def _block(array: Any) -> Any:
    """Return this process's part of a jax array, its shards joined, as numpy."""
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


# In the process that reads the pickles.


def part(shape: tuple[int, ...], pieces: Sequence[Piece]) -> Any:
    """Pass the pieces of a rank's pickle to the assembler; return the whole array."""
    whole = _whole.get()
    if whole is None:
        raise ValueError("a part of an array that spans ranks was read without a ShardAssembler")
    return whole.take(shape, pieces)


class ShardAssembler:
    """Assembler of arrays from the pickles of several ranks, read in turn.

    The first pickle's arrays are allocated in full size; the other pickles fill them.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._filled: list[dict[tuple[int, ...], int]] = []
        self._at = 0
        # Whether the first pickle has been read.
        self._begun = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Enter the context in which a rank's pickle is read."""
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
        """Return the whole array, filled with these pieces."""
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
        """Number of elements that no rank has sent."""
        sizes = [math.prod(array.shape) for array in self.arrays]
        return sum(sizes) - sum(sum(filled.values()) for filled in self._filled)


def _empty_like(piece: Any, shape: tuple[int, ...]) -> Any:
    if hasattr(piece, "new_empty"):  # torch
        return piece.new_empty(shape)
    import numpy

    return numpy.empty(shape, piece.dtype)
