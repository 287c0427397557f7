"""Values as content-addressed blobs: a pickle with its out-of-band buffers.

A blob's name is a blake2b digest of its pickle and of a 128-bit xxh3 of each buffer. A rank will execute the pickle,
so its hash is a cryptographic one. The buffers are only data, and hashing an array of 1 GB must take no more than a
fraction of a second. Large buffers are files of their own, named by their hash: an array is one file, whatever value
contains it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import sys
import time
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import IO, Any

from ..node.files.blob_cache import LEAST, STAMP
from ..node.serialization.arrays import frame_of, root_of, view_of
from ..node.serialization.global_names import code_reads
from ..node.serialization.pickling import ALIGNMENT, HEAD, MAGIC, SPAN, Pickler, out_of_band, read_blob
from ..node.serialization.received_objects import Handle
from ..util.atomic_write import atomic_write
from .import_graph import imports_of_code
from .keras_layers import Models
from .library_singletons import made_there
from .names_in_code import annotation_names, code_attributes, code_guesses

_REFERRED = (type, FunctionType, BuiltinFunctionType, ModuleType)
LARGE_BUFFER = LEAST
"""Buffers from this size on are files of their own."""
# Bytes of a piece. Between two pieces, interrupts are handled and progress is reported.
_PIECE = 32 << 20
Tell = Callable[[int], None]
"""Called with the number of bytes just read or written."""


def untold(size: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class BlobFile:
    """File of a blob: its name and its content."""

    name: str
    content: tuple[bytes | memoryview, ...] = field(compare=False, repr=False)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(len, self.content))


@dataclass(frozen=True)
class Blob:
    """Pickled value, named by its content.

    Its buffers are views of the value's own memory: write it before the value may change.

    Parameters
    ----------
    digest : str
        Digest of the content; two blobs with one digest are equal.
    pickled : bytes
        The pickle, protocol 5.
    buffers : tuple of memoryview
        Out-of-band buffers, in the order of the pickle.
    hashes : tuple of bytes
        Their hashes.
    """

    digest: str
    pickled: bytes = field(compare=False, repr=False)
    buffers: tuple[memoryview, ...] = field(default=(), compare=False, repr=False)
    hashes: tuple[bytes, ...] = field(default=(), compare=False, repr=False)

    @property
    def size(self) -> int:
        """Bytes of the pickle and of all buffers."""
        return len(self.pickled) + sum(len(buffer) for buffer in self.buffers)

    @property
    def parts(self) -> tuple[BlobFile, ...]:
        """Files: one for each large buffer, then the one named by the digest."""
        apart = {
            digest: BlobFile(digest.hex(), (buffer,))
            for digest, buffer in zip(self.hashes, self.buffers, strict=True)
            if len(buffer) >= LARGE_BUFFER
        }
        return (*apart.values(), self._head())

    def _head(self) -> BlobFile:
        start = HEAD.size + len(self.buffers) * SPAN.size + len(self.pickled)
        spans: list[bytes] = []
        content: list[bytes | memoryview] = [self.pickled]
        for digest, buffer in zip(self.hashes, self.buffers, strict=True):
            if len(buffer) >= LARGE_BUFFER:
                spans.append(SPAN.pack(0, len(buffer), digest))
                continue
            gap = -start % ALIGNMENT
            spans.append(SPAN.pack(start + gap, len(buffer), bytes(len(digest))))
            content += [bytes(gap), buffer]
            start += gap + len(buffer)
        head = HEAD.pack(MAGIC, len(self.pickled), len(spans)) + b"".join(spans)
        return BlobFile(self.digest, (head, *content))


@dataclass(frozen=True)
class Packed:
    """Result of pickling a value.

    Parameters
    ----------
    blob : Blob
        The value.
    reads : frozenset of str
        Global names of the notebook that functions in the value read when called.
    attributes : frozenset of str
        Attribute names in their code.
    guesses : frozenset of str
        Names in strings of that code, and in annotations that are strings.
    modules : frozenset of str
        Modules that unpickling imports, and that the notebook's functions in the value import.
    carried : tuple of str
        Functions whose code is in the pickle.
    files : frozenset of str
        File names in that code.
    pickler : NotebookPickler
        The pickler. While it is referenced, no other object gets the id of one that it has pickled.
    """

    blob: Blob
    reads: frozenset[str]
    attributes: frozenset[str]
    guesses: frozenset[str]
    modules: frozenset[str] = frozenset()
    carried: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    pickler: NotebookPickler | None = field(default=None, compare=False, repr=False)


class NotebookPickler(Pickler):
    """Deterministic pickler of the notebook's side: equal values give equal bytes.

    Parameters
    ----------
    *args : Any
        See `Pickler`.
    **kwargs : Any
        See `Pickler`.

    Attributes
    ----------
    met : dict
        By id: types of the pickled objects, and the functions, classes and modules among them.
    guesses : set of str
        Names in string annotations of the notebook's functions and classes.
    classes : dict
        Classes that are pickled by value, by id.
    arrays, tensors : list
        numpy arrays, except those in tables; torch tensors.
    roots : collection of int
        Ids of the arrays whose views are pickled as views.
    models : Models
        The Keras models.
    value : Any
        The pickled value.
    """

    roots: Collection[int] = ()
    # Ids of the objects that the nodes have.
    there: Collection[int] = ()
    # True if nodes may use their own object in place of one that cannot be pickled.
    made_there = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guesses: set[str] = set()
        self.met: dict[int, Any] = {}
        self.classes: dict[int, Any] = {}
        self.arrays: list[Any] = []
        self.tensors: list[Any] = []
        self.models = Models()
        self.value: Any = None
        # Arrays that were created here in order to pickle others.
        self._made: dict[int, Any] = {}
        self._table: Any = None

    @property
    def modules(self) -> frozenset[str]:
        """Modules of the pickled objects, and those that the notebook's functions import."""
        attribute = {True: "__name__", False: "__module__"}
        names = [getattr(one, attribute[isinstance(one, ModuleType)], None) for one in self.met.values()]
        found = {name for name in names if isinstance(name, str)}
        return frozenset(found.union(*(imports_of_code(code).names for code in self.codes)))

    def reducer_override(self, obj: Any) -> Any:
        one = obj if isinstance(obj, _REFERRED) else type(obj)
        # Not a set: a metaclass may make its classes unhashable.
        self.met[id(one)] = one
        if type(obj).__module__.startswith("jaxlib") and (jax := sys.modules.get("jax")) is not None:
            self.met[id(jax)] = jax
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ == self.namespace.get("__name__"):
            with contextlib.suppress(Exception):  # From 3.14 they are evaluated only now.
                self.guesses |= annotation_names(obj.__annotations__.values())
        if "keras" in sys.modules and (model := self.models.reduced(obj, self.there)) is not NotImplemented:
            return model
        if (special := _SPECIAL.get((type(obj).__module__, type(obj).__name__))) is not None:
            return special(self, obj)
        if self.made_there and (own := made_there(obj)) is not NotImplemented:
            return own
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and reduced is not NotImplemented:
            self.classes[id(obj)] = obj
        return reduced

    def _reduce_array(self, array: Any) -> Any:
        if id(array) not in self._made:
            self.arrays.append(array)
            if self.roots and (root := root_of(array)) is not array and id(root) in self.roots:
                reduced = view_of(array, root)
                if reduced is not NotImplemented:
                    return reduced
        reduced = super().reducer_override(array)
        if reduced is not NotImplemented:
            self._made[id(reduced[1][0])] = reduced[1][0]
        return reduced

    def _reduce_tensor(self, tensor: Any) -> Any:
        self.tensors.append(tensor)
        return super().reducer_override(tensor)

    def _reduce_table(self, table: Any) -> Any:
        """Pickle a table separately.

        Tables share memory until one of them is changed (copy-on-write), which pickles cannot express.
        """
        if table is self._table:
            return super().reducer_override(table)
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()

        def keep_apart(buffer: pickle.PickleBuffer) -> bool:
            if out_of_band([])(buffer):
                return True
            buffers.append(buffer)
            return False

        inner = NotebookPickler(file, self.namespace, buffer_callback=keep_apart)
        inner.codes, inner.carried, inner.guesses, inner.met = self.codes, self.carried, self.guesses, self.met
        inner._table = table
        inner.dump(table)
        return frame_of, (file.getvalue(), buffers)


