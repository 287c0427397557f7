"""Static import graph of the user's own project; it imports no module.

A module is *local* if Python finds it outside of the standard library and of every ``site-packages``: beside the
notebook, on ``PYTHONPATH``, or by an editable install.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib
import os
import site
import sys
import sysconfig
import threading
import tokenize
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_INSTALLED = {"site-packages", "dist-packages"}
_OWN = __name__.partition(".")[0]
_NEVER = {"__main__", "__mp_main__", _OWN, *sys.builtin_module_names, *sys.stdlib_module_names}
# Number of attempts to invalidate the caches of Python's importers, which other threads may do at the same time.
_TRIES = 10
_invalidating = threading.Lock()
# Line magics whose arguments are code.
_LINE_CODE = {"time", "timeit", "prun"}


@dataclass(frozen=True)
class Module:
    """Local module.

    Parameters
    ----------
    name : str
        Full name.
    file : Path or None
        Its file; None for a package without an ``__init__.py``.
    folders : tuple of Path
        Folders of a package; empty for a plain module.
    """

    name: str
    file: Path | None
    folders: tuple[Path, ...] = ()

    @property
    def is_source(self) -> bool:
        """True if its file is Python source."""
        return self.file is not None and self.file.suffix == ".py"

    @property
    def is_there(self) -> bool:
        """True if it still exists."""
        return self.file.is_file() if self.file is not None else any(folder.is_dir() for folder in self.folders)


@dataclass(frozen=True)
class Imports:
    """Imports of a piece of code.

    Parameters
    ----------
    modules : frozenset of str
        Full names after ``import``, and constant arguments of ``importlib.import_module``.
    members : frozenset of (str, str)
        A module, with what is imported from it: a name, a submodule, or ``"*"``.
    bound : tuple of (str, str, str)
        Names that absolute imports bind: name, module, and member of the module; "" for the module itself. For
        ``from module import *``, name and member are ``"*"``. Empty for compiled code.
    """

    modules: frozenset[str] = frozenset()
    members: frozenset[tuple[str, str]] = frozenset()
    bound: tuple[tuple[str, str, str], ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Modules that the code may import."""
        parts = {f"{base}.{name}" for base, name in self.members if name != "*"}
        return self.modules | {base for base, _ in self.members} | parts


@dataclass(frozen=True)
class Closure:
    """Result of `LocalModules.closure`.

    Parameters
    ----------
    modules : mapping of str to Module
        Local modules by name; a module comes before those that import it.
    uses : mapping of str to frozenset of str
        The local modules that each of them imports.
    others : frozenset of str
        Full names of all other imports that are not Python's own.
    """

    modules: Mapping[str, Module] = field(default_factory=dict)
    uses: Mapping[str, frozenset[str]] = field(default_factory=dict)
    others: frozenset[str] = frozenset()


def imports_of(source: str, package: str = "") -> Imports:
    """Return all imports of code, magics included; none if it is not Python.

    Parameters
    ----------
    source : str
        Python, or a cell as IPython's ``transform_cell`` returns it.
    package : str
        Package that relative imports start from.

    Returns
    -------
    Imports
        Modules, and names imported from modules.
    """
    modules: set[str] = set()
    members: set[tuple[str, str]] = set()
    bound: dict[tuple[str, str, str], None] = {}
    texts = [source]
    while texts:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            for node in ast.walk(ast.parse(texts.pop())):
                if isinstance(node, ast.Import):
                    modules.update(item.name for item in node.names)
                    for item in node.names:
                        top = item.name.partition(".")[0]
                        bound[(item.asname, item.name, "") if item.asname else (top, top, "")] = None
                elif isinstance(node, ast.ImportFrom):
                    base = _absolute(node.module or "", node.level, package)
                    members.update((base, item.name) for item in node.names if base)
                    if node.module and not node.level:
                        bound.update(((item.asname or item.name, node.module, item.name), None) for item in node.names)
                elif isinstance(node, ast.Call):
                    _take_call(node, package, modules, texts)
    return Imports(frozenset(modules), frozenset(members), tuple(bound))


def imports_of_code(code: types.CodeType) -> Imports:
    """Return the imports of compiled code, nested code included."""
    modules: set[str] = set()
    members: set[tuple[str, str]] = set()
    left = [code]
    while left:
        one = left.pop()
        left.extend(const for const in one.co_consts if isinstance(const, types.CodeType))
        _take_steps(one, modules, members)
    return Imports(frozenset(modules), frozenset(members))


