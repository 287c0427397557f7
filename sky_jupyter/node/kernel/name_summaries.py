"""Summaries of a rank's names (type, shape, bytes), made without user code.

A value is inspected only if its type, or a base that a library gives it, is known here. Only stored attributes are
read: nothing is computed or copied, and no device is waited for. So attributes come from the library's own descriptors,
and never through a class of the user's (its ``__getattr__``, ``__len__`` or ``__repr__``).
"""

from __future__ import annotations

import math
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Limits of one answer: names, seconds, characters of a text, axes of a shape.
_MOST_NAMES = 1000
_SECONDS = 0.25
_MOST_TEXT = 60
_MOST_AXES = 32
# Most objects of one model, and bits of an int, that are looked at.
_MOST_PARTS = 5000
_MOST_BITS = 256
_MOST_COLUMNS = 1000
_HIDDEN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "_", "__", "___", "_dh", "_oh", "_ih", "_exit_code"})
_HISTORY = re.compile(r"_(?:\d+|i.*)")
_SIZED = (list, tuple, dict, set, frozenset, str, bytes, bytearray, range, *map(type, ({}.keys(), {}.values())))
_COLLECTIONS = frozenset({"deque", "OrderedDict", "defaultdict", "Counter"})
_PLAIN = (str, bytes, bytearray, int, float, complex, bool)
Summary = dict[str, Any]

# The getters of `type` itself: a metaclass can replace ``cls.__name__``, and run code there.
_module_of: Callable[[type], Any] = vars(type)["__module__"].__get__
_name_of: Callable[[type], Any] = vars(type)["__name__"].__get__
_bases_of: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__


def is_users(name: str) -> bool:
    """Return True for a name of the user's, False for one of IPython's own."""
    return name not in _HIDDEN and _HISTORY.fullmatch(name) is None


