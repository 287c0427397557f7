"""What the notebook has set in its process and not in a name, told to the ranks: the last writer counts.

Environment variables, options of matplotlib, pandas, numpy, torch and JAX, warnings' filters, loggers. `Settings`
looks at them before each run. What has changed since the last look gets the next number; a rank sets what has a higher
number than what it took last, and so a new kernel sets all of it, and no rank anything twice.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
import secrets
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from ..node.serialization.process_settings import FAMILIES, Family, NotSendable
from ..util.redaction import without_secrets
from .untracked_changes import Statement

_ABSENT = object()
_PLAIN = (float, bool, type(None))
# What the control plane takes as a number.
_LARGEST = 1 << 63
# What a process's surroundings, this project, and libraries as they are imported set for one process.
_SILENT = re.compile(
    r"SKY_|COMPUTE_POOL\Z|JPY_|JUPYTER|PYTEST_|PYDEVD_|IPY|_\Z|PWD\Z|OLDPWD\Z|SHLVL\Z|COLUMNS\Z|LINES\Z|TERM|MPLBACKEND\Z"
    r"|KMP_|CLICOLOR|FORCE_COLOR\Z|PAGER\Z|GIT_PAGER\Z|QT_|TF2_BEHAVIOR\Z|SSH_|PYTHON|UV_|PIP_|LD_|XDG_|CONDA_|VIRTUAL_ENV"
    r"|ACCELERATE_|DASK_|NVIDIA_|CUDA_MODULE_LOADING\Z"
)
# What each machine, or each rank, has of its own.
_OWN = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TEMP|TMP|HOSTNAME|RANK|WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE"
    r"|KERAS_BACKEND)\Z|(LOCAL|MASTER|ROLE|TORCHELASTIC|JAX|XLA|CUDA|HIP|ROCR)_|\w+_SOCKET_IFNAME\Z"
)
_SECRET = re.compile(
    r"(?i:.*(token|secret|passw|passphrase|credential|api_?key|access_?key|private|cookie|signature|webhook"
    r"|connection_?string|(_|\A)(key|pwd|pat|auth|dsn|pass)\Z))"
)


class Settings:
    """One a pool, made with it.

    Attributes
    ----------
    from_the_start : bool
        Whether what was set before a pool was made is told too: so it is where a notebook's cells run. In other
        programs, what is there when a pool is made is taken for theirs.
    """

    from_the_start: ClassVar[bool] = False

    def __init__(self) -> None:
        self._of, self._version = secrets.token_hex(4), 0
        self._seen: dict[str, dict[str, Any]] = {}
        self._changes: dict[tuple[str, str], tuple[int, str, Any]] = {}
        # What cannot be told the ranks, as lines; and what a person has been told of.
        self._held: dict[tuple[str, str], str] = {}
        self._said: set[tuple[str, str]] = set()
        self._done: dict[Statement, bool] = {}
        for kind, family in FAMILIES.items():
            if kind == "env" or not self.from_the_start:
                with contextlib.suppress(Exception):
                    if not family.module or family.module in sys.modules:
                        self._seen[kind] = family.read()

    def look(self) -> None:
        """See what has changed; in the main thread alone, since some of it is each thread's own."""
        if threading.current_thread() is not threading.main_thread():
            return
        for kind, family in FAMILIES.items():
            if not family.module or family.module in sys.modules:
                # A library of another version, or one that is being imported, keeps no cell from running.
                with contextlib.suppress(Exception):
                    self._look_at(kind, family)

    def told(self) -> dict[str, Any]:
        """What goes with a run; nothing where nothing was ever set."""
        if not self._changes:
            return {}
        changes = [[version, *which, form, value] for which, (version, form, value) in self._changes.items()]
        return {"settings": {"of": self._of, "version": self._version, "changes": changes}}

    def notebook_did(self, done: Iterable[Statement]) -> None:
        """A plain cell has done something to modules that does not follow."""
        for one in done:
            self._done.setdefault(one, False)

    def notes(self, modules: Collection[str] = (), code: str = "") -> list[str]:
        """What a person should know of what is set here and does not follow; each is said once.

        Parameters
        ----------
        modules : collection of str
            What the run's code imports: what was done to others is not said yet.
        code : str
            Its text; what that sets itself is not said.
        """
        fresh = {which: text for which, text in self._held.items() if which not in self._said}
        self._said.update(fresh)
        lines = []
        for way, many in _WAYS.items():
            if these := [key for kind, key in fresh if fresh[kind, key] == way]:
                lines.append(many(these))
        other = [*(text for text in fresh.values() if text not in _WAYS), *self._done_to(modules, code)]
        if other:
            shown = ", ".join(f"`{text}`" for text in dict.fromkeys(other))
            lines.append(
                f"set in the notebook, and not on the ranks: {shown}; the same line in a %%sky cell sets it there"
            )
        return lines

    def _done_to(self, modules: Collection[str], code: str) -> Iterator[str]:
        """The lines of what was done to modules that a run uses."""
        tops = {name.partition(".")[0] for name in modules}
        for one, said in self._done.items():
            if not said and one.module.partition(".")[0] in tops:
                self._done[one] = True
                if one.what not in code:
                    yield one.line

    def _look_at(self, kind: str, family: Family) -> None:
        now = family.read()
        before = self._seen.get(kind)
        if before is None:
            # Loaded since the last look: what a new process has counts as what the ranks have.
            before = self._seen[kind] = family.fresh()
        try:
            if now == before:
                return
        except Exception:
            """Values that cannot be compared as a whole are looked at one by one."""
        self._seen[kind] = now
        changed = [
            key for key in before.keys() | now.keys() if not _same(before.get(key, _ABSENT), now.get(key, _ABSENT))
        ]
        for key in sorted(key for key in changed if family.own is None or not family.own.match(key)):
            self._note(kind, family, key, now.get(key))

    def _note(self, kind: str, family: Family, key: str, value: Any) -> None:
        which = kind, key
        self._held.pop(which, None)
        if kind == "env":
            if _SILENT.match(key):
                return
            if way := "own" if _OWN.match(key) else "secret" if _is_secret(key, value) else "":
                self._held[which] = way
                return
        if kind == "logging" and value is not None:
            level, propagate, disabled, *handlers = value
            for one in handlers:
                if isinstance(one, NotSendable):
                    self._held[which] = f"the handler {one.what} of {f'logger {key!r}' if key else 'the root logger'}"
            value = level, propagate, disabled, *(one for one in handlers if not isinstance(one, NotSendable))
        encoded = _encoded(value)
        if encoded is None:
            self._held[which] = family.line.format(key=key)
            return
        self._version += 1
        self._changes[which] = self._version, *encoded


