"""The local code and files that a pool's nodes are to have: what that is now, and what of it has changed.

On the nodes it all lies below one folder that Python searches first: a module where its name says, and
an included file where it is seen from the entry of ``sys.path`` that it is in.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..errors import CaptureError, SpecError
from ..machines.local import absolute
from ..node.files.file_manifest import digest_of
from . import file_selection
from .import_graph import Closure, LocalModules, Module

_ADVICE = "name what is not needed in .gitignore, or bring it with `%sky put`"


@dataclass(frozen=True)
class Source:
    """A file or link here that the nodes are to have.

    Parameters
    ----------
    path : Path
        The file, or the link itself.
    stamp : tuple of int
        Time, size and number on the disk: with the same ones it is the same file.
    digest : str
        The SHA-256 of its content.
    to : str
        Where a link is to lead.
    """

    path: Path
    stamp: tuple[int, int, int]
    digest: str
    to: str = ""


@dataclass(frozen=True)
class _Found:
    """A file, or a link and the folder that is sent with it."""

    path: Path
    info: os.stat_result
    root: Path | None = None


@dataclass(frozen=True)
class Code:
    """What the nodes are to have, and what is new in it; made by `LocalCode.look`.

    Parameters
    ----------
    sources : mapping of str to Source
        By their paths on the nodes.
    index : bytes
        What the nodes read of it.
    changed : tuple of str
        Paths whose content is another one than at the last look.
    gone : tuple of str
        Paths that were there at the last look.
    again : tuple of str
        Names of modules that import changed ones, and have not changed themselves.
    others : frozenset of str
        Full names of what is imported and not local.
    secret : mapping of str to str
        Files that stay here because they hold passwords or keys, and of which the person has not been told: by
        their paths on the nodes, their paths here.
    outward : tuple of str
        What is told of links that lead out of what is sent, once.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    index: bytes = b""
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    secret: Mapping[str, str] = field(default_factory=dict)
    outward: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Names the whole content; empty where there is none."""
        return hashlib.blake2b(self.index, digest_size=12).hexdigest() if self.index else ""

    @property
    def news(self) -> str:
        """What a person is told: what has changed, of links, and what is left out; empty where there is nothing."""
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


class LocalCode:
    """What one pool's nodes have of the user's project; what was needed once is kept up to date from then on."""

    def __init__(self) -> None:
        self._modules = LocalModules()
        self._needs: set[str] = set()
        # By their places on the nodes: each path here, how the person named it, and what of it stays here.
        self._included: dict[str, tuple[Path, str, tuple[str, ...]]] = {}
        self._sources: dict[str, Source] = {}
        # What was left out as secret, and which links lead out, as it was told.
        self._told: set[str] = set()

    def include(self, paths: Iterable[str], excludes: Iterable[str] = ()) -> None:
        """Have files and folders sent with the code from now on.

        Parameters
        ----------
        excludes : iterable of str
            What of them is left out, as lines of a ``.gitignore`` in each folder.

        Raises
        ------
        SpecError
            When one is not there.
        """
        for text in paths:
            path = check_path(text)
            self._included[_place_of(path)] = path, text, tuple(excludes)

    def look(self, needs: Iterable[str]) -> Code:
        """What the nodes are to have, with what importing ``needs`` takes.

        Raises
        ------
        CaptureError
            When something of it cannot be read, or is too large. What was included and is refused is not kept.
        """
        needs = set(needs)
        closure = self._modules.closure(needs | self._needs)
        # What is not local stays so, and is asked about by those who need it only.
        self._needs |= {name for name in needs if name.partition(".")[0] in closure.modules}
        found: dict[str, _Found] = {}
        secret: dict[str, str] = {}
        _add_modules(closure.modules, found, secret)
        for place in list(self._included):
            self._add_included(place, found, secret)
        # Where a module lies behind a link, there is a folder.
        above = {str(one) for place in found for one in PurePosixPath(place).parents}
        sources = {place: self._source(place, one) for place, one in sorted(found.items()) if place not in above}
        before = self._sources
        changed = tuple(name for name in sources if name in before and before[name].digest != sources[name].digest)
        gone = tuple(name for name in before if name not in sources)
        return Code(
            sources=sources,
            index=self._index(sources, closure) if sources else b"",
            changed=changed,
            gone=gone,
            again=_again(changed, closure),
            others=closure.others,
            # Who includes one by its own name means it.
            secret={place: path for place, path in secret.items() if place not in found and place not in self._told},
            outward=self._outward(sources, found),
        )

    def _add_included(self, place: str, found: dict[str, _Found], secret: dict[str, str]) -> None:
        path, text, excludes = self._included[place]
        try:
            _add_included(place, path, excludes, found, secret)
        except CaptureError as error:
            # Nobody could run a cell any more, with no way to take it back.
            del self._included[place]
            raise CaptureError(f"{error}; cells run without {text} until it is included again") from None

    def _outward(self, sources: Mapping[str, Source], found: Mapping[str, _Found]) -> tuple[str, ...]:
        """Links whose targets are not sent, which nobody was told of."""
        new = []
        for place, source in sources.items():
            root = found[place].root
            if source.to and root is not None and file_selection.target_of(source.path, root)[1]:
                text = f"{place} ({source.to})"
                # What it leads to may be sent beside it.
                inside = os.path.normpath(os.path.join(os.path.dirname(place), source.to))
                if text not in self._told and not any(one == inside or one.startswith(f"{inside}/") for one in sources):
                    new.append(text)
        self._told.update(new)
        return tuple(new)

    def commit(self, code: Code) -> None:
        """The nodes have it."""
        self._sources = dict(code.sources)
        self._told.update(code.secret)

    def _index(self, sources: Mapping[str, Source], closure: Closure) -> bytes:
        """What the nodes read: each file's hash, the modules, each after those that it uses, and what was included."""
        index = {
            "files": {place: source.digest for place, source in sources.items()},
            "modules": [[name, sorted(closure.uses.get(name, ()))] for name in closure.modules],
            "included": {text: place for place, (_, text, _) in self._included.items()},
        }
        return json.dumps(index, sort_keys=True).encode()

    def _source(self, place: str, one: _Found) -> Source:
        path, info = one.path, one.info
        stamp = (info.st_mtime_ns, info.st_size, info.st_ino)
        if one.root is not None:
            try:
                to, _ = file_selection.target_of(path, one.root)
            except OSError as error:
                raise CaptureError(f"{path} cannot be sent: {error.strerror or error}") from None
            digest = hashlib.sha256(f"link\0{to}".encode("utf-8", "surrogateescape")).hexdigest()
            return Source(path, stamp, digest, to)
        known = self._sources.get(place)
        if known is not None and (known.path, known.stamp) == (path, stamp):
            return known
        try:
            return Source(path, stamp, digest_of(path))
        except OSError as error:
            raise CaptureError(f"{path} cannot be sent: {error.strerror or error}") from None


