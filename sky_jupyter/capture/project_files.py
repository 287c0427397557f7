"""Local code and files that a pool's nodes need, and their changes.

On the nodes, all of them are in one folder, which comes first in ``sys.path``. Modules are placed by their names, and
included files by their path relative to their entry of ``sys.path`` here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..errors import CaptureError, SpecError
from ..machines.local_machine import absolute
from ..node.files.file_manifest import digest_of
from . import file_selection
from .file_stamps import FileStamps
from .import_graph import Closure, LocalModules, Module

# Lines of a .gitignore that leave out all files but Python's.
_ONLY_MODULES = ("*", "!*/", "!*.py", "!*.so")
# Number of looks that are kept: calls rarely need the same modules of libraries.
_LOOKS = 64
_ADVICE = "name what is not needed in .gitignore, or bring it with `%sky put`"


@dataclass(frozen=True)
class SourceFile:
    """Local file or link that the nodes need.

    Parameters
    ----------
    path : Path
        The file, or the link itself.
    stamp : tuple of int
        Modification time, size, inode and change time: if equal, the file has not changed.
    digest : str
        SHA-256 of the content.
    to : str
        Target of a link.
    """

    path: Path
    stamp: tuple[int, int, int, int]
    digest: str
    to: str = ""


@dataclass(frozen=True)
class _Found:
    """File, or link with the folder that is sent with it."""

    path: Path
    info: os.stat_result
    root: Path | None = None


@dataclass(frozen=True)
class CodeSnapshot:
    """Files that the nodes need, and their changes; made by `LocalCode.look`.

    Parameters
    ----------
    sources : mapping of str to SourceFile
        Files, by their paths on the nodes.
    index : bytes
        Index that the nodes read.
    changed : tuple of str
        Paths with other content than the nodes have.
    gone : tuple of str
        Paths that the nodes have, and that are not needed or do not exist any more.
    again : tuple of str
        Unchanged modules that import changed ones.
    others : frozenset of str
        Full names of imports that are not local.
    secret : mapping of str to str
        Files with passwords or keys that are not sent and not yet reported: local paths by paths on the nodes.
    outward : tuple of str
        New links that lead out of the sent folders, as messages name them.
    """

    sources: Mapping[str, SourceFile] = field(default_factory=dict)
    index: bytes = b""
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    secret: Mapping[str, str] = field(default_factory=dict)
    outward: tuple[str, ...] = ()

    @functools.cached_property
    def version(self) -> str:
        """Digest of the whole content; empty if there is none."""
        return hashlib.blake2b(self.index, digest_size=12).hexdigest() if self.index else ""

    @property
    def news(self) -> str:
        """Message about changes, links and files left out; empty if there is none."""
        return "; ".join(filter(None, [self._changes, self._links, self._left_out]))

    @property
    def _left_out(self) -> str:
        if not self.secret:
            return ""
        many = len(self.secret) > 1
        return (
            f"{_some(list(self.secret))} {'stay' if many else 'stays'} here, as such files hold passwords or keys; "
            f"`--include {shlex.quote(next(iter(self.secret.values())))}` sends {'the first' if many else 'it'}"
        )

    @property
    def _links(self) -> str:
        if not self.outward:
            return ""
        them, lead = ("they go", "lead") if len(self.outward) > 1 else ("it goes", "leads")
        return (
            f"{_some(self.outward)} {lead} out of what is sent: {them} as a link, without what is there; "
            "`--include` or `%sky put` brings that"
        )

    @property
    def _changes(self) -> str:
        parts = [f"{_some(self.changed)} changed"] if self.changed else []
        parts += [f"{_some(self.gone)} {'is' if len(self.gone) == 1 else 'are'} gone"] if self.gone else []
        if not parts:
            return ""
        text = " and ".join(parts)
        if any(path.endswith((".so", ".pyd")) for path in self.changed):
            return f"{text}: sent again; native code that a rank has loaded stays as it was until `%sky restart`"
        if any(path.endswith(".py") for path in self.changed):
            return f"{text}: sent again and reloaded on the nodes{self._with_them}"
        return f"{text}: {'sent again' if self.changed else 'removed on the nodes'}"

    @property
    def _with_them(self) -> str:
        if not self.again:
            return ""
        it = "it" if len(self.changed) == 1 else "them"
        return f", with {_some(self.again)}, which import{'s' if len(self.again) == 1 else ''} {it}"


@dataclass
class _Look:
    """Look that found nothing new, and the state that shows if another is needed."""

    code: CodeSnapshot
    stamps: FileStamps
    state: tuple[object, ...]
    # When the files were looked at last.
    at: float = field(default_factory=time.perf_counter)

    def holds(self, within: float = 0.0) -> bool:
        """Return True if all is unchanged, by a check at most ``within`` seconds old."""
        if self.state != _import_state():
            return False
        now = time.perf_counter()
        if now - self.at >= within:
            if not self.stamps.hold():
                return False
            self.at = now
        return True


class LocalCode:
    """Project files on one pool's nodes; a file needed once is kept up to date."""

    def __init__(self) -> None:
        self._modules = LocalModules()
        self._needs: set[str] = set()
        # By place on the nodes: local path, name as the user gave it, and excludes.
        self._included: dict[str, tuple[Path, str, tuple[str, ...]]] = {}
        # Folders of scripts, whose modules are sent, by place on the nodes.
        self._scripts: dict[str, Path] = {}
        self._sources: Mapping[str, SourceFile] = {}
        # Secret files and outward links that were reported.
        self._told: set[str] = set()
        # Looks that found nothing new, by the needed modules.
        self._unchanged: dict[frozenset[str], _Look] = {}

    def include(self, paths: Iterable[str], excludes: Iterable[str] = ()) -> None:
        """Send files and folders with the code from now on.

        Parameters
        ----------
        paths : iterable of str
            Files and folders.
        excludes : iterable of str
            Lines of a ``.gitignore`` in each folder.

        Raises
        ------
        SpecError
            When a path does not exist, or another one has its place on the nodes.
        """
        for text in paths:
            path = check_path(text)
            place = _place_of(path)
            other, _, _ = self._included.get(place, (path, "", ()))
            if other.exists():
                _refuse_other(text, path, other)
            self._included[place] = path, text, tuple(excludes)
            self._unchanged.clear()

    def include_script(self, path: Path) -> None:
        """Send a script, and the modules of its folder, with the code from now on."""
        self._unchanged.clear()
        self._scripts[_place_of(path.parent)] = path.parent

    def look(self, needs: Iterable[str], *, within: float = 0.0) -> CodeSnapshot:
        """Return the files that the nodes need to import ``needs``.

        Files that were checked less than ``within`` seconds ago count as unchanged. Raise CaptureError if a file cannot
        be read or a folder is too large. An include that fails is dropped.
        """
        needs = frozenset(needs)
        known = self._unchanged.get(needs)
        if known is not None and known.holds(within):
            return known.code
        stamps, state = FileStamps(), _import_state()
        code = self._look(needs, stamps)
        if code.sources is self._sources and not code.news and stamps.are_sure:
            if len(self._unchanged) >= _LOOKS:
                self._unchanged.clear()
            self._unchanged[needs] = _Look(code, stamps, state)
        return code

    def _look(self, needs: frozenset[str], stamps: FileStamps) -> CodeSnapshot:
        """Look at all files, and stamp all paths that affect the result."""
        stamps.add(entry for entry in sys.path if isinstance(entry, str))
        closure = self._modules.closure(needs | self._needs)
        # Only local modules are remembered: the caller that needs others handles them.
        local = {name for name in needs if name.partition(".")[0] in closure.modules}
        if not local <= self._needs:
            self._needs |= local
            self._unchanged.clear()
        found: dict[str, _Found] = {}
        secret: dict[str, str] = {}
        _add_modules(closure.modules, found, secret, stamps)
        for place in list(self._included):
            self._add_included(place, found, secret, stamps)
        for place, folder in self._scripts.items():
            stamps.add([folder])
            if folder.is_dir():
                _add_included(place, folder, _ONLY_MODULES, found, {}, stamps)
        # A module may be a folder behind a link: the nodes have the folder itself.
        above = {str(one) for place in found for one in PurePosixPath(place).parents}
        sources: Mapping[str, SourceFile] = {
            place: self._source(place, one) for place, one in sorted(found.items()) if place not in above
        }
        stamps.add(source.path for source in sources.values())
        stamps.add(secret.values())
        before = self._sources
        sources = before if sources == before else sources
        changed = tuple(name for name in sources if name in before and before[name].digest != sources[name].digest)
        gone = tuple(name for name in before if name not in sources)
        return CodeSnapshot(
            sources=sources,
            index=self._index(sources, closure) if sources else b"",
            changed=changed,
            gone=gone,
            again=_again(changed, closure),
            others=closure.others,
            # A secret file that was included by its own name is sent.
            secret={place: path for place, path in secret.items() if place not in found and place not in self._told},
            outward=self._outward(sources, found),
        )

    def _add_included(self, place: str, found: dict[str, _Found], secret: dict[str, str], stamps: FileStamps) -> None:
        path, text, excludes = self._included[place]
        try:
            _add_included(place, path, excludes, found, secret, stamps)
        except CaptureError as error:
            # Otherwise every later cell would fail, with no way to remove the include.
            del self._included[place]
            raise CaptureError(f"{error}; cells run without {text} until it is included again") from None

    def _outward(self, sources: Mapping[str, SourceFile], found: Mapping[str, _Found]) -> tuple[str, ...]:
        """Return new links whose targets are not sent."""
        new = []
        for place, source in sources.items():
            root = found[place].root
            if source.to and root is not None and file_selection.target_of(source.path, root)[1]:
                text = f"{place} ({source.to})"
                # The target may be sent too.
                inside = os.path.normpath(os.path.join(os.path.dirname(place), source.to))
                if text not in self._told and not any(one == inside or one.startswith(f"{inside}/") for one in sources):
                    new.append(text)
        self._told.update(new)
        return tuple(new)

    def commit(self, code: CodeSnapshot) -> None:
        """Record that the nodes have these files."""
        if self._sources is not code.sources:
            self._sources = code.sources
            # Those looks compared with other files.
            self._unchanged.clear()
        self._told.update(code.secret)

    def _index(self, sources: Mapping[str, SourceFile], closure: Closure) -> bytes:
        """Return the index for the nodes: file hashes, modules in order of use, includes."""
        index = {
            "files": {place: source.digest for place, source in sources.items()},
            "modules": [[name, sorted(closure.uses.get(name, ()))] for name in closure.modules],
            "included": {
                **{str(folder): place for place, folder in self._scripts.items()},
                **{text: place for place, (_, text, _) in self._included.items()},
            },
        }
        return json.dumps(index, sort_keys=True).encode()

    def _source(self, place: str, one: _Found) -> SourceFile:
        path, info = one.path, one.info
        stamp = (info.st_mtime_ns, info.st_size, info.st_ino, info.st_ctime_ns)
        if one.root is not None:
            try:
                to, _ = file_selection.target_of(path, one.root)
            except OSError as error:
                raise CaptureError(f"{path} cannot be sent: {error.strerror or error}") from None
            digest = hashlib.sha256(f"link\0{to}".encode("utf-8", "surrogateescape")).hexdigest()
            return SourceFile(path, stamp, digest, to)
        known = self._sources.get(place)
        if known is not None and (known.path, known.stamp) == (path, stamp):
            return known
        try:
            return SourceFile(path, stamp, digest_of(path))
        except OSError as error:
            raise CaptureError(f"{path} cannot be sent: {error.strerror or error}") from None