def summarize(namespace: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return summaries of a namespace's names, within limits of time and number.

    Parameters
    ----------
    namespace : mapping
        The user's names.
    initial : mapping
        The names that the shell defined; those with unchanged values are left out.

    Returns
    -------
    dict
        ``names``, a summary of each: see `summary`; and ``more``, the number of names beyond the limits.
    """
    end = time.monotonic() + _SECONDS
    chosen = [
        (name, value)
        # Another thread of the user's may assign names meanwhile.
        for name, value in list(namespace.items())
        if type(name) is str and is_users(name) and not name.startswith("__") and initial.get(name) is not value
    ]
    found: dict[str, Summary] = {}
    for name, value in chosen[:_MOST_NAMES]:
        if time.monotonic() > end:
            break
        found[name[: 2 * _MOST_TEXT]] = summary(value)
    return {"names": found, "more": len(chosen) - len(found)}


def summary(value: Any) -> Summary:
    """Return the summary of a value without running the user's code.

    Parameters
    ----------
    value : Any
        The value.

    Returns
    -------
    dict
        ``type``, and those of these that apply: ``shape``, ``dtype``, ``device``, ``bytes``, ``items``, ``weights``,
        ``value`` (a number, or a short text).
    """
    kind = type(value)
    facts: Summary = {"type": _text(_name_of(kind))}
    try:
        facts.update(_known(value, kind))
    except Exception:
        # An object in an unusual state, such as a deleted array: only its type is known.
        return facts
    return facts


def _known(value: Any, kind: type) -> Summary:
    if kind in _PLAIN:
        return _plain(value)
    if kind in _SIZED:
        return {"items": len(value)}
    module = _module_of(kind)
    if not isinstance(module, str):
        return {}
    package, name = module.partition(".")[0], _name_of(kind)
    if not _is_genuine(kind):
        return _derived(value, kind)
    if module == "collections" and name in _COLLECTIONS:
        return {"items": len(value)}
    return _BY_PACKAGE[package](value, name) if package in _BY_PACKAGE else _derived(value, kind)


def _is_genuine(kind: type) -> bool:
    """Return whether a class is the one that its module has under its name."""
    module = sys.modules.get(_module_of(kind)) if isinstance(_module_of(kind), str) else None
    return type(module) is types.ModuleType and vars(module).get(_name_of(kind)) is kind


def _state_of(base: type) -> Callable[[Any], dict[str, Any]]:
    """Return the getter that a library's class has for its instances' attributes."""
    getter: Callable[[Any], dict[str, Any]] = next(
        vars(one)["__dict__"].__get__ for one in _bases_of(base) if "__dict__" in vars(one)
    )
    return getter


def _derived(value: Any, kind: type) -> Summary:
    """Return the summary of an object whose class is derived from a library's."""
    for base in _bases_of(kind)[1:]:
        found = _DERIVED.get((_module_of(base), _name_of(base)))
        if found is not None and _is_genuine(base):
            return found(value, base)
    return {}


def _plain(value: Any) -> Summary:
    facts: Summary = {"bytes": sys.getsizeof(value)}
    kind = type(value)
    if kind is int and value.bit_length() > _MOST_BITS:
        return facts
    if kind in (int, bool, float, str):
        return {**facts, **_scalar(value)}
    return {**facts, **({"items": len(value)} if kind is not complex else {"value": str(value)})}


def _scalar(value: Any) -> Summary:
    """Return a number, or a short text, as JSON can represent it."""
    kind = type(value)
    if kind is str:
        short = len(value) <= _MOST_TEXT
        return {"items": len(value), **({"value": repr(value)[: 2 * _MOST_TEXT]} if short else {})}
    if kind is bool or (kind is int and abs(value) > 1 << 53) or (kind is float and not math.isfinite(value)):
        return {"value": str(value)}
    return {"value": value} if kind in (int, float) else {}


def _text(text: Any) -> str:
    return text[:_MOST_TEXT] if isinstance(text, str) else ""


def _shape(shape: Any) -> list[int]:
    return [int(size) for size in tuple(shape)[:_MOST_AXES]]


# -- numpy, scipy, pandas --------------------------------------------------------------------------


def _of_numpy(value: Any, name: str) -> Summary:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        return _array(value, numpy.ndarray)
    if isinstance(value, numpy.generic):
        facts = {"dtype": _text(str(value.dtype)), "bytes": int(value.nbytes)}
        return {**facts, **(_scalar(value.item()) if value.dtype.kind in "biufU" else {})}
    return {}


def _array(value: Any, base: Any) -> Summary:
    """Return the summary of a numpy array, also of a subclass."""
    own = vars(base)
    dtype = own["dtype"].__get__(value)
    shape = _shape(own["shape"].__get__(value))
    facts: Summary = {"shape": shape, "dtype": _text(str(dtype)), "bytes": int(own["nbytes"].__get__(value))}
    if not shape and dtype.kind in "biuf":
        facts |= _scalar(base.item(value))
    return facts


def _of_scipy(value: Any, name: str) -> Summary:
    parts = [vars(value).get(part) for part in ("data", "indices", "indptr", "row", "col", "offsets")]
    arrays = [part for part in parts if _name_of(type(part)) == "ndarray"]
    shape = vars(value).get("_shape")
    if shape is None or not arrays:
        return {}
    return {"shape": _shape(shape), "dtype": _text(str(arrays[0].dtype)), "bytes": sum(int(a.nbytes) for a in arrays)}


def _of_pandas(value: Any, name: str) -> Summary:
    if name == "DataFrame":
        facts: Summary = {"shape": _shape(value.shape)}
        dtypes = list(value.dtypes) if value.shape[1] <= _MOST_COLUMNS else []
        if dtypes and all(map(_is_librarys, dtypes)):
            facts["bytes"] = int(value.memory_usage(index=False, deep=False).sum())
        return facts
    if name in ("Series", "Index", "RangeIndex", "DatetimeIndex", "MultiIndex", "CategoricalIndex"):
        facts = {"shape": [len(value)]}
        if name != "MultiIndex" and _is_librarys(value.dtype):
            facts |= {"dtype": _text(str(value.dtype)), "bytes": int(value.nbytes)}
        return facts
    return {}


def _is_librarys(dtype: Any) -> bool:
    module = _module_of(type(dtype))
    return isinstance(module, str) and module.partition(".")[0] in ("numpy", "pandas")


def _of_polars(value: Any, name: str) -> Summary:
    if name == "DataFrame":
        return {"shape": _shape(value.shape)}
    return {"shape": [len(value)], "dtype": _text(str(value.dtype))} if name == "Series" else {}


# -- torch -----------------------------------------------------------------------------------------


def _of_torch(value: Any, name: str) -> Summary:
    torch = sys.modules["torch"]
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return _tensor(value, torch)
    base = torch.nn.Module
    return _module(value, base) if base in _bases_of(type(value)) else {}


def _tensor(value: Any, torch: Any) -> Summary:
    """Return a tensor's summary, from host memory only: it waits for no device."""
    facts: Summary = {"shape": _shape(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    facts["device"] = _text(str(value.device))
    if value.layout is torch.strided:
        facts["bytes"] = value.numel() * value.element_size()
        # Reading a number from another device would wait for that device.
        if not facts["shape"] and facts["device"] == "cpu" and (value.is_floating_point() or not value.is_complex()):
            facts |= _scalar(value.detach().item())
    return facts


def _module(value: Any, base: Any) -> Summary:
    """Return the number of weights of a torch model, and where they are."""
    state = _state_of(base)
    tensors: dict[int, Any] = {}
    for part in _walk(value, lambda one: _values(state(one).get("_modules")) if base in _bases_of(type(one)) else []):
        if base in _bases_of(type(part)):
            # A weight that layers share counts once, as in ``model.parameters()``.
            tensors |= {id(one): one for one in _values(state(part).get("_parameters")) if one is not None}
    torch = sys.modules["torch"]
    known = [_tensor(one, torch) for one in tensors.values() if type(one) is torch.nn.Parameter]
    return _weights(known)


def _weights(tensors: list[Summary]) -> Summary:
    facts: Summary = {"weights": sum(math.prod(one["shape"]) for one in tensors)}
    if tensors:
        facts["bytes"] = sum(one.get("bytes", 0) for one in tensors)
        for what in ("dtype", "device"):
            if len(kinds := {one[what] for one in tensors if what in one}) == 1:
                facts[what] = kinds.pop()
    return facts


def _values(mapping: Any) -> list[Any]:
    return list(dict.values(mapping)) if isinstance(mapping, dict) else []


def _walk(root: Any, children: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Yield an object and all parts of it, each once, up to a limit.

    Raises LookupError beyond the limit: the count of a part would be wrong.
    """
    seen, left = {id(root)}, [root]
    while left:
        part = left.pop()
        yield part
        new = [one for one in children(part) if one is not None and id(one) not in seen]
        seen.update(map(id, new))
        left.extend(new)
        if len(seen) > _MOST_PARTS:
            raise LookupError(f"more than {_MOST_PARTS} parts")


# -- jax -------------------------------------------------------------------------------------------


def _of_jax(value: Any, name: str) -> Summary:
    """Return an array's summary; the computation that fills it may still be running."""
    if name not in ("ArrayImpl", "PRNGKeyArray"):
        return {}
    facts: Summary = {"shape": _shape(value.shape), "dtype": _text(str(value.dtype))}
    if name == "PRNGKeyArray":
        return facts
    facts["type"] = "Array"
    if value.is_deleted():
        return {**facts, "device": "deleted"}
    sharding = value.sharding
    here = sorted(sharding.addressable_devices, key=lambda device: int(device.id))
    size = math.prod(sharding.shard_shape(value.shape)) * value.dtype.itemsize
    facts |= {"device": _devices(here, sharding), "bytes": int(size * len(here))}
    in_memory = bool(here) and here[0].platform == "cpu" and sharding.is_fully_replicated
    # Reading a number on another device, or one that is being computed, would wait.
    if in_memory and not facts["shape"] and value.dtype.kind in "biuf" and value.is_ready():
        facts |= _scalar(value.item())
    return facts


def _devices(here: list[Any], sharding: Any) -> str:
    every = sharding.num_devices
    if every == 1 and here:
        # Ids are numbered over all processes of a cluster.
        return _text(f"{here[0].platform}:{here[0].local_hardware_id}")
    platform = here[0].platform if here else "device"
    how = "a copy on each" if sharding.is_fully_replicated else "sharded"
    return _text(f"{every} {platform}, {how}")


# -- keras -----------------------------------------------------------------------------------------


def _of_keras(value: Any, name: str) -> Summary:
    for base in _bases_of(type(value)):
        if (_module_of(base), _name_of(base)) == _KERAS_LAYER:
            return _layer(value, base)
        if (_module_of(base), _name_of(base)) == _KERAS_VARIABLE:
            return _variable(value, base)
    return {}


def _layer(value: Any, base: Any) -> Summary:
    """Return the number of weights of a Keras layer or model; 0 before it is built."""
    state = _state_of(base)

    def parts(one: Any) -> list[Any]:
        layers = state(one).get("_layers") if base in _bases_of(type(one)) else None
        return list(list.__iter__(layers)) if isinstance(layers, list) else []

    variables: dict[int, Summary] = {}
    for part in _walk(value, parts):
        for kind in ("_trainable_variables", "_non_trainable_variables"):
            own = state(part).get(kind) if base in _bases_of(type(part)) else None
            for one in list.__iter__(own) if isinstance(own, list) else ():
                variables[id(one)] = _of_keras(one, "")
    return _weights([one for one in variables.values() if "shape" in one])


def _variable(value: Any, base: Any) -> Summary:
    own = _state_of(base)(value)
    if not isinstance(own.get("_shape"), tuple):
        return {}
    shape, dtype = _shape(own["_shape"]), _text(str(own.get("_dtype")))
    bits = re.search(r"\d+", dtype)
    return {"shape": shape, "dtype": dtype, "bytes": math.prod(shape) * (int(bits[0]) // 8 if bits else 1)}


_KERAS_LAYER = ("keras.src.layers.layer", "Layer")
_KERAS_VARIABLE = ("keras.src.backend.common.variables", "Variable")
_BY_PACKAGE: Mapping[str, Callable[[Any, str], Summary]] = {
    "numpy": _of_numpy,
    "scipy": _of_scipy,
    "pandas": _of_pandas,
    "polars": _of_polars,
    "torch": _of_torch,
    "jax": _of_jax,
    "jaxlib": _of_jax,
    "keras": _of_keras,
}
_DERIVED: Mapping[tuple[Any, Any], Callable[[Any, Any], Summary]] = {
    ("numpy", "ndarray"): _array,
    ("torch.nn.modules.module", "Module"): _module,
    _KERAS_LAYER: _layer,
}