_SPECIAL: dict[tuple[str, str], Callable[[NotebookPickler, Any], Any]] = {
    ("numpy", "ndarray"): NotebookPickler._reduce_array,
    ("torch", "Tensor"): NotebookPickler._reduce_tensor,
    ("torch.nn.parameter", "Parameter"): NotebookPickler._reduce_tensor,
    **{
        (module, name): NotebookPickler._reduce_table
        for name in ("DataFrame", "Series")
        for module in ("pandas", f"pandas.core.{'frame' if name == 'DataFrame' else 'series'}")
    },
}


class ReferringPickler(NotebookPickler):
    """Pickler that writes handles in place of objects that the nodes have.

    Attributes
    ----------
    handles : mapping of int to Handle
        Handles by the objects' ids.
    """

    handles: Mapping[int, Handle]

    def persistent_id(self, obj: Any) -> Handle | None:
        return self.handles.get(id(obj))


class LastPickler(NotebookPickler):
    """Pickler for values that cannot be pickled as they are; see `made_there`."""

    made_there = True


def pack(
    value: Any,
    namespace: dict[str, Any],
    tell: Tell = untold,
    *,
    handles: Mapping[int, Handle] | None = None,
    roots: Collection[int] = (),
    inline: int = 0,
) -> Packed:
    """Pickle a value; functions with the globals ``namespace`` are sent without them.

    ``tell`` is called with the size of each piece of a buffer that was hashed. ``handles`` and ``roots`` are those
    of `ReferringPickler` and `NotebookPickler`. Buffers of up to ``inline`` bytes in total stay in the pickle. Errors
    of the value's own pickling are raised.
    """
    pickler, pickled, buffers = _pickled(value, namespace, handles or {}, roots, inline=inline)
    alone = pickler
    if alone.models.met and (owners := alone.models.common(memo := alone.memo.copy())):
        pickler, pickled, buffers = _pickled(value, namespace, handles or {}, roots, owners, inline)
        if first := {id(model) for model, _ in pickler.models.untied}:
            owners = alone.models.common(memo, first)
            pickler, pickled, buffers = _pickled(value, namespace, handles or {}, roots, owners, inline)
    blob = _named(pickled, buffers, tell)
    codes = pickler.codes
    return Packed(
        blob,
        reads=frozenset().union(*map(code_reads, codes)),
        attributes=frozenset().union(*map(code_attributes, codes)),
        modules=pickler.modules,
        guesses=frozenset(pickler.guesses.union(*map(code_guesses, codes))),
        carried=tuple(dict.fromkeys(code.co_name for code in pickler.carried)),
        files=frozenset(code.co_filename for code in pickler.carried),
        pickler=pickler,
    )


