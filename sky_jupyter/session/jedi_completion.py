"""Completion and inspection by jedi, from the sources of a pool's cells."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, TypeVar

from ..util import jedi_cache

T = TypeVar("T")
# The limit of the newest cells that are read, in characters: jedi needs a tenth of a second for that many.
_MOST_READ = 50_000
_MOST = 500
_MOST_SOURCE = 100_000
# jedi caches a source by its path, and IPython uses jedi for sources without a path.
_PATH = "_sky_cells.py"
_LATE = 5.0
_working = threading.Lock()
# Set once jedi has worked: it is loaded then.
_loaded = threading.Event()


def complete(
    sources: Iterable[str], code: str, cursor: int, patience: float
) -> tuple[int, list[tuple[str, str]]] | None:
    """Return what may replace the text before the cursor.

    Parameters
    ----------
    sources : iterable of str
        Earlier cells in plain Python, oldest first.
    code : str
        The cell.
    cursor : int
        Position of the cursor in it.
    patience : float
        Seconds to wait. jedi goes on after that, so that the next answer comes sooner.

    Returns
    -------
    tuple or None
        Where the text to replace begins, with pairs of a text and its type; None if jedi has no answer in time.
    """

    def work() -> tuple[int, list[tuple[str, str]]] | None:
        before = joined(sources)
        above = code[:cursor]
        line, column = before.count("\n") + above.count("\n") + 1, len(above) - above.rfind("\n") - 1
        found = _script(before + code).complete(line, column)
        if not found:
            return None
        start = cursor - len(found[0].name_with_symbols) + len(found[0].complete or "")
        # Names that begin with an underscore only if part of the name has been typed, as in IPython.
        shown = [one for one in found if code[start:cursor] or not one.name.startswith("_")][:_MOST]
        return start, [(one.name_with_symbols, one.type) for one in shown]

    return _within(patience, work)


def inspect(sources: Iterable[str], code: str, cursor: int, detail: int, patience: float) -> str | None:
    """Return what is known of the name at the cursor, as text; see `complete`."""

    def work() -> str | None:
        from IPython.utils.tokenutil import token_at_cursor

        name = token_at_cursor(code, cursor)
        if not name:
            return None
        # The line with the cursor is mostly incomplete.
        lines = code.split("\n")
        lines[code[:cursor].count("\n")] = ""
        text = "\n".join([joined(sources), *lines, name])
        script = _script(text)
        at = text.count("\n") + 1, len(name)
        return _about(script.infer(*at), script.goto(*at, follow_imports=True), text, detail)

    return _within(patience, work)


def is_loaded() -> bool:
    """Return whether jedi has answered before."""
    return _loaded.is_set()


def is_ready() -> bool:
    """Return whether jedi is loaded and idle: then it answers soon."""
    return _loaded.is_set() and not _working.locked()


def settle(patience: float = _LATE) -> None:
    """Wait until earlier work that was given up has ended.

    Two threads in jedi spoil its caches for good, and IPython's own completer would be the second.

    Parameters
    ----------
    patience : float
        Seconds to wait at most.
    """
    if _working.acquire(timeout=patience):
        _working.release()


def warm(is_wanted: Callable[[], bool]) -> None:
    """Load jedi in the background: else its first answer is a second late.

    Parameters
    ----------
    is_wanted : callable
        Called when nothing else of ours uses jedi. It returns False to leave jedi alone, as when IPython may have begun
        to use it.
    """

    def work() -> None:
        if is_wanted():
            _script("text = ''\ntext.").complete()

    _within(0.0, work)


def joined(sources: Iterable[str]) -> str:
    """Return the newest sources as one text that ends its last line."""
    taken: list[str] = []
    room = _MOST_READ
    for source in reversed(list(sources)):
        room -= len(source)
        if room < 0 and taken:
            break
        taken.append(source if source.endswith("\n") else f"{source}\n")
    return "".join(reversed(taken))


def _script(text: str) -> Any:
    import jedi

    jedi_cache.protect()
    # jedi's own choice of environment would start a process.
    return jedi.Script(
        text, path=Path.cwd() / _PATH, environment=jedi.InterpreterEnvironment(), project=jedi.Project(os.getcwd())
    )


def _about(inferred: list[Any], assigned: list[Any], text: str, detail: int) -> str | None:
    """Describe what jedi has found, in the form of IPython's ``name?``."""
    if not inferred and not assigned:
        return None
    best = inferred[0] if inferred else assigned[0]
    signature, docstring = _documented(best)
    rows = [("Signature:", signature)]
    if assigned and assigned[0].type == "statement":
        rows.append(("Assigned:", assigned[0].get_line_code().strip()))
    source = _source(best, text) if detail else ""
    rows.append(("Source:", source) if source else ("Docstring:", docstring))
    own = best.module_path is None or best.module_path.name == _PATH
    rows.append(("File:", "a cell of this pool" if own else str(best.module_path)))
    rows.append(("Type:", best.name if best.type == "instance" else best.type))
    told = [(title, value) for title, value in rows if value]
    return "\n".join(f"{title}\n{value}" if "\n" in value else f"{title:10} {value}" for title, value in told)


def _documented(name: Any) -> tuple[str, str]:
    """Return a name's signature and its docstring."""
    signatures = name.get_signatures() if name.type in ("function", "class") else []
    return signatures[0].to_string() if signatures else "", name.docstring(raw=True)


def _source(name: Any, text: str) -> str:
    """Return the lines that define a name; "" if they are not known."""
    start, end = name.get_definition_start_position(), name.get_definition_end_position()
    if start is None or end is None or name.type not in ("function", "class"):
        return ""
    path = name.module_path
    if path is not None and path.name != _PATH:
        text = path.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.split("\n")[start[0] - 1 : end[0]])[:_MOST_SOURCE]


def _within(patience: float, work: Callable[[], T | None]) -> T | None:
    """Return the result of work; None if it fails, is late, or earlier work goes on."""
    end = time.monotonic() + patience
    # An earlier question may still be loading a library, which this one may need too.
    if not _working.acquire(timeout=patience):
        return None
    answer: Future[T | None] = Future()

    def run() -> None:
        found = None
        try:
            found = work()
            if "jedi" in sys.modules:
                _loaded.set()
        except Exception:
            # For code that is being typed, jedi may raise anything.
            found = None
        finally:
            _working.release()
            answer.set_result(found)

    threading.Thread(target=run, name="sky-jedi", daemon=True).start()
    try:
        return answer.result(max(0.0, end - time.monotonic()))
    except FutureTimeout:
        return None
