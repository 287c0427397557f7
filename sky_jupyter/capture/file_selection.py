"""Which files of a folder go to the nodes.

What ``.gitignore`` names stays here, and what only belongs to this machine; so do files that hold passwords and keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
_CLASS = re.compile(r"\[(!|\^)?(\]?[^\]]*)\]")


@dataclass(frozen=True)
class Rule:
    """A line of a ``.gitignore``.

    Parameters
    ----------
    base : str
        The folder that it stands in, as a path with a slash at its end.
    pattern : re.Pattern
        What it names: paths from there where ``whole``, else names at any depth.
    """

    base: str
    pattern: re.Pattern[str]
    whole: bool
    folders_only: bool
    again: bool

    def names(self, path: str, *, folder: bool) -> bool:
        """Whether a file's or folder's path is what the line names."""
        if self.folders_only and not folder:
            return False
        text = path[len(self.base) :] if self.whole else path.rpartition("/")[2]
        return self.pattern.fullmatch(text) is not None


def read_rules(folder: Path) -> list[Rule]:
    """The rules in a folder's ``.gitignore``; none where it has none."""
    try:
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [rule for line in lines if (rule := _rule(f"{folder}/", line)) is not None]


def _rule(base: str, line: str) -> Rule | None:
    line = re.sub(r"(?<!\\)\s+\Z", "", line)
    if not line or line.startswith("#"):
        return None
    again = line.startswith("!")
    line = line[1:] if again else line
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    whole = "/" in line
    try:
        pattern = re.compile(_expression(line.lstrip("/")), re.DOTALL)
    except re.error:
        return None
    return Rule(base, pattern, whole, folders_only, again) if line else None


def _expression(line: str) -> str:
    """A git pattern as a regular expression."""
    found, at = "", 0
    while at < len(line):
        rest = line[at:]
        inner = _CLASS.match(rest)
        if rest.startswith("**/") and (at == 0 or line[at - 1] == "/"):
            found, at = f"{found}(?:.*/)?", at + 3
        elif rest == "**" and (at == 0 or line[at - 1] == "/"):
            found, at = f"{found}.+", at + 2
        elif rest[0] == "*":
            found, at = f"{found}[^/]*", at + len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            found, at = f"{found}[^/]", at + 1
        elif inner is not None:
            text = inner[2].replace("\\", "\\\\").replace("[", "\\[")
            text = f"\\{text}" if text.startswith(("]", "^")) else text
            found, at = f"{found}(?!/)[{'^' if inner[1] else ''}{text}]", at + inner.end()
        elif rest[0] == "\\" and len(rest) > 1:
            found, at = found + re.escape(rest[1]), at + 2
        else:
            found, at = found + re.escape(rest[0]), at + 1
    return found


def _ignored(rules: Sequence[Rule], path: str, *, folder: bool) -> bool:
    """Whether the last rule that names a path ignores it."""
    for rule in reversed(rules):
        if rule.names(path, folder=folder):
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
    own = [rule for line in excludes if (rule := _rule(f"{root}/", line)) is not None]
    yield from _walk(root, "", [*_rules_above(root), *own], on_secret)


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
