"""Project modules in a rank: importable, and reloaded when they change.

The files are in one folder of the node, with an index: each file's hash, and the modules, each after those that it
imports. A rank that sees a new index reloads changed modules and their importers, in that order, as IPython's
autoreload does: existing functions and classes are updated. A module's other variables are reset.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import linecache
import os
import shlex
import sys
import types
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from ...errors import CaptureError
from ..runtime.instance_info import variable
from ..serialization.pickling import main_namespace

FOLDER = "code"
"""Folder of the project's files, in the pool's folder on a machine."""

INDEX = ".sky-index.json"
VARIABLE = "SKY_CODE"


class ProjectModules:
    """Project modules of a rank; made by its kernel before any user code runs."""

    def __init__(self) -> None:
        self.root = Path(os.environ.get(VARIABLE) or os.devnull)
        self._index = str(self.root / INDEX)
        self._version = ""
        # Hashes of the files as loaded here; empty for modules that could not be reloaded.
        self._files: dict[str, str] = {}
        self._early = set(sys.modules)
        self._old: dict[tuple[str, str], list[Any]] = {}

    def update(self, version: str | None) -> None:
        """Reload modules to match the index at ``version``; no-op if it is known.

        Raises an error of a reloaded module; the next cell tries again.
        """
        # This runs with each cell, so it must be fast.
        if version == self._version or not os.path.isfile(self._index):
            return
        # Another notebook may have sent code that this one does not mention.
        self._find_first()
        if not version:
            return
        index = json.loads(Path(self._index).read_text())
        before, self._files = self._files, dict(index["files"])
        changed = {place for place, digest in self._files.items() if before.get(place, digest) != digest}
        self._refuse_foreign(self._files)
        importlib.invalidate_caches()
        # A new kernel does not know what an earlier one has compiled.
        for place in changed if before else self._files:
            self._forget(self.root / place)
        self._drop_strangers(index["modules"])
        stale = self._stale(changed, index["modules"])
        for name in stale:
            try:
                self._reload(name)
            except BaseException:
                self._version = ""
                # The remaining modules are reloaded once the user has fixed the error.
                for place in map(self._place, stale[stale.index(name) :]):
                    self._files[place] = ""
                raise
        self._version = version

    def _find_first(self) -> None:
        """Put the project's folder first on the path, for subprocesses too."""
        root = str(self.root)
        if root not in sys.path:
            sys.path.insert(0, root)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))

    def _refuse_foreign(self, places: Iterable[str]) -> None:
        """Raise CaptureError for native code of another Python or platform."""
        native = [place for place in places if place.endswith((".so", ".pyd"))]
        fitting = {place.partition(".")[0] for place in native if place.endswith(tuple(EXTENSION_SUFFIXES))}
        for place in native:
            stem, _, ending = place.partition(".")
            if stem not in fitting and ending.startswith(("cpython-", "cp3", "pypy", "abi3")):
                raise CaptureError(
                    f"{place} was built for the notebook's Python and machine, and this node loads "
                    f"{EXTENSION_SUFFIXES[0]}: have it installed there (--pip)"
                )

    def _forget(self, path: Path) -> None:
        """Drop a file's cached lines and bytecode.

        Python accepts stale bytecode if the file's second and size are unchanged.
        """
        linecache.cache.pop(str(path), None)
        if path.suffix == ".py":
            with contextlib.suppress(OSError, NotImplementedError):
                os.unlink(importlib.util.cache_from_source(str(path)))

    def _drop_strangers(self, modules: Iterable[tuple[str, list[str]]]) -> None:
        """Forget modules that were imported from elsewhere before they were sent.

        The next import then finds the sent ones.
        """
        for name in [name for name, _ in modules]:
            place = self._origin(name)
            if place is None or place.is_relative_to(self.root):
                continue
            sent = self._files.get(self._named(name))
            same = name in self._early and sent == _digest(place)
            if not same:
                top = name.partition(".")[0]
                for one in [one for one in sys.modules if one == top or one.startswith(f"{top}.")]:
                    del sys.modules[one]

    def _stale(self, changed: set[str], modules: Iterable[tuple[str, list[str]]]) -> list[str]:
        """Return the loaded modules to reload, each after those that it uses."""
        uses = dict(modules)
        loaded = {name: place for name in list(sys.modules) if (place := self._place(name))}
        stale = {name for name, place in loaded.items() if place in changed}
        while more := {name for name, used in uses.items() if name not in stale and stale.intersection(used)}:
            stale |= more
        # The imports of such modules are unknown.
        unknown = sorted(name for name in stale if name not in uses)
        return [name for name in (*unknown, *uses) if name in stale and loaded.get(name, "").endswith(".py")]

    def _reload(self, name: str) -> None:
        from IPython.extensions.autoreload import superreload

        module = sys.modules.get(name)
        if module is None:
            return
        before = dict(vars(module))
        superreload(module, importlib.reload, self._old)
        self._rebind(name, before, vars(module))
        # Restore submodules as attributes: reloading the package cleared them.
        for inner, submodule in list(sys.modules.items()):
            if inner.rpartition(".")[0] == name and not hasattr(module, inner.rpartition(".")[2]):
                setattr(module, inner.rpartition(".")[2], submodule)

    def _rebind(self, module: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Point cells' names for a module's old functions and classes to the new."""
        own = (types.FunctionType, type)
        old = {id(one): name for name, one in before.items() if isinstance(one, own) and one.__module__ == module}
        namespace = main_namespace()
        for name, value in list(namespace.items()):
            new = old.get(id(value))
            if new is not None and new in after:
                namespace[name] = after[new]

    def _origin(self, name: str) -> Path | None:
        """Return the file of a loaded module."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) if isinstance(module, types.ModuleType) else None
        return Path(file) if isinstance(file, str) else None

    def _place(self, name: str) -> str:
        """Return a loaded module's path below the root; empty if it is elsewhere."""
        origin = self._origin(name)
        return origin.relative_to(self.root).as_posix() if origin and origin.is_relative_to(self.root) else ""

    def _named(self, name: str) -> str:
        """Return the path to which a module was sent."""
        path = name.replace(".", "/")
        return f"{path}/__init__.py" if f"{path}/__init__.py" in self._files else f"{path}.py"


def included(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder that ``--include`` sent.

    Parameters
    ----------
    path : str or path
        The path as it was given to ``--include``, or a path inside such a folder.

    Returns
    -------
    Path
        Its place on a node; elsewhere the path itself.
    """
    root = variable(VARIABLE)
    if root is None or not (Path(root) / INDEX).is_file():
        return Path(path)
    index = json.loads((Path(root) / INDEX).read_text())
    for text, place in index["included"].items():
        if Path(path).is_relative_to(text):
            return Path(root, place, Path(path).relative_to(text))
    return Path(root, path)


def hint(error: object) -> list[str]:
    """Return a hint, as one line, for a missing file beside the project's modules."""
    # In this order: an exception of the user's may have code behind any attribute.
    if not isinstance(error, FileNotFoundError):
        return []
    root, path = variable(VARIABLE), error.filename
    if root is None or not isinstance(path, str) or not Path(path).is_relative_to(root):
        return []
    place = Path(path).relative_to(root).as_posix()
    return [f"{place} is not among the code that was sent; `%%sky --include {shlex.quote(place)}` sends it too"]


def _digest(path: Path) -> str:
    with contextlib.suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""
