"""Pickling of notebook values, and loading of blobs into a rank.

The capturing side writes a blob file for each value, and a manifest of plain JSON; `bind` reads both in the rank's
process. `Pickler` pickles a function of the notebook without its globals. The rebuilt function reads and writes the
rank's own ``__main__``, so that everything a user defines shares one namespace, as in a notebook. The same pickler is
used for values from ranks to the notebook.

Names that share an object in the notebook are in one blob, a dict of them, and share the object on the rank too;
`received_objects` finds objects that were sent earlier.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import mmap
import os
import pickle
import platform
import struct
import sys
import types
from collections.abc import Callable
from os import PathLike
from typing import IO, Any

import cloudpickle

from ...errors import CaptureError
from ..protocol import shared_bytes
from ..runtime.instance_info import variable
from . import cell_sources, exceptions
from .arrays import apart
from .prefault import prefault
from .received_objects import HELD, SentObjects, Unresolved
from .reduce_by_value import reduce

BLOBS = "SKY_BLOBS"
"""Environment variable with the folders of blobs on a node."""

MAGIC = b"SKYBLOB2"
ALIGNMENT = 64
# Format of a blob file: HEAD (magic, size of the pickle, number of buffers), one SPAN (offset, length, hash) per
# buffer, the pickle, and the buffers at multiples of ALIGNMENT, padded with zeros. A buffer at offset 0 is a separate
# file beside it, named by its hash.
HEAD = struct.Struct("<8sQQ")
SPAN = struct.Struct("<QQ16s")
SMALL_BUFFER = 4096
"""Buffers below this many bytes stay in the pickle."""

PYTHON = platform.python_version().rpartition(".")[0]
"""The minor version of this process's Python, such as ``"3.12"``."""

_NEAR = 100
# Pickles of the blobs that were read last, by their relative paths.
_kept: dict[str, bytes] = {}
_SMALL_PICKLE, _MOST_KEPT = 16 << 10, 128
_CARRIED = ("__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__type_params__")


def main_namespace() -> dict[str, Any]:
    """Return the namespace of ``__main__``, where a notebook's cells run."""
    return sys.modules["__main__"].__dict__


def load_blob(path: str | PathLike[str]) -> Any:
    """Load the value of a blob file; its arrays are views of the mapped file.

    They are private and writable; unchanged pages are shared by all processes that load the file. A relative path is
    searched in the node's blob folders. Raises ValueError when the file is not a complete blob.
    """
    pickled, buffers = read_blob(path)
    return pickle.loads(pickled, buffers=buffers)


def read_blob(path: str | PathLike[str]) -> tuple[memoryview, list[memoryview]]:
    """Return a blob file's pickle and buffers.

    Small pickles are kept: in a loop, a function and the values that it reads are loaded for each call.
    """
    if (kept := _kept.get(str(path))) is not None:
        return memoryview(kept), []
    view = _mapped(path, HEAD.size)
    magic, pickled, count = HEAD.unpack_from(view)
    if magic != MAGIC:
        raise ValueError(f"{path} is not a blob: it begins with {magic!r}")
    start = HEAD.size + count * SPAN.size
    if start + pickled > len(view):
        raise ValueError(f"{path} is cut short: its header speaks of more than its {len(view)} bytes")
    end, buffers = start + pickled, []
    for offset, length, digest in SPAN.iter_unpack(view[HEAD.size : start]):
        if not offset and digest.strip(b"\0"):
            buffers.append(_buffer_beside(path, digest.hex(), length))
            continue
        if offset % ALIGNMENT or offset < end or offset + length > len(view):
            raise ValueError(f"{path} is damaged: a buffer at {offset} of {length} bytes does not fit")
        buffers.append(view[offset : offset + length])
        end = offset + length
    if end != len(view):
        raise ValueError(f"{path} is damaged: {len(view) - end} bytes after its end")
    if not buffers and pickled <= _SMALL_PICKLE and not os.path.isabs(path):
        # A relative path is named by its content, which does not change.
        _kept[str(path)] = bytes(view[start:end])
        if len(_kept) > _MOST_KEPT:
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                del _kept[next(iter(_kept))]
    return view[start : start + pickled], buffers


def _buffer_beside(path: str | PathLike[str], name: str, length: int) -> memoryview:
    view = _mapped(os.path.join(os.path.dirname(path), name), 1)
    if len(view) != length:
        raise ValueError(f"{path} is damaged: its buffer {name} has {len(view)} bytes, and not {length}")
    return view


def _mapped(path: str | PathLike[str], least: int) -> memoryview:
    with _opened(path) as file:
        if file.seek(0, 2) < least:
            raise ValueError(f"{path} is not a blob: it is shorter than a header")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        prefault(mapped, file.fileno())
    return memoryview(mapped)