def check_path(text: str) -> Path:
    """Return the absolute path of an include; raise SpecError if it does not exist."""
    path = absolute(text)
    if not os.path.exists(path):
        raise SpecError(f"{text} is not there; --include takes files and folders of this machine")
    return Path(os.path.normpath(path))


def check_paths(texts: Iterable[str]) -> None:
    """Raise SpecError unless included paths exist and have different places on nodes."""
    places: dict[str, Path] = {}
    for text in texts:
        path = check_path(text)
        _refuse_other(text, path, places.setdefault(_place_of(path), path))


def _refuse_other(text: str, path: Path, other: Path) -> None:
    if other != path:
        raise SpecError(
            f"--include {text}: {other} is included too, and would have the same place on the nodes; rename one, or "
            "include the folder that has both"
        )


def _place_of(path: Path) -> str:
    """Return an included path's place on the nodes: below ``sys.path``, or its name."""
    if path == Path.cwd():
        return ""
    entries = [Path(entry or ".").absolute() for entry in sys.path if isinstance(entry, str)]
    above = [place for place in (*entries, Path.cwd()) if path != place and path.is_relative_to(place)]
    return path.relative_to(max(above, key=lambda place: len(place.parts))).as_posix() if above else path.name


def _add_included(
    place: str,
    path: Path,
    excludes: Sequence[str],
    found: dict[str, _Found],
    secret: dict[str, str],
    stamps: FileStamps,
) -> None:
    stamps.add([path])
    if path.is_file():
        found.setdefault(place, _Found(path, path.stat()))
    elif path.is_dir():
        files = list(file_selection.files_in(path, excludes, _noting(secret, place, path), stamps.add))
        file_selection.refuse_large(f"--include {path}", [(name, info.st_size) for name, info in files], _ADVICE)
        for name, info in files:
            found.setdefault(f"{place}/{name}".lstrip("/"), _inside(path, name, info))


