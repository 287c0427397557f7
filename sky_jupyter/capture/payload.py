"""Values as blobs: pickled with their big buffers apart, named by their content, written to files.

A blob's name is a blake2b digest of its pickle and of a 128-bit xxh3 of each buffer. The pickle is
what a rank will execute, so it is named by a cryptographic hash; the buffers are data, and an array
of 1 GB must be known again in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import sys
import tempfile
import types
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import xxhash

from ..node.payload import ALIGNMENT, HEAD, MAGIC, SPAN, Pickler
from ..node.reads import code_reads
from .functions import code_attributes, code_guesses
from .modules import imports_of_code
from .texts import annotation_names

_REFERRED = (type, FunctionType, BuiltinFunctionType, ModuleType)
SMALL_BUFFER = 4096
"""Buffers below this many bytes stay in the pickle."""


@dataclass(frozen=True)
class Blob:
    """A pickled value, named by its content.

    Its buffers are views of the value's own memory: write it before the value may change.

    Parameters
    ----------
    digest : str
        Names the content; two blobs with one digest are the same.
    pickled : bytes
        The pickle, protocol 5.
    buffers : tuple of memoryview
        The out-of-band buffers, in the order of the pickle.
    """

    digest: str
    pickled: bytes = field(compare=False, repr=False)
    buffers: tuple[memoryview, ...] = field(default=(), compare=False, repr=False)

    @property
    def size(self) -> int:
        """Bytes of the pickle and of all buffers."""
        return len(self.pickled) + sum(len(buffer) for buffer in self.buffers)


@dataclass(frozen=True)
class Packed:
    """What pickling a value gave.

    Parameters
    ----------
    blob : Blob
        The value.
    reads : frozenset of str
        Names of the notebook that functions in the value read when they are called.
    attributes : frozenset of str
        Attribute names in their code.
    modules : frozenset of str
        Modules that unpickling it imports, and those that functions of the notebook in it import.
    guesses : frozenset of str
        Names that stand in texts of that code, and in annotations that are texts.
    carried : tuple of str
        The functions whose code is in the pickle.
    """

    blob: Blob
    reads: frozenset[str]
    attributes: frozenset[str]
    guesses: frozenset[str]
    modules: frozenset[str] = frozenset()
    carried: tuple[str, ...] = ()


class NotebookPickler(Pickler):
    """The pickler of the notebook's side: the same value gives the same bytes at any time.

    Attributes
    ----------
    met : dict
        The types of what was pickled, and the functions, classes and modules in it, by their ids.
    guesses : set of str
        Names in the annotations of the notebook's functions and classes, where they are texts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guesses: set[str] = set()
        self.met: dict[int, Any] = {}

    @property
    def modules(self) -> frozenset[str]:
        """Modules that what was pickled is from, and those that functions of the notebook in it import."""
        attribute = {True: "__name__", False: "__module__"}
        names = [getattr(one, attribute[isinstance(one, ModuleType)], None) for one in self.met.values()]
        found = {name for name in names if isinstance(name, str)}
        return frozenset(found.union(*(imports_of_code(code).names for code in self.codes)))

    def reducer_override(self, obj: Any) -> Any:
        one = obj if isinstance(obj, _REFERRED) else type(obj)
        # Not a set: a class may be of a kind that cannot be hashed.
        self.met[id(one)] = one
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ == self.namespace.get("__name__"):
            with contextlib.suppress(Exception):  # From 3.14 they are evaluated only now.
                self.guesses |= annotation_names(obj.__annotations__.values())
        saveable = sys.modules.get("keras.src.saving.keras_saveable")
        if saveable is not None and isinstance(obj, saveable.KerasSaveable):
            rebuild, (archive,) = obj.__reduce__()
            return rebuild, (_undated(archive),)
        return super().reducer_override(obj)


def _undated(archive: io.BytesIO) -> io.BytesIO:
    """A Keras archive without the time at which it was saved.

    With it, an unchanged model would look changed a second later: it would be sent again, and what
    it learned on the nodes would be lost.
    """
    undated = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(undated, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "metadata.json":
                facts = json.loads(content)
                facts["date_saved"] = ""
                content = json.dumps(facts).encode()
            new.writestr(zipfile.ZipInfo(name), content)
    undated.seek(0)
    return undated


def pack(value: Any, namespace: dict[str, Any]) -> Packed:
    """Pickle `value`; functions whose globals are `namespace` go without them.

    Raises
    ------
    Exception
        Whatever the value's own pickling raises.
    """
    buffers: list[memoryview] = []

    def keep_apart(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: copied into the pickle
            return True
        if raw.nbytes < SMALL_BUFFER:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler = NotebookPickler(file, namespace, buffer_callback=keep_apart)
    pickler.dump(value)
    pickled = file.getvalue()
    digest = hashlib.blake2b(pickled, digest_size=20)
    for buffer in buffers:
        digest.update(len(buffer).to_bytes(8, "little") + xxhash.xxh3_128_digest(buffer))
    blob = Blob(digest.hexdigest(), pickled, tuple(buffers))
    codes = pickler.codes
    return Packed(
        blob,
        reads=frozenset().union(*map(code_reads, codes)),
        attributes=frozenset().union(*map(code_attributes, codes)),
        modules=pickler.modules,
        guesses=frozenset(pickler.guesses.union(*map(code_guesses, codes))),
        carried=tuple(dict.fromkeys(code.co_name for code in pickler.carried)),
    )


def fingerprint(value: Any, namespace: dict[str, Any]) -> str | None:
    """The digest of a value's content; None where it cannot be pickled."""
    try:
        return pack(value, namespace).blob.digest
    except Exception:
        return None


def write_blob(blob: Blob, folder: Path) -> Path:
    """Write `blob` into `folder` under its digest, unless it is there; only its owner may read it.

    The file appears whole or not at all.

    Returns
    -------
    Path
        The file.
    """
    path = folder / blob.digest
    if path.exists():
        return path
    start = HEAD.size + len(blob.buffers) * SPAN.size + len(blob.pickled)
    spans = []
    for buffer in blob.buffers:
        start += -start % ALIGNMENT
        spans.append((start, len(buffer)))
        start += len(buffer)
    handle, temporary = tempfile.mkstemp(prefix=".", dir=folder)  # mode 0600
    try:
        with open(handle, "wb") as file:
            file.write(HEAD.pack(MAGIC, len(blob.pickled), len(spans)))
            file.write(b"".join(SPAN.pack(*span) for span in spans))
            file.write(blob.pickled)
            for (offset, _), buffer in zip(spans, blob.buffers, strict=True):
                file.write(bytes(offset - file.tell()))
                file.write(buffer)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