def check_path(text: str) -> Path:
    """The path of what is to be included; SpecError where it is not there."""
    path = absolute(text)
    if not os.path.exists(path):
        raise SpecError(f"{text} is not there; --include takes files and folders of this machine")
    return Path(os.path.normpath(path))


def _place_of(path: Path) -> str:
    """Where an included file or folder is on the nodes: as seen from what Python searches, or by its name."""
    if path == Path.cwd():
        return ""
    entries = [Path(entry or ".").absolute() for entry in sys.path if isinstance(entry, str)]
    above = [place for place in (*entries, Path.cwd()) if path != place and path.is_relative_to(place)]
    return path.relative_to(max(above, key=lambda place: len(place.parts))).as_posix() if above else path.name


def _add_included(
    place: str, path: Path, excludes: Sequence[str], found: dict[str, _Found], secret: dict[str, str]
) -> None:
    if path.is_file():
        found.setdefault(place, _Found(path, path.stat()))
    elif path.is_dir():
        files = list(file_selection.files_in(path, excludes, _noting(secret, place, path)))
        file_selection.refuse_large(f"--include {path}", [(name, info.st_size) for name, info in files], _ADVICE)
        for name, info in files:
            found.setdefault(f"{place}/{name}".lstrip("/"), _inside(path, name, info))


def _noting(secret: dict[str, str], place: str, folder: Path) -> Callable[[str], object]:
    """Note which files of a folder stay here because of what they hold."""

    def note(inner: str) -> None:
        path = folder / inner
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        secret.setdefault(f"{place}/{inner}".lstrip("/"), str(shown))

    return note


def _inside(root: Path, name: str, info: os.stat_result) -> _Found:
    return _Found(root / name, info, root if stat.S_ISLNK(info.st_mode) else None)


def _own_file(file: Path) -> _Found:
    """A module's own file: through a link, as Python imports it, but not where that leads to something else."""
    if file.is_symlink() and Path(os.path.realpath(file)).suffix != file.suffix:
        return _Found(file, file.lstat(), file.parent)
    return _Found(file, file.stat())


def _add_modules(modules: Mapping[str, Module], found: dict[str, _Found], secret: dict[str, str]) -> None:
    """Each module's own file, whatever git ignores, and of each outermost package all that goes."""
    packages = []
    for name, module in sorted(modules.items()):
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
        # One without an __init__.py is no package of its own: of it go the modules that are imported.
        if above in modules and modules[above].file is not None:
            continue
        for folder in module.folders:
            files = list(file_selection.files_in(folder, on_secret=_noting(secret, place, folder)))
            sizes = [(inner, info.st_size) for inner, info in files]
            file_selection.refuse_large(f"the package {name} ({folder})", sizes, _ADVICE)
            for inner, info in files:
                found.setdefault(f"{place}/{inner}", _inside(folder, inner, info))


def _again(changed: Sequence[str], closure: Closure) -> tuple[str, ...]:
    """The modules that import changed ones, directly or through others."""
    stale = {name for path in changed for name in [module_of(path)] if name in closure.modules}
    first = frozenset(stale)
    while more := {name for name, uses in closure.uses.items() if name not in stale and uses & stale}:
        stale |= more
    return tuple(sorted(stale - first))


def module_of(place: str) -> str:
    """The name of the module that a file is, by its path on the nodes."""
    name = place.partition(".")[0].replace("/", ".")
    return name.removesuffix(".__init__")


def _some(names: Sequence[str]) -> str:
    shown = [*names[:4], f"{len(names) - 4} more"] if len(names) > 5 else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
