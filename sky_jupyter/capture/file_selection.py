"""Files of a folder that are sent to the nodes.

Files that ``.gitignore`` names, files of use on this machine only, and files with passwords or keys are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CaptureError
from .gitignore_brackets import plain_brackets

LIMIT = 100 * 1000 * 1000
_SHOWN = 5
_NOT_FOLDERS = {".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".ipynb_checkpoints", ".tox", ".nox"}
_NOT_FOLDERS |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".eggs", ".idea", ".vscode"}
_NOT_ENDS = (".pyc", ".pyo", ".egg-info", ".swp", "~")
_NOT_FILES = {".DS_Store", ".git", ".coverage"}
# Files with passwords, tokens and keys. Templates of them are sent like other files.
_SECRETS = re.compile(
    r"\.env(?!\.(example|sample|template|dist)\Z)(\..+)?|\.envrc|\.netrc|\.pgpass|\.pypirc|\.npmrc|\.git-credentials|"
    r"credentials\.json|id_(rsa|dsa|ecdsa|ed25519)(_sk)?"
)
_KEY_ENDS = (".pem", ".key")
_PRIVATE = b"PRIVATE KEY-----"
_KEY_HEAD = 4096
_RULES = ".gitignore"
# A file that every virtual environment contains.
_VENV = "pyvenv.cfg"


@dataclass(frozen=True)
class Rule:
    """Line of a ``.gitignore``.

    Parameters
    ----------
    base : str
        Folder of the file, with a slash at its end.
    pattern : re.Pattern
        pathspec's pattern. One of its named groups matches if a path is only inside of a folder that the line names.
    folders_only : bool
        True if the line ends with a slash.
    again : bool
        True if the line begins with an exclamation mark.
    """

    base: str
    pattern: re.Pattern[str]
    folders_only: bool
    again: bool

    def names(self, path: str) -> bool:
        """Return True if the line matches a path."""
        # pathspec's patterns stop at a line break in a name; git's do not.
        found = self.pattern.search(path[len(self.base) :].replace("\n", "\0"))
        return found is not None and found.lastgroup is None


def read_rules(folder: Path) -> list[Rule]:
    """Return the rules of a folder's ``.gitignore``; none if it is missing."""
    try:
        lines = (folder / _RULES).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    return _rules(f"{folder}/", lines)


def _rules(base: str, lines: Iterable[str]) -> list[Rule]:
    # Imported here: nodes lack this package, and may import the API.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    rules = []
    for line in lines:
        text = plain_brackets(re.sub(r"(?<!\\)\s+\Z", "", line))
        if text is None:
            continue
        # pathspec accepts lines that `re` does not compile, or warns of; git ignores the former and uses the latter.
        with warnings.catch_warnings(), contextlib.suppress(ValueError, re.error):
            warnings.simplefilter("ignore")
            pattern = GitIgnoreSpecPattern(text.rstrip("/"))
            if pattern.regex is not None:
                rules.append(Rule(base, pattern.regex, text.endswith("/"), pattern.include is False))
    return rules


def _ignored(rules: Sequence[Rule], path: str, *, folder: bool) -> bool:
    """Return True if the last rule that matches a path ignores it."""
    for rule in reversed(rules):
        if (folder or not rule.folders_only) and rule.names(path):
            return not rule.again
    return False


def _rules_above(folder: Path) -> list[Rule]:
    """Return the repository's rules above a folder; none if they ignore the folder."""
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
            # A folder that git ignores was named explicitly: send it.
            return []
    return rules


def _repository_mark(folder: Path) -> str:
    """Return a path that exists as long as a folder is a git repository.

    Not `.git` itself: git writes into that all the time.
    """
    mark = os.path.join(folder, ".git")
    return os.path.join(mark, "HEAD") if os.path.isdir(mark) else mark


def files_in(
    root: Path,
    excludes: Sequence[str] = (),
    on_secret: Callable[[str], object] = str,
    on_look: Callable[[list[str]], object] = list,
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files and links of a folder that are sent, with their status.

    Paths are relative, with slashes. A link is sent as a link, as with git: its target is sent only if it is in
    the folder.

    Parameters
    ----------
    root : Path
        The folder.
    excludes : sequence of str
        Further lines of a ``.gitignore`` in the folder.
    on_secret : callable
        Called with the path of each file that is left out because it has passwords or keys.
    on_look : callable
        Called with the full paths of the folders and rules that were consulted. While these are unchanged, the same
        files are found.

    Yields
    ------
    (str, os.stat_result)
        Relative path, and the status of the file or link itself.

    Raises
    ------
    CaptureError
        When a file or folder cannot be read.
    """
    root = root.absolute()
    on_look([path for above in root.parents for path in (_repository_mark(above), os.path.join(above, _RULES))])
    yield from _walk(root, "", [*_rules_above(root), *_rules(f"{root}/", excludes)], on_secret, on_look)


def _walk(
    folder: Path,
    name: str,
    rules: list[Rule],
    on_secret: Callable[[str], object],
    on_look: Callable[[list[str]], object],
) -> Iterator[tuple[str, os.stat_result]]:
    on_look([str(folder), os.path.join(folder, _RULES)])
    rules = [*rules, *read_rules(folder)]
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if _stays(entry, os.path.isdir(entry.path)) or _ignored(rules, entry.path, folder=is_folder):
                if is_folder:
                    # It may stop being a virtual environment; other changes in it do not matter.
                    on_look([os.path.join(entry.path, _VENV)])
                continue
            inner = f"{name}{entry.name}"
            if is_folder:
                yield from _walk(Path(entry.path), f"{inner}/", rules, on_secret, on_look)
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
    """Return True for a file or folder that is of use on this machine only."""
    if entry.name.endswith(_NOT_ENDS):
        return True
    if not is_folder:
        return entry.name in _NOT_FILES
    return entry.name in _NOT_FOLDERS or os.path.exists(os.path.join(entry.path, _VENV))


def _is_secret(entry: os.DirEntry[str]) -> bool:
    """Return True for a file with passwords or private keys, by name or first bytes."""
    if _SECRETS.fullmatch(entry.name):
        return True
    if not entry.name.endswith(_KEY_ENDS):
        return False
    with open(entry.path, "rb") as file:
        return _PRIVATE in file.read(_KEY_HEAD)


def target_of(link: Path, root: Path) -> tuple[str, bool]:
    """Return a link's target for a node, and True if it is outside of ``root``."""
    to = os.readlink(link)
    place = os.path.normpath(os.path.join(link.parent, to))
    outside = not Path(place).is_relative_to(root)
    if os.path.isabs(to) and not outside:
        # On the nodes, the folder has another path.
        to = os.path.relpath(place, link.parent)
    return to, outside


def refuse_large(what: str, files: Sequence[tuple[str, int]], advice: str) -> None:
    """Raise CaptureError, with the largest entries, if a folder exceeds `LIMIT`.

    Parameters
    ----------
    what : str
        The folder, as a message names it.
    files : sequence of (str, int)
        Path and size of each file.
    advice : str
        End of the message.
    """
    size = sum(size for _, size in files)
    if size <= LIMIT:
        return
    largest = sorted(files, key=lambda item: (-item[1], item[0]))[:_SHOWN]
    if 2 * sum(its for _, its in largest) < size:
        # Many small files: their folders say more.
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
