"""Arrays that do not pickle with their memory apart by themselves are taken to buffers here, and made of them again.

numpy's own go apart already, but for dates and for number types that others add (bfloat16). torch's
storages and jax's arrays would be copied into the pickle. What is on an accelerator, and whatever
else is not plain memory, is left to its own pickling. Nothing is imported for a framework's sake.
"""

from __future__ import annotations

import pickle
import sys
import weakref
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
    if home == "torch" and kind.__name__ == "Tensor":
        return _of_new_kinds(obj)
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


def root_of(array: Any) -> Any:
    """The array whose memory another one views; itself where that is its own."""
    kind = type(array)
    while type(array.base) is kind:
        array = array.base
    return array


def view_of(array: Any, root: Any) -> Any:
    """How to make an array again as a view of another one, as ``__reduce__`` says it; NotImplemented where it is none.

    Both are numpy's.
    """
    flags = root.flags
    if not (flags.c_contiguous or flags.f_contiguous) or array.dtype.hasobject != root.dtype.hasobject:
        return NotImplemented
    offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    ahead = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True) if stride > 0)
    back = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True) if stride < 0)
    if not array.size or offset + back < 0 or offset + ahead + array.itemsize > root.nbytes:
        return NotImplemented
    if array.dtype.hasobject and (array.dtype != root.dtype or offset % root.itemsize):
        return NotImplemented
    writeable = flags.writeable and array.flags.writeable
    return _numpy_view, (root, array.dtype, array.shape, offset, array.strides, writeable)


def _numpy_view(
    root: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...], writeable: bool
) -> Any:
    import numpy

    # In the order of its memory, so that it is no copy.
    flat = root.reshape(-1, order="C" if root.flags.c_contiguous else "F")
    if dtype.hasobject:
        array = numpy.lib.stride_tricks.as_strided(flat[offset // root.itemsize :], shape, strides)
    else:
        array = numpy.ndarray(shape, dtype, flat.view("u1"), offset, strides)
    if not writeable:
        array.flags.writeable = False
    _keep(array, root)
    return array


# The arrays that views are of, by the views' ids. A view's own base is whatever has the memory: the array that it was
# taken from would be gone once its name is, and what comes later as a view of that could not be one.
_VIEWED: dict[int, Any] = {}


def _keep(view: Any, root: Any) -> None:
    _VIEWED[id(view)] = root
    weakref.finalize(view, _VIEWED.pop, id(view), None).atexit = False


def frame_of(pickled: bytes, buffers: list[Any]) -> Any:
    """A pandas table that was pickled by itself: what its arrays share is pandas' own affair."""
    return pickle.loads(pickled, buffers=buffers)


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


def _of_new_kinds(tensor: Any) -> Any:
    """A tensor of float8, uint16 and the like, of whose storages pickle makes what torch cannot read again."""
    torch: Any = sys.modules["torch"]
    kinds: Any = getattr(torch.storage, "_new_dtypes", set)()
    if tensor.dtype not in kinds or tensor.layout is not torch.strided:
        return NotImplemented
    # With the same strides, on the same storage.
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return _of_kind, (tensor.detach().view(kind), tensor.dtype, tensor.requires_grad)


def _of_kind(plain: Any, kind: Any, requires_grad: bool) -> Any:
    tensor = plain.view(kind)
    return tensor.requires_grad_() if requires_grad else tensor


def _is_plain(torch: Any, storage: Any) -> bool:
    return type(storage) is torch.UntypedStorage and storage.device.type == "cpu" and storage.nbytes() > 0


def _typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped_storage(buffer: Any) -> Any:
    import torch

    # What stayed in the pickle may have come as bytes, which nobody may write to.
    buffer = bytearray(buffer) if memoryview(buffer).readonly else buffer
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    # A small one may be resized.
    return (flat.clone() if len(flat) < SMALL else flat).untyped_storage()


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
