"""Reduction of arrays to out-of-band buffers, and their reconstruction.

numpy's arrays use buffers by themselves, except for dates, for dtypes of other packages (bfloat16), and for arrays that
are not contiguous. torch's storages and jax's arrays would be copied into the pickle. Arrays on accelerators, and
others that are not plain memory, keep their own pickling. No framework is imported for this.
"""

from __future__ import annotations

import pickle
import sys
import weakref
from typing import Any

SMALL = 4096
"""Arrays below this many bytes keep their own pickling."""

# From this size on, an array that is not contiguous is copied to a buffer, which gets its own file; see `pickling`.
_WORTH_A_COPY = 1 << 20
_DATES = "mM"
_ADDED = 2  # numpy's `isbuiltin` for a dtype that another package added.


def apart(obj: Any) -> Any:
    """Return a reduction of an array to buffers; NotImplemented for others."""
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
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        # numpy would copy it into the pickle, and each rank would have its own copy.
        if array.nbytes < _WORTH_A_COPY or array.dtype.hasobject:
            return NotImplemented
        plain = array.copy(order="C").reshape(-1).view("u1")
        plain.flags.writeable = flags.writeable
        return _numpy_array, (plain, array.dtype, array.shape, "C")
    if array.nbytes < SMALL or not (array.dtype.kind in _DATES or array.dtype.isbuiltin == _ADDED):
        return NotImplemented
    order = "C" if flags.c_contiguous else "F"
    plain = array.reshape(-1, order=order).view("u1")
    plain.flags.writeable = flags.writeable
    return _numpy_array, (plain, array.dtype, array.shape, order)


def _numpy_array(plain: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    return plain.view(dtype).reshape(shape, order=order)


def root_of(array: Any) -> Any:
    """Return the array that owns a view's memory; the array itself if it is no view."""
    kind = type(array)
    while type(array.base) is kind:
        array = array.base
    return array


def view_of(array: Any, root: Any) -> Any:
    """Return a reduction of a numpy array as a view of another one.

    NotImplemented if that is impossible.
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

    # In memory order, so that no copy is made.
    flat = root.reshape(-1, order="C" if root.flags.c_contiguous else "F")
    if dtype.hasobject:
        array = numpy.lib.stride_tricks.as_strided(flat[offset // root.itemsize :], shape, strides)
    else:
        array = numpy.ndarray(shape, dtype, flat.view("u1"), offset, strides)
    if not writeable:
        array.flags.writeable = False
    _keep(array, root)
    return array


# Roots of rebuilt views, by the views' ids. A view's own base is the memory's owner. Without this reference, the array
# that the view was taken from would be freed once its name is gone, and later values could not refer to it.
_VIEWED: dict[int, Any] = {}


def _keep(view: Any, root: Any) -> None:
    _VIEWED[id(view)] = root
    weakref.finalize(view, _VIEWED.pop, id(view), None).atexit = False


def frame_of(pickled: bytes, buffers: list[Any]) -> Any:
    """Unpickle a pandas object that was pickled by itself.

    pandas handles memory that its arrays share.
    """
    return pickle.loads(pickled, buffers=buffers)


# -- torch -----------------------------------------------------------------------------------------
# Tensors, parameters and modules pickle as views of storages, so that shared memory is shared again.


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
    """Reduce a tensor of float8, uint16 etc.; torch cannot unpickle its storage."""
    torch: Any = sys.modules["torch"]
    kinds: Any = getattr(torch.storage, "_new_dtypes", set)()
    if tensor.dtype not in kinds or tensor.layout is not torch.strided:
        return NotImplemented
    # An integer view with the same strides, on the same storage.
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

    # A small buffer may have come as read-only bytes.
    buffer = bytearray(buffer) if memoryview(buffer).readonly else buffer
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    # Small storages are copied, so that they can be resized.
    return (flat.clone() if len(flat) < SMALL else flat).untyped_storage()


# -- jax -------------------------------------------------------------------------------------------


def _of_jax(array: Any) -> Any:
    if array.nbytes < SMALL or array.weak_type or not array.is_fully_addressable:
        return NotImplemented
    import numpy

    return _jax_array, (numpy.asarray(array),)


def _jax_array(array: Any) -> Any:
    import jax

    # On a CPU this uses the mapped memory without a copy.
    return jax.device_put(array)
