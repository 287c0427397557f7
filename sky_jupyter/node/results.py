"""Values and exceptions on their way from a rank to the notebook.

A small value travels with the end of its run; a larger one stays on the rank until it is touched.
A `jax.Array` that spans processes cannot be pickled whole: it comes back as one numpy array when
fully replicated, and as this rank's addressable part otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle

from . import payload

SMALL = 1 << 20


class _TooLarge(Exception):
    pass


class _Limited(io.BytesIO):
    """A buffer that gives up at a size, so that nobody pickles 10 GB to learn that it is large."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self.limit:
            raise _TooLarge
        return super().write(data)


class _ResultPickler(payload.Pickler):
    """Functions of the notebook come back as such: over the notebook's own globals."""

    def reducer_override(self, value: Any) -> Any:
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(value, jax.Array) and not value.is_fully_addressable:
            return _numpy_of, (_addressable_part(value),)
        return super().reducer_override(value)


def _numpy_of(array: Any) -> Any:
    return array


def _addressable_part(array: Any) -> Any:
    """This process's part of a global array, as numpy: its shards put together in index order."""
    import numpy

    if array.is_fully_replicated:
        return numpy.asarray(array.addressable_data(0))
    parts = {}
    for shard in array.addressable_shards:
        # Replicas hold the same index; one of them is enough.
        parts[tuple((s.start or 0) for s in shard.index)] = numpy.asarray(shard.data)
    starts = [sorted({start[axis] for start in parts}) for axis in range(array.ndim)]

    def block(axis: int, prefix: tuple[int, ...]) -> Any:
        if axis == array.ndim:
            return parts[prefix]
        return [block(axis + 1, (*prefix, start)) for start in starts[axis]]

    return numpy.block(block(0, ())) if array.ndim else next(iter(parts.values()))


def dump(value: Any, limit: int) -> dict[str, Any]:
    """The value for the end of a run: base64 pickle, or why it does not come along.

    Returns
    -------
    dict
        ``{"value": str}``, ``{"large": True}`` over ``limit`` bytes, or ``{"unpicklable": why}``;
        each with ``"type"``, the value's type by name.
    """
    kind = {"type": f"{type(value).__module__}.{type(value).__qualname__}"}
    buffer = _Limited(limit)
    try:
        _ResultPickler(buffer, payload.main_namespace()).dump(value)
    except _TooLarge:
        return {**kind, "large": True}
    except Exception as error:
        return {**kind, "unpicklable": f"{type(error).__name__}: {error}"}
    return {**kind, "value": base64.b64encode(buffer.getvalue()).decode()}


def write(value: Any, path: Path) -> None:
    """Pickle a value of any size to a file that only its user can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        _ResultPickler(file, payload.main_namespace()).dump(value)


def dump_exception(error: BaseException | None) -> str | None:
    """The exception as base64 pickle, or None where its type or contents do not travel."""
    if error is None:
        return None
    with contextlib.suppress(Exception):
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
        if len(data) <= SMALL:
            return base64.b64encode(data).decode()
    return None