def _take_steps(code: types.CodeType, modules: set[str], members: set[tuple[str, str]]) -> None:
    module = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = step.argval
            modules.add(module)
        elif step.opname == "IMPORT_FROM":
            members.add((module, step.argval))


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    parts = package.split(".") if package else []
    if level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _take_call(node: ast.Call, package: str, modules: set[str], texts: list[str]) -> None:
    """Collect imports by a function call, and code in strings."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if name in ("import_module", "__import__") and given:
        level = len(given[0]) - len(given[0].lstrip("."))
        base = given[1] if len(given) > 1 else package
        modules.update(filter(None, [_absolute(given[0].lstrip("."), level, base)]))
    elif name == "run_cell_magic" and len(given) == 3:
        texts.append(given[2])
    elif name == "run_line_magic" and len(given) == 2 and given[0] in _LINE_CODE:
        texts.append(given[1])
    elif name in ("exec", "eval") and given:
        texts.append(given[0])


class LocalModules:
    """Finder of local modules."""

    def __init__(self) -> None:
        self._found: dict[str, Module | None] = {}
        self._before: dict[str, Module] = {}
        self._searched = False

    def closure(self, needs: Iterable[str]) -> Closure:
        """Return all local modules that importing ``needs`` imports.

        Loaded submodules of the same packages are included.
        """
        self._found, self._searched = {}, False
        modules: dict[str, Module] = {}
        others: set[str] = set()
        imports: dict[str, Imports] = {}
        left = sorted(needs)
        while left:
            name = left.pop()
            for part in _prefixes(name):
                found = self._find(part)
                if found is None:
                    if "." not in part and part not in _NEVER:
                        others.add(name)
                    break
                if part in modules:
                    continue
                modules[part] = found
                if "." not in part and found.folders:
                    left.extend(loaded for loaded in list(sys.modules) if loaded.startswith(f"{part}."))
                if found.is_source:
                    imports[part] = _imports_of_module(found)
                    left.extend(imports[part].names)
        uses = {name: self._uses(name, one, modules) for name, one in imports.items()}
        return Closure({name: modules[name] for name in _ordered(modules, uses)}, uses, frozenset(others))

    def _uses(self, name: str, imports: Imports, modules: Mapping[str, Module]) -> frozenset[str]:
        """Return the modules that a module depends on, as few as possible."""
        used = {part for module in imports.modules for part in _prefixes(module)}
        for base, member in imports.members:
            inner = f"{base}.{member}"
            used.add(inner if inner in modules else base)
        return frozenset(used & modules.keys()) - {name}

    def _find(self, name: str) -> Module | None:
        if name not in self._found:
            found = self._found[name] = self._search(name)
            if found is not None:
                self._before[name] = found
        return self._found[name]

    def _search(self, name: str) -> Module | None:
        """Return the local module of a name; None if there is none."""
        if name.partition(".")[0] in _NEVER:
            return None
        parent = name.rpartition(".")[0]
        above = self._find(parent) if parent else None
        if parent and (above is None or not above.folders):
            return None
        loaded = getattr(sys.modules.get(name), "__spec__", None)
        if loaded is not None and not (loaded.has_location and not os.path.exists(loaded.origin or "")):
            return _local(name, loaded)
        if not self._searched:
            _invalidate_caches()
            self._searched = True
        spec = _spec(name, above)
        if spec is not None:
            return _local(name, spec)
        # The notebook may have changed its working folder meanwhile.
        before = self._before.get(name)
        return before if before is not None and before.is_there else None


def _imports_of_module(module: Module) -> Imports:
    assert module.file is not None
    try:
        info = module.file.stat()
        package = module.name if module.folders else module.name.rpartition(".")[0]
        return _imports_of_file(module.file, package, info.st_mtime_ns, info.st_ctime_ns, info.st_size)
    except OSError:
        return Imports()


@functools.lru_cache(10_000)
def _imports_of_file(file: Path, package: str, mtime_ns: int, ctime_ns: int, size: int) -> Imports:
    """Return a file's imports, cached in this process until the file changes."""
    return imports_of(_text(file), package)


def _invalidate_caches() -> None:
    """Let Python find files that were written a moment ago.

    Python's own function deletes finders from a dict, and raises KeyError if another thread was faster.
    """
    for _ in range(_TRIES):
        with _invalidating, contextlib.suppress(KeyError):
            importlib.invalidate_caches()
            return


def _spec(name: str, parent: Module | None) -> ModuleSpec | None:
    """Return the result of Python's own search, which imports nothing."""
    path = [str(folder) for folder in parent.folders] if parent is not None else None
    for finder in list(sys.meta_path):
        find: Any = getattr(finder, "find_spec", None)
        # A finder is foreign code, which may raise anything.
        with contextlib.suppress(Exception):
            spec: ModuleSpec | None = find(name, path)
            if spec is not None:
                return spec
    return None


def _local(name: str, spec: ModuleSpec) -> Module | None:
    folders: tuple[Path, ...] = ()
    with contextlib.suppress(Exception):
        folders = tuple(Path(place).absolute() for place in spec.submodule_search_locations or ())
    folders = tuple(folder for folder in folders if is_local(str(folder)) and folder.is_dir())
    if not spec.has_location or spec.origin is None:
        return Module(name, None, folders) if folders else None
    file = Path(spec.origin).absolute()
    return Module(name, file, folders) if is_local(os.path.dirname(file)) and file.is_file() else None


@functools.lru_cache(10_000)
def is_local(folder: str) -> bool:
    """Return True for a folder outside of Python, site-packages and this package."""
    path = Path(folder)
    if _INSTALLED & set(path.parts):
        return False
    return not any(path.is_relative_to(place) for place in _places())


@functools.cache
def _places() -> tuple[Path, ...]:
    """Return the folders of Python, of installed packages, and of this package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [place for name in names if (place := sysconfig.get_path(name))]
    with contextlib.suppress(Exception):
        places.append(site.getusersitepackages())
    return (*map(Path, places), Path(__file__).resolve().parents[1])


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _ordered(modules: Iterable[str], uses: Mapping[str, frozenset[str]]) -> list[str]:
    """Return modules after those that they use; within a cycle, in order of names."""
    ordered: dict[str, None] = {}
    met: set[str] = set()
    for first in sorted(modules):
        stack: list[tuple[str, Iterator[str]]] = []
        if first not in met:
            met.add(first)
            stack.append((first, iter(sorted(uses.get(first, ())))))
        while stack:
            name, left = stack[-1]
            following = next((one for one in left if one not in met), None)
            if following is None:
                ordered[name] = None
                stack.pop()
            else:
                met.add(following)
                stack.append((following, iter(sorted(uses.get(following, ())))))
    return list(ordered)


def _text(file: Path) -> str:
    """Return a source file's text; empty if it cannot be decoded."""
    with contextlib.suppress(SyntaxError, UnicodeDecodeError), tokenize.open(file) as opened:
        return opened.read()
    return ""