def _opened(path: str | PathLike[str]) -> IO[bytes]:
    """Open a blob file: in shared memory or, if there was no room, on disk."""
    first, *others = (variable(BLOBS) or "").split(os.pathsep)
    for place in others:
        with contextlib.suppress(FileNotFoundError):
            return open(os.path.join(first, path), "rb")
        first = place
    return open(os.path.join(first, path), "rb")


def load_call(content: dict[str, Any]) -> tuple[Callable[..., Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Return a function and a list of the arguments for each call of it.

    The arguments are in the function's blob, in their own blob, or inline as text or bytes, which may be shared.
    """
    loaded = _load_tied(content, HELD)
    if "pickled" in content:
        return loaded, shared_bytes.loads(content["pickled"])
    if "inline" in content:
        return loaded, pickle.loads(base64.b64decode(content["inline"]))
    if "arguments" in content:
        return loaded, load_blob(content["arguments"])
    function, args, kwargs = loaded
    return function, [(args, kwargs)]


def _load_tied(content: dict[str, Any], held: SentObjects) -> Any:
    """Load a call's blob.

    If objects that it refers to are gone, load the blob with copies of them.
    """
    plain = content.get("manifest", {}).get("call")
    if not plain:
        return load_blob(content["blob"])
    try:
        return held.load(*read_blob(content["blob"]))
    except Unresolved:
        return load_blob(plain[0])


def bind(
    manifest: dict[str, list[Any]], namespace: dict[str, Any], rank: int = 0, *, held: SentObjects | None = None
) -> None:
    """Import and load the values that a cell needs, and bind them in `namespace`.

    Parameters
    ----------
    manifest : dict
        ``{"modules": [[name, module], ...], "values": [[name, path of the blob], ...]}``. A module with an empty name
        is a submodule that is imported and not bound; if it is missing, the code that uses it raises. Modules come
        first, then ``"members": [[name, module, member], ...]``, which are members of modules, then values in order.
        ``"bound"`` is for the kernel. ``"owners": [[name, ranks], ...]`` lists ranks that keep their own value of a
        name. Each rank loads its own part of ``"parts": [[name, [[rank, path], ...]], ...]``. ``"sources"`` are for
        `cell_sources.learn`. A value may be ``[[names], path, unit, {name: its own path}]``: names that share objects,
        as a dict in one blob; if an object that it refers to is gone, each name is loaded from its own blob. With a
        single name, it may be ``[name, path, unit]``.
    namespace : dict
        The rank's namespace.
    rank : int
        The rank's number.
    held : SentObjects, optional
        Objects that were sent earlier; by default those of this process.

    Raises
    ------
    ModuleNotFoundError
        When this node lacks a module; the message names the value that needs it.
    CaptureError
        When a value cannot be rebuilt here for another reason.
    """
    cell_sources.learn(manifest.get("sources", ()), namespace)
    own = {name for name, owners in manifest.get("owners", ()) if rank in owners}
    for name, module in manifest["modules"]:
        if name in own:
            continue
        if name:
            namespace[name] = _explained(name, importlib.import_module, module)
        else:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    for name, module, member in manifest.get("members", ()):
        if name not in own:
            namespace[name] = _explained(name, functools.partial(_member, module), member)
    held = HELD if held is None else held
    # Keep the former values alive: a later value may refer to one whose name is bound to another value.
    refers = any(not isinstance(name, str) and more[1] for name, _, *more in manifest["values"])
    former = list(namespace.values()) if refers else []
    for one in manifest["values"]:
        _bind_value(one, namespace, own, held)
    del former
    for name, places in manifest.get("parts", ()):
        for number, path in places:
            if number == rank:
                namespace[name] = _explained(name, load_blob, path)


def _bind_value(one: list[Any], namespace: dict[str, Any], own: set[str], held: SentObjects) -> None:
    """Bind names to the values of one blob, except for names of this rank's own."""
    name, path, *more = one
    if isinstance(name, str):
        if name in own:
            return
        if not more:
            namespace[name] = _explained(name, load_blob, path)
            return
        namespace[name] = _explained(name, lambda path: held.load(*read_blob(path), more[0]), path)
        held.name(name, namespace[name], more[0])
        return
    names, (unit, plain) = [each for each in name if each not in own], more
    if not names:
        return
    try:
        values = _explained(" and ".join(map(repr, names))[1:-1], lambda path: held.load(*read_blob(path), unit), path)
    except Unresolved:
        for each in names:
            namespace[each] = _explained(each, load_blob, plain[each])
        return
    for each in names:
        namespace[each] = values[each]
        held.name(each, values[each], unit)


def _member(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _explained(name: str, load: Callable[[str], Any], source: str) -> Any:
    try:
        return load(source)
    except Unresolved:
        raise
    except ModuleNotFoundError as error:
        text = f"{name!r} of the notebook needs a module that this node does not have: {error}"
        raise ModuleNotFoundError(text, name=error.name, path=error.path) from error
    except Exception as error:
        raise CaptureError(f"{name!r} could not be rebuilt on this node: {type(error).__name__}: {error}") from error


class Pickler(cloudpickle.Pickler):
    """cloudpickle without notebook functions' globals, with arrays as buffers.

    One instance pickles one value.

    Parameters
    ----------
    file : file
        File that the pickle is written to.
    namespace : dict
        The notebook's namespace.
    buffer_callback : callable, optional
        See `pickle.Pickler`.

    Attributes
    ----------
    codes : list of code
        Code of the notebook's functions in the value; the names that it reads must be sent too.
    carried : list of code
        All code in the pickle: only the same minor version of Python can run it.
    reader : str
        The reader's minor version of Python if it differs; then code is refused.
    """

    reader = ""

    def __init__(
        self,
        file: IO[bytes],
        namespace: dict[str, Any],
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.namespace = namespace
        self.module = namespace.get("__name__", "__main__")
        self.codes: list[types.CodeType] = []
        self.carried: list[types.CodeType] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is types.CodeType:
            self.carried.append(obj)
            if self.reader:
                raise TypeError(
                    f"the code of {obj.co_name!r} is Python {PYTHON}'s, and the notebook runs {self.reader}"
                )
        if isinstance(obj, types.FunctionType) and obj.__globals__ is self.namespace:
            # A function in its own closure is visited twice.
            if all(code is not obj.__code__ for code in self.codes[-_NEAR:]):
                self.codes.append(obj.__code__)
            args: tuple[Any, ...] = (obj.__code__, obj.__name__)
            if obj.__closure__:
                args = (*args, obj.__closure__)
            return make_function, args, _function_state(obj), None, None, set_function_state
        if type(obj) is types.CellType:
            # Created empty and filled later: its content may refer to the function itself.
            return types.CellType, (), _contents(obj), None, None, _fill
        reduced = apart(obj)
        if reduced is not NotImplemented:
            return reduced
        reduced = reduce(obj, self.module)
        if reduced is not NotImplemented:
            return reduced
        reduced = exceptions.reduced(obj)
        if reduced is not NotImplemented:
            return reduced
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and reduced is not NotImplemented and len(reduced) > 2:
            _intern_names(reduced[2][0])
        return reduced


def _intern_names(attributes: dict[str, Any]) -> None:
    """Intern a class's attribute names (Python 3.13), as those of its methods are.

    In a class that was loaded they are other strings, as after an instance came back from a rank. Its pickle would
    differ, and all of its values would be sent again.
    """
    names = attributes.get("__static_attributes__")
    if isinstance(names, tuple):
        attributes["__static_attributes__"] = tuple(sys.intern(one) if type(one) is str else one for one in names)


def out_of_band(buffers: list[memoryview], inline: int = 0) -> Callable[[pickle.PickleBuffer], bool]:
    """Return a buffer callback that collects large buffers in a list.

    Small buffers stay in the pickle, and so do large ones of up to ``inline`` bytes in all.
    """
    left = inline

    def keep_apart(buffer: pickle.PickleBuffer) -> bool:
        nonlocal left
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: copied into the pickle
            return True
        if raw.nbytes < SMALL_BUFFER:
            return True
        if raw.nbytes <= left:
            left -= raw.nbytes
            return True
        buffers.append(raw)
        return False

    return keep_apart


def _function_state(function: types.FunctionType) -> tuple[dict[str, Any], dict[str, Any]]:
    carried = {name: getattr(function, name) for name in _CARRIED if hasattr(function, name)}
    # The same string as the code's, as it was before loading; see `_intern_names`. Python 3.10 has none there.
    if (known := getattr(function.__code__, "co_qualname", None)) == function.__qualname__:
        carried["__qualname__"] = known
    with contextlib.suppress(Exception):  # Lazily evaluated since 3.14: they may refer to undefined names.
        carried["__annotations__"] = function.__annotations__
    return dict(vars(function)), carried


def make_function(
    code: types.CodeType, name: str, closure: tuple[types.CellType, ...] | None = None
) -> types.FunctionType:
    """Create a function over this process's ``__main__``.

    `set_function_state` completes it.
    """
    return types.FunctionType(code, main_namespace(), name, None, closure)


def set_function_state(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Restore the attributes of a function made by `make_function`."""
    attributes, carried = state
    vars(function).update(attributes)
    for name, value in carried.items():
        setattr(function, name, value)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()  # An empty cell: its variable is not assigned yet.


def _fill(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    if contents:
        cell.cell_contents = contents[0]
