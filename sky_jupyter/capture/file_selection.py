"""Which files of a folder go to the nodes.

What ``.gitignore`` names stays here, and what only belongs to this machine; so do files that hold passwords and keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from ..errors import CaptureError

LIMIT = 100 * 1000 * 1000
_SHOWN = 5
_NOT_FOLDERS = {".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".ipynb_checkpoints", ".tox", ".nox"}
_NOT_FOLDERS |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".eggs", ".idea", ".vscode"}
_NOT_ENDS = (".pyc", ".pyo", ".egg-info", ".swp", "~")
_NOT_FILES = {".DS_Store", ".git", ".coverage"}
# Where passwords, tokens and keys are kept. Samples to be filled in go like any other file.
_SECRETS = re.compile(
    r"\.env(?!\.(example|sample|template|dist)\Z)(\..+)?|\.envrc|\.netrc|\.pgpass|\.pypirc|\.npmrc|\.git-credentials|"
    r"credentials\.json|id_(rsa|dsa|ecdsa|ed25519)(_sk)?"
)
_KEY_ENDS = (".pem", ".key")
_PRIVATE = b"PRIVATE KEY-----"
_KEY_HEAD = 4096
# What every virtual environment has in it, whatever it is called.
_VENV = "pyvenv.cfg"


@dataclass(frozen=True)
class Rule:
    """Represent a line of a ``.gitignore``.

    Parameters
    ----------
    base : str
        The folder that it stands in, as a path with a slash at its end.
    pattern : re.Pattern
        What it names, as pathspec has it: a group of it matches where a path is only within that.
    folders_only : bool
        Whether it ends with a slash.
    again : bool
        Whether it begins with an exclamation mark.
    """

    base: str
    pattern: re.Pattern[str]
    folders_only: bool
    again: bool

    def names(self, path: str) -> bool:
        """Return whether a path is what the line names."""
        found = self.pattern.search(path[len(self.base) :])
        return found is not None and found.lastgroup is None


def read_rules(folder: Path) -> list[Rule]:
    """Return the rules in a folder's ``.gitignore``; none where it has none."""
    try:
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return _rules(f"{folder}/", lines)


def _rules(base: str, lines: Iterable[str]) -> list[Rule]:
    rules = []
    for line in lines:
        text = re.sub(r"(?<!\\)\s+\Z", "", line)
        # What `re` does not compile, or warns of, pathspec lets pass; git leaves it out, or takes it.
        with warnings.catch_warnings(), contextlib.suppress(ValueError, re.error):
            warnings.simplefilter("ignore")
            pattern = GitIgnoreSpecPattern(text.rstrip("/"))
            if pattern.regex is not None:
                rules.append(Rule(base, pattern.regex, text.endswith("/"), pattern.include is False))
    return rules


def _ignored(rules: Sequence[Rule], path: str, *, folder: bool) -> bool:
    """Whether the last rule that names a path ignores it."""
    for rule in reversed(rules):
        if (folder or not rule.folders_only) and rule.names(path):
            return not rule.again
    return False


def _rules_above(folder: Path) -> list[Rule]:
    """The rules of the git repository that a folder is in, as far as they are above it; those of none ignore it."""
    above = [folder, *folder.parents]
    top = next((place for place in above if (place / ".git").exists()), None)
    if top is None:
        return []
    rules: list[Rule] = []
    path = top
    for part in folder.relative_to(top).parts:
        rules += read_rules(path)
        path = path / part
        if _ignored(rules, str(path), folder=True):
            # Who names what git ignores means it.
            return []
    return rules


def files_in(
    root: Path, excludes: Sequence[str] = (), on_secret: Callable[[str], object] = str
) -> Iterator[tuple[str, os.stat_result]]:
    """A folder's files and links that go to nodes: each path from the folder, with slashes, and what it is itself.

    A link goes as a link, as with git: what it leads to goes where that is in the folder, and nowhere else.

    Parameters
    ----------
    excludes : sequence of str
        What is left out besides, as lines of a ``.gitignore`` in the folder.
    on_secret : callable
        Told the path of each file that is left out because it holds passwords or keys.

    Raises
    ------
    CaptureError
        When something of it cannot be read.
    """
    root = root.absolute()
    yield from _walk(root, "", [*_rules_above(root), *_rules(f"{root}/", excludes)], on_secret)


def _walk(
    folder: Path, name: str, rules: list[Rule], on_secret: Callable[[str], object]
) -> Iterator[tuple[str, os.stat_result]]:
    rules = [*rules, *read_rules(folder)]
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if _stays(entry, os.path.isdir(entry.path)) or _ignored(rules, entry.path, folder=is_folder):
                continue
            inner = f"{name}{entry.name}"
            if is_folder:
                yield from _walk(Path(entry.path), f"{inner}/", rules, on_secret)
            elif entry.is_symlink():
                yield inner, entry.stat(follow_symlinks=False)
            elif entry.is_file():
                if _is_secret(entry):
                    on_secret(inner)
                else:
                    yield inner, entry.stat()
    except OSError as error:
        raise CaptureError(f"{error.filename or folder} cannot be sent: {error.strerror or error}") from None


def _stays(entry: os.DirEntry[str], is_folder: bool) -> bool:
    """Whether something is of use on this machine only."""
    if entry.name.endswith(_NOT_ENDS):
        return True
    if not is_folder:
        return entry.name in _NOT_FILES
    return entry.name in _NOT_FOLDERS or os.path.exists(os.path.join(entry.path, _VENV))


def _is_secret(entry: os.DirEntry[str]) -> bool:
    """Tell whether a file holds passwords or private keys: by its name, of key files by how they begin."""
    if _SECRETS.fullmatch(entry.name):
        return True
    if not entry.name.endswith(_KEY_ENDS):
        return False
    with open(entry.path, "rb") as file:
        return _PRIVATE in file.read(_KEY_HEAD)


def target_of(link: Path, root: Path) -> tuple[str, bool]:
    """Where a link below ``root`` leads, as it is to lead on a node, and whether that is outside of ``root``."""
    to = os.readlink(link)
    place = os.path.normpath(os.path.join(link.parent, to))
    outside = not Path(place).is_relative_to(root)
    if os.path.isabs(to) and not outside:
        # There the folder is somewhere else.
        to = os.path.relpath(place, link.parent)
    return to, outside


def refuse_large(what: str, files: Sequence[tuple[str, int]], advice: str) -> None:
    """Refuse a folder whose files are too much, with the largest of what is in it.

    Parameters
    ----------
    what : str
        The folder, as a message names it.
    files : sequence of (str, int)
        Each file's path from the folder and its size.

    Raises
    ------
    CaptureError
        When they are more than `LIMIT` bytes.
    """
    size = sum(size for _, size in files)
    if size <= LIMIT:
        return
    largest = sorted(files, key=lambda item: (-item[1], item[0]))[:_SHOWN]
    if 2 * sum(its for _, its in largest) < size:
        # It is many small ones: the folders that they are in tell more.
        entries: dict[str, int] = {}
        for name, its in files:
            first, slash, _ = name.partition("/")
            entries[first + slash] = entries.get(first + slash, 0) + its
        largest = sorted(entries.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    shown = ", ".join(f"{name} {its / 1e6:.1f} MB" for name, its in largest)
    raise CaptureError(
        f"{what} is {size / 1e6:.0f} MB in {len(files)} files, and a folder of up to {LIMIT // 1_000_000} MB is sent; "
        f"the largest in it: {shown}; {advice}"
    )