def _noting(secret: dict[str, str], place: str, folder: Path) -> Callable[[str], object]:
    """Return a function that records a folder's secret files."""

    def note(inner: str) -> None:
        path = folder / inner
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        secret.setdefault(f"{place}/{inner}".lstrip("/"), str(shown))

    return note


def _inside(root: Path, name: str, info: os.stat_result) -> _Found:
    return _Found(root / name, info, root if stat.S_ISLNK(info.st_mode) else None)


def _own_file(file: Path) -> _Found:
    """Return a module's file; follow a link unless its target has another suffix."""
    if file.is_symlink() and Path(os.path.realpath(file)).suffix != file.suffix:
        return _Found(file, file.lstat(), file.parent)
    return _Found(file, file.stat())


def _add_modules(
    modules: Mapping[str, Module], found: dict[str, _Found], secret: dict[str, str], stamps: FileStamps
) -> None:
    """Add the file of each module, and all files of each outermost package."""
    packages = []
    for name, module in sorted(modules.items()):
        stamps.add(module.folders)
        if module.file is None:
            continue
        place = name.replace(".", "/")
        if module.folders:
            packages.append((name, place, module))
            found.setdefault(f"{place}/{module.file.name}", _own_file(module.file))
        else:
            ending = module.file.name.removeprefix(name.rpartition(".")[2])
            found.setdefault(f"{place}{ending}", _own_file(module.file))
    for name, place, module in packages:
        above = name.rpartition(".")[0]
        # A package inside another is sent with it. But of one without an __init__.py, only imported modules are sent.
        if above in modules and modules[above].file is not None:
            continue
        for folder in module.folders:
            files = list(file_selection.files_in(folder, (), _noting(secret, place, folder), stamps.add))
            sizes = [(inner, info.st_size) for inner, info in files]
            file_selection.refuse_large(f"the package {name} ({folder})", sizes, _ADVICE)
            for inner, info in files:
                found.setdefault(f"{place}/{inner}", _inside(folder, inner, info))


def _again(changed: Sequence[str], closure: Closure) -> tuple[str, ...]:
    """Return the modules that import changed ones, directly or indirectly."""
    stale = {name for path in changed for name in [module_of(path)] if name in closure.modules}
    first = frozenset(stale)
    while more := {name for name, uses in closure.uses.items() if name not in stale and uses & stale}:
        stale |= more
    return tuple(sorted(stale - first))


def module_of(place: str) -> str:
    """Return the module name of a file's path on the nodes."""
    name = place.partition(".")[0].replace("/", ".")
    return name.removesuffix(".__init__")


def _some(names: Sequence[str]) -> str:
    shown = [*names[:4], f"{len(names) - 4} more"] if len(names) > 5 else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _import_state() -> tuple[object, ...]:
    """Return a state of Python's import system that changes when modules are loaded."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    # Modules are listed in the order of their loading. The copy is for other threads, which may import meanwhile.
    newest = next(reversed(list(sys.modules)), None)
    return here, tuple(map(str, sys.path)), tuple(map(id, sys.meta_path)), len(sys.modules), newest