def _is_secret(key: str, value: Any) -> bool:
    """Whether a variable's name, or a login in the URL that it holds, says that it is secret."""
    return bool(_SECRET.match(key)) or (isinstance(value, str) and without_secrets(value) != value)


def _of_variables(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names))
    line = "the same line in the cell sets it" if len(names) == 1 else "the same lines in the cell set them"
    return f"{shown}: set in the notebook, and each rank has its own; {line} there"


def _of_secrets(names: Collection[str]) -> str:
    first, shown = min(names), ", ".join(sorted(names))
    return (
        f"{shown}: set in the notebook, and not on the ranks, as it looks like a secret; "
        f"`word = os.environ[{first!r}]` here and `os.environ[{first!r}] = word` in the cell set it there"
    )


_WAYS: Mapping[str, Callable[[Collection[str]], str]] = {"own": _of_variables, "secret": _of_secrets}


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:
        return False


def _encoded(value: Any) -> tuple[str, Any] | None:
    """A value for another process, plain or as a pickle; None where it has code of the notebook in it."""
    if _is_plain(value):
        return "", value
    if type(value).__module__ == "cycler":
        # matplotlib reads it again.
        return "", repr(value)
    try:
        pickled = pickle.dumps(value)
    except Exception:
        return None
    return None if b"__main__" in pickled else ("pickle", base64.b64encode(pickled).decode())


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if type(value) is str:
        # A variable may hold bytes that are no text.
        return value.isascii() or value == value.encode(errors="replace").decode()
    if type(value) is int:
        return abs(value) < _LARGEST
    return type(value) in _PLAIN and value == value and value not in (float("inf"), float("-inf"))
