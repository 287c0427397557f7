"""Pickles of plain values, which need none of the notebook's code to unpickle.

Plain values are atoms, containers and arrays.
"""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

from ..node.protocol.shared_bytes import AnyBytes, SharedWriter

# Functions that numpy's own pickles call.
_NUMPY_FUNCTIONS = ("_reconstruct", "_frombuffer", "scalar")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
# Modules with the types of arrays and of their items; the second has types such as `bfloat16`.
_NUMBERS = ("numpy", "ml_dtypes")


class NotPlain(Exception):
    """Raised when a value has parts that are not plain."""


class _PlainPickler(pickle.Pickler):
    """Pickler whose C code refuses what is not plain: Python code would be 5x slower."""

    def reducer_override(self, value: Any) -> Any:
        """Accept a part that is neither an atom nor a container, or raise NotPlain."""
        if type(value) is complex or value is complex or _is_numpy(value):
            return NotImplemented
        raise NotPlain


def plain_pickle(value: Any, writer: SharedWriter) -> AnyBytes:
    """Return the pickle of a plain value.

    Parameters
    ----------
    value : object
        None, numbers, texts, bytes, arrays and scalars of numpy without objects; tuples, lists, dicts and sets of
        these.
    writer : SharedWriter
        Writer of the pickle, which limits its size.

    Returns
    -------
    bytes or SharedBytes
        The pickle.

    Raises
    ------
    NotPlain
        If a part is something else, or the value is nested too deeply.
    TooLarge
        If the pickle is larger than the writer allows.
    """
    try:
        _PlainPickler(writer, 5).dump(value)
    except RecursionError:
        raise NotPlain from None
    return writer.written()


def _is_numpy(value: Any) -> bool:
    """Return whether numpy pickles a value; ask only its type, to run no other code."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    kind = type(value)
    if kind is numpy.ndarray:
        return not value.dtype.hasobject
    if issubclass(kind, numpy.dtype):
        return not value.hasobject
    if issubclass(kind, numpy.generic):
        return kind.__module__ == "numpy" and not value.dtype.hasobject
    if issubclass(kind, type):
        # A class of the notebook's goes by value, whatever it is derived from.
        return issubclass(value, (numpy.ndarray, numpy.dtype, numpy.generic)) and value.__module__ in _NUMBERS
    return kind in _FUNCTIONS and value.__name__ in _NUMPY_FUNCTIONS and str(value.__module__).startswith("numpy.")
