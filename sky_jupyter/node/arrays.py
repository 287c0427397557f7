"""Arrays that do not pickle with their memory apart by themselves are taken to buffers here, and made of them again.

numpy's own go apart already, but for dates and for number types that others add (bfloat16). torch's
storages and jax's arrays would be copied into the pickle. What is on an accelerator, and whatever
else is not plain memory, is left to its own pickling. Nothing is imported for a framework's sake.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

SMALL = 4096
"""Arrays below this many bytes are left to their own pickling."""

_DATES = "mM"
_ADDED = 2  # What numpy says of a type that was added to it.


def apart(obj: Any) -> Any:
    """How to make an array again of buffers, as ``__reduce__`` says it; NotImplemented for all else."""
    kind = type(obj)
    home = kind.__module__
    if home == "numpy":
        return _of_numpy(obj) if kind.__name__ == "ndarray" else NotImplemented
    if home == "torch.storage":
        return _of_torch(obj)
    if home.startswith("jax") and kind.__name__ == "ArrayImpl":
        return _of_jax(obj)
    return NotImplemented


# -- numpy -----------------------------------------------------------------------------------------


def _of_numpy(array: Any) -> Any:
    if array.nbytes < SMALL or not (array.dtype.kind in _DATES or array.dtype.isbuiltin == _ADDED):
        return NotImplemented
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        return NotImplemented
    order = "C" if flags.c_contiguous else "F"
    plain = array.reshape(-1, order=order).view("u1")
    plain.flags.writeable = flags.writeable
    return _numpy_array, (plain, array.dtype, array.shape, order)


def _numpy_array(plain: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    return plain.view(dtype).reshape(shape, order=order)


# -- torch -----------------------------------------------------------------------------------------
# Tensors, parameters and modules pickle as views of storages, so that what shares memory shares it again.


def _of_torch(storage: Any) -> Any:
    torch = sys.modules["torch"]
    if type(storage) is torch.TypedStorage:
        untyped = storage._untyped_storage
        if not _is_plain(torch, untyped):
            return NotImplemented
        return _typed_storage, (untyped, storage.dtype)
    if type(storage) is not torch.UntypedStorage or not _is_plain(torch, storage):
        return NotImplemented
    try:
        plain = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    except (RuntimeError, ImportError):  # a torch without numpy
        return NotImplemented
    return _untyped_storage, (pickle.PickleBuffer(plain),)


def _is_plain(torch: Any, storage: Any) -> bool:
    return type(storage) is torch.UntypedStorage and storage.device.type == "cpu" and storage.nbytes() >= SMALL


def _typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped_storage(buffer: Any) -> Any:
    import torch

    # What stayed in the pickle may have come as bytes, which nobody may write to.
    buffer = bytearray(buffer) if memoryview(buffer).readonly else buffer
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


# -- jax -------------------------------------------------------------------------------------------


def _of_jax(array: Any) -> Any:
    if array.nbytes < SMALL or array.weak_type or not array.is_fully_addressable:
        return NotImplemented
    import numpy

    return _jax_array, (numpy.asarray(array),)


def _jax_array(array: Any) -> Any:
    import jax

    # On a CPU it is the very memory that was mapped.
    return jax.device_put(array)
