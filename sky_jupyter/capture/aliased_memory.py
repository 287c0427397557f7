"""Warnings about memory that values share in the notebook but not on the nodes."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ..node.serialization.arrays import root_of
from .blobs import Packed


class _Span(NamedTuple):
    begin: int
    end: int
    name: str


def apart(packs: Mapping[str, Packed], sent: Collection[str]) -> Iterator[str]:
    """Yield a warning for each array and tensor that share memory, if one is sent."""
    tensors = sorted({span for name, packed in packs.items() for span in _tensors(name, packed)})
    # Most notebooks have no tensors, and some have very many arrays.
    arrays = sorted({span for name, packed in packs.items() for span in _arrays(name, packed)}) if tensors else []
    # Spans may overlap: for each one, the largest end of all spans up to it.
    ends = list(itertools.accumulate((one.end for one in arrays), max))
    found = set()
    for tensor in tensors:
        first = bisect.bisect_right(ends, tensor.begin)
        for array in itertools.takewhile(lambda one, end=tensor.end: one.begin < end, arrays[first:]):  # type: ignore[misc]
            if array.end > tensor.begin and (array.name in sent or tensor.name in sent):
                found.add((array.name, tensor.name))
    for array_name, tensor_name in sorted(found):
        both = (
            f"{array_name} and {tensor_name}" if array_name != tensor_name else f"an array and a tensor in {array_name}"
        )
        yield (
            f"{both} share memory in the notebook, and do not on the nodes, where an array and a tensor go apart; "
            "make one from the other inside the cell, as with torch.from_numpy"
        )


def cut(values: Mapping[str, Any], ids: Mapping[str, Collection[int]]) -> Iterator[str]:
    """Yield a warning for each name that shares an array with a ``--shard`` name.

    Parameters
    ----------
    values : mapping
        Sharded values, by name.
    ids : mapping
        Ids of the objects in the values that are sent whole, by name.

    Yields
    ------
    str
        The warning.
    """
    for name, value in values.items():
        root = root_of(value) if type(value).__module__ == "numpy" else value
        for other, those in ids.items():
            if id(root) in those or id(value) in those:
                yield f"{name} and {other} are one in the notebook, and not on the nodes: --shard cuts {name} alone"


def _arrays(name: str, packed: Packed) -> Iterator[_Span]:
    for array in packed.pickler.arrays if packed.pickler is not None else ():
        root = root_of(array)
        if root.nbytes:
            begin = root.__array_interface__["data"][0]
            yield _Span(begin, begin + root.nbytes, name)


def _tensors(name: str, packed: Packed) -> Iterator[_Span]:
    for tensor in packed.pickler.tensors if packed.pickler is not None else ():
        # Tensors on a GPU, sparse tensors and those without memory have no such storage.
        with contextlib.suppress(Exception):
            storage = tensor.untyped_storage()
            if tensor.device.type == "cpu" and storage.nbytes():
                yield _Span(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name)
