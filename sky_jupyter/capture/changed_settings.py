"""Settings of the notebook's process that ranks follow.

These are environment variables, options of matplotlib, pandas, numpy, torch and JAX, warning filters and loggers.
`Settings` polls them before each run. A change since the last poll gets the next version number. A rank applies the
changes that are newer than its version. So a new kernel applies all, and no rank applies a change twice.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..node.serialization import process_settings
from ..node.serialization.process_settings import FAMILIES, Family, NotSendable
from ..util.redaction import without_secrets
from .module_changes import Statement
from .settings_start import SettingsStart

_ABSENT = object()
_PLAIN = (float, bool, type(None))
# Bound of integers that the control plane can send.
_LARGEST = 1 << 63
# Variables for one process only: set by its environment, by this project, or by libraries when they are imported.
_SILENT = re.compile(
    r"SKY_|COMPUTE_POOL\Z|JPY_|JUPYTER|PYTEST_|PYDEVD_|IPY|_\Z|PWD\Z|OLDPWD\Z|SHLVL\Z|COLUMNS\Z|LINES\Z|TERM|MPLBACKEND\Z"
    r"|KMP_|CLICOLOR|FORCE_COLOR\Z|PAGER\Z|GIT_PAGER\Z|QT_|TF2_BEHAVIOR\Z|SSH_|PYTHON|UV_|PIP_|LD_|XDG_|CONDA_|VIRTUAL_ENV"
    r"|ACCELERATE_|DASK_|NVIDIA_|CUDA_MODULE_LOADING\Z"
)
# Variables for which each machine or rank has its own value.
_OWN = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TEMP|TMP|HOSTNAME|RANK|WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE"
    r"|KERAS_BACKEND)\Z|(LOCAL|MASTER|ROLE|TORCHELASTIC|JAX|XLA|CUDA|HIP|ROCR)_|\w+_SOCKET_IFNAME\Z"
)
_SECRET = re.compile(
    r"(?i:.*(token|secret|passw|passphrase|credential|api_?key|access_?key|private|cookie|signature|webhook"
    r"|connection_?string|(_|\A)(key|pwd|pat|auth|dsn|pass)\Z))"
)


class Settings:
    """Process settings of the notebook, polled for one pool; see `SettingsStart`."""

    def __init__(self) -> None:
        self._of, self._version = secrets.token_hex(4), 0
        self._changes: dict[tuple[str, str], tuple[int, str, Any]] = {}
        # Settings that cannot be sent, as lines; and those that were reported.
        self._held: dict[tuple[str, str], str] = {}
        self._said: set[tuple[str, str]] = set()
        self._done: dict[Statement, bool] = {}
        # In a notebook, the other settings are compared with the defaults of a new process, which its ranks have.
        self._seen = process_settings.read(["env"] if SettingsStart.of_process else FAMILIES)

    def follow(self, modules: Collection[str] = (), code: str = "") -> tuple[dict[str, Any], list[str]]:
        """Poll the settings; return those to send with a run, and new warnings.

        Each warning is returned once.

        Parameters
        ----------
        modules : collection of str
            Imports of the run's code: changes of other modules are not reported yet.
        code : str
            Source of the run: settings that it makes itself are not reported.

        Returns
        -------
        dict and list of str
            The settings, empty if there are none, and the warnings.
        """
        self._look()
        return self._told(), self._notes(modules, code)

    def notebook_did(self, done: Iterable[Statement]) -> None:
        """Record statements of a plain cell that change modules and are not followed."""
        for one in done:
            self._done.setdefault(one, False)

    def _look(self) -> None:
        """Poll for changes, in the main thread only: some settings are thread-local."""
        if threading.current_thread() is not threading.main_thread():
            return
        for kind, now in process_settings.read().items():
            # A library of another version, or one that is being imported, must not keep a cell from running.
            with contextlib.suppress(Exception):
                self._look_at(kind, FAMILIES[kind], now)

    def _told(self) -> dict[str, Any]:
        """Return the settings to send; empty if there are none."""
        if not self._changes:
            return {}
        changes = [[version, *which, form, value] for which, (version, form, value) in self._changes.items()]
        return {"settings": {"of": self._of, "version": self._version, "changes": changes}}

    def _notes(self, modules: Collection[str], code: str) -> list[str]:
        """Return warnings about settings that the ranks do not follow, each once."""
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
        """Yield the statements that have changed modules that a run uses."""
        tops = {name.partition(".")[0] for name in modules}
        for one, said in self._done.items():
            if not said and one.module.partition(".")[0] in tops:
                self._done[one] = True
                if one.what not in code:
                    yield one.line

    def _look_at(self, kind: str, family: Family, now: dict[str, Any]) -> None:
        before = self._seen.get(kind)
        if before is None:
            # Loaded since the last poll: the ranks have the defaults of a new process.
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
    """Return True if a variable's name, or a login in its URL, suggests a secret."""
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
    """Return a value as JSON or a pickle; None if unpicklable or with notebook code."""
    if _is_plain(value):
        return "", value
    if type(value).__module__ == "cycler":
        # matplotlib parses it again.
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
        # A variable may hold bytes that are not valid text.
        return value.isascii() or value == value.encode(errors="replace").decode()
    if type(value) is int:
        return abs(value) < _LARGEST
    return type(value) in _PLAIN and value == value and value not in (float("inf"), float("-inf"))