def _named(pickled: bytes, buffers: Sequence[memoryview], tell: Tell) -> Blob:
    digest = hashlib.blake2b(pickled, digest_size=20)
    hashes = tuple(_hash(buffer, tell) for buffer in buffers)
    for buffer, hashed in zip(buffers, hashes, strict=True):
        digest.update(len(buffer).to_bytes(8, "little") + hashed)
    return Blob(digest.hexdigest(), pickled, tuple(buffers), hashes)


def blob_of(path: Path, tell: Tell = untold) -> Blob:
    """Return the blob of a file that a rank wrote; it unpickles nothing.

    The file may be removed afterwards.
    """
    pickled, buffers = read_blob(path)
    return _named(bytes(pickled), buffers, tell)


def _pickled(
    value: Any,
    namespace: dict[str, Any],
    handles: Mapping[int, Handle],
    roots: Collection[int],
    owners: Any = None,
    inline: int = 0,
) -> tuple[NotebookPickler, bytes, list[memoryview]]:
    def attempt(*, made_there: bool) -> tuple[NotebookPickler, bytes, list[memoryview]]:
        buffers: list[memoryview] = []
        file = io.BytesIO()
        kind = ReferringPickler if handles else NotebookPickler
        pickler = kind(file, namespace, buffer_callback=out_of_band(buffers, inline))
        pickler.roots, pickler.models, pickler.made_there = roots, Models(owners), made_there
        if isinstance(pickler, ReferringPickler):
            pickler.handles = pickler.there = handles
        pickler.dump(value)
        pickler.value = value
        return pickler, file.getvalue(), buffers

    try:
        return attempt(made_there=False)
    except Exception as error:
        first = error
    # Second attempt only: a value that can be pickled must not be replaced by the nodes' own.
    with contextlib.suppress(Exception):
        return attempt(made_there=True)
    raise first


def fingerprint(value: Any, namespace: dict[str, Any]) -> str | None:
    """Return the digest of a value's content; None if it cannot be pickled."""
    try:
        return pack(value, namespace).blob.digest
    except Exception:
        return None


def _hash(buffer: memoryview, tell: Tell) -> bytes:
    # Imported here: nodes lack this package, and may import the API.
    import xxhash

    if len(buffer) <= _PIECE:
        return xxhash.xxh3_128_digest(buffer)
    hashed = xxhash.xxh3_128()
    for start in range(0, len(buffer), _PIECE):
        hashed.update(piece := buffer[start : start + _PIECE])
        tell(len(piece))
    return hashed.digest()


def write_blob(blob: Blob, folder: Path) -> Path:
    """Write a blob's missing files into a folder, mode 0600; return its main file."""
    for part in blob.parts:
        write_part(part, folder)
    return folder / blob.digest


def write_part(part: BlobFile, folder: Path, tell: Tell = untold) -> None:
    """Write a file of a blob atomically, unless it exists."""
    path = folder / part.name
    if path.exists():
        return
    with atomic_write(path, prefix=".", buffering=0) as file:
        if part.size < LARGE_BUFFER:
            _write(file, b"".join(part.content), untold)
        else:
            for content in part.content:
                _write(file, content, tell)
            # All copies of a file have the same time stamp.
            os.utime(file.fileno(), ns=(time.time_ns(), STAMP))


def _write(file: IO[bytes], content: bytes | memoryview, tell: Tell) -> None:
    whole, at = memoryview(content), 0
    while at < len(whole):
        written = file.write(whole[at : at + _PIECE])
        at += written
        tell(written)
