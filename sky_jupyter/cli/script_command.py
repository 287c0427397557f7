"""``sky-jupyter torchrun --pool NAME train.py``: run a script on a pool.

Where a notebook's kernel manages the pool, that kernel begins the run, as a detached one, and this program follows its
output. Otherwise the program manages the pool for as long as the script runs.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..access.pool_access import PoolAccess
from ..errors import PoolError, ScriptError
from ..pool.registry.registry import PoolRow
from ..util.text import cleaned, rank_label
from .commands import after_bars, opened, write

if TYPE_CHECKING:
    from ..magics.parsing import ParsedLine
    from ..pool.runs.journal_pages import Page
    from ..pool.runs.log_reader import PagesContext

VERBS = {
    "run": "run a script on every rank of a pool, unchanged",
    "torchrun": "the same with torchrun's options",
    "accelerate": "`accelerate launch` with its options",
}
_POOL = "--pool"
_PAGE = 1000
_LOOK = 0.2
_USAGE, _INTERRUPTED, _FAILED = 2, 130, 1
_SIGNALLED = 128
_PRESSES = 3


def script(given: argparse.Namespace) -> int:
    """Run a script on a pool, as `%sky torchrun` does."""
    with opened() as access:
        return run(access, given.verb, given.words)


def run(access: PoolAccess, verb: str, words: Sequence[str]) -> int:
    """Run a script on a pool; return its exit status.

    Parameters
    ----------
    access : PoolAccess
        Access to the pools.
    verb : str
        ``run``, ``torchrun`` or ``accelerate``.
    words : sequence of str
        The words after it.

    Returns
    -------
    int
        0, the script's own, 2 for a wrong command line, or 130 after a Ctrl-C.
    """
    from IPython.core.error import UsageError

    from ..magics.parsing import HelpRequested, parse

    try:
        name, line = _line(verb, words)
        given = parse(line, cell=False)
    except HelpRequested as help:
        print(f"sky-jupyter {verb} --pool NAME: as `%sky {verb}`\n{help}")
        return 0
    except UsageError as error:
        print(f"sky-jupyter: {str(error).replace('%sky', 'sky-jupyter')}", file=sys.stderr)
        return _USAGE
    row = access.find(name)
    if row.owner_lives:
        return _follow(access, row, access.evaluate(row, {"action": "script", "line": line})["run"])
    return _managed(access, row, given)


def _line(verb: str, words: Sequence[str]) -> tuple[str | None, str]:
    """Return the pool's name, and the same line of ``%sky`` with absolute paths."""
    from ..magics import parse_script_line
    from ..magics.option_table import options_of, switches_of
    from ..magics.parsing import HelpRequested, parse

    flags = {option.flag: True for option in options_of(verb)} | {one.flag: False for one in switches_of(verb)}
    parts = parse_script_line.split(verb, words, {**flags, _POOL: True})
    if parts.script is None:
        parse(f"{verb} --help", cell=False)
        raise HelpRequested("")
    ours, name = [], None
    given = iter(parts.ours)
    for word in given:
        flag, equals, value = word.partition("=")
        if flag in (_POOL, "--name"):
            name = value if equals else next(given)
        else:
            ours.append(word)
    script = parts.script.found().here()
    head = shlex.split(script.line)
    launch = 2 if verb == "accelerate" else 1
    return name, shlex.join([*head[:launch], *ours, *head[launch:]])


def _follow(access: PoolAccess, row: PoolRow, run: str) -> int:
    """Print a run's output; pass each Ctrl-C to it, and leave it at the third."""
    from ..access.log_pages import follow

    pressed: list[int] = []
    passed_on = 0

    def wait() -> None:
        nonlocal passed_on
        sys.stdout.flush()
        time.sleep(_LOOK)
        if len(pressed) >= _PRESSES:
            raise KeyboardInterrupt
        if len(pressed) > passed_on:
            passed_on = len(pressed)
            access.ask(row, {"action": "interrupt", "run": run})
        _require_live(access, row, run)

    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        with access.log(row) as source:
            while not _is_begun(source, run) and not _is_over(access, run):
                wait()
            ended = RunEnds(source)
            _print_all(follow(ended, run, None, wait))
            _say(ended.failures())
            known = access.registry.run(run)
            return _INTERRUPTED if pressed else ended.status(() if known is None else known.ranks)
    except KeyboardInterrupt:
        print(f"run {run} continues: `sky-jupyter logs -f {run}` follows it", file=sys.stderr)
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)


def _require_live(access: PoolAccess, row: PoolRow, run: str) -> None:
    """Raise PoolError if a run's pool has ended, and the run with it."""
    # Sweep only after the manager's death: then nobody else records the end of a pool that died with it.
    rows = access.registry.pools() if row.owner_lives else access.rows()
    if row.id not in [one.id for one in rows]:
        raise PoolError(f"pool {row.name!r} has ended, and run {run} with it")


def _is_begun(source: PagesContext, run: str) -> bool:
    """Return whether a run has begun: on all nodes of a local pool, on one of others."""
    from ..access.log_pages import LocalPages

    with contextlib.suppress(PoolError):
        return bool(source.page(run, None, 0, 1)) and (not isinstance(source, LocalPages) or source.is_whole(run))
    return False


def _is_over(access: PoolAccess, run: str) -> bool:
    """Return whether the registry knows that a run has ended; it need not have begun."""
    known = access.registry.run(run)
    return known is not None and known.state != "running"


class RunEnds:
    """Pages of a run that note its ranks' ends: output may follow a rank's end.

    Parameters
    ----------
    source : PagesContext
        The source of the pages.
    """

    def __init__(self, source: PagesContext) -> None:
        self._source = source
        # Exit status by rank; None if a rank ended otherwise than by its script.
        self._statuses: dict[int, int | None] = {}
        self._failures: dict[int, str] = {}

    def status(self, ranks: Iterable[int]) -> int:
        """Return the exit status of the run, from the ends of its ranks.

        Parameters
        ----------
        ranks : iterable of int
            The ranks that the run was for; a rank on a lost node has no end.

        Returns
        -------
        int
            The script's status of the lowest rank where it is not 0; else 1 if a rank did not end well, else 0.
        """
        of_scripts = (status for _, status in sorted(self._statuses.items()) if status)
        bad = None in self._statuses.values() or not self._statuses.keys() >= set(ranks)
        return next(of_scripts, _FAILED if bad else 0)

    def failures(self) -> dict[str, list[int]]:
        """Return a line for each way in which scripts failed, and the ranks.

        Returns
        -------
        dict of str to list of int
            The ranks by line; interrupted ranks are left out.
        """
        found: dict[str, list[int]] = {}
        for rank, text in sorted(self._failures.items()):
            found.setdefault(text, []).append(rank)
        return found

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = _PAGE,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """Return a page of a run's events; see `JournaledRuns.page`."""
        pages = self._source.page(id, rank, start, count, nodes=nodes)
        for event in (event for page in pages for event in page.events if event.get("kind") == "end"):
            code = ((event.get("raised") or {}).get("state") or {}).get("exit_code")
            of_script = _shell_status(code) if isinstance(code, int) else None
            self._statuses[event["rank"]] = 0 if event.get("status") == "ok" else of_script
            if event.get("status") not in ("ok", "interrupted"):
                said = str(event.get("evalue") or event.get("text") or event.get("status"))
                self._failures[event["rank"]] = said.splitlines()[0]
        return pages

    def homes(self, id: str) -> dict[int, int]:
        """Return each rank's node that has its journal."""
        return self._source.homes(id)


def _say(failures: Mapping[str, Sequence[int]]) -> None:
    """Print on standard error how scripts failed, after their own last lines."""
    sys.stdout.flush()
    for text, ranks in failures.items():
        print(f"sky-jupyter: {rank_label(ranks)}: {cleaned(text)}", file=sys.stderr)


def _print_all(pieces: Iterable[tuple[int, str]]) -> None:
    """Print pieces of ranks' output, each line with its rank."""
    open_lines: dict[int, str] = {}
    for rank, text in pieces:
        *lines, rest = (open_lines.get(rank, "") + text).split("\n")
        open_lines[rank] = after_bars(rest)
        _print(rank, lines)
    for rank, line in sorted(open_lines.items()):
        _print(rank, [line] if line else [])


def _print(rank: int, lines: Sequence[str]) -> None:
    for line in lines:
        write(f"{rank}: {line}\n")


def _shell_status(code: Any) -> int:
    """Return an exit code as a shell has it: of a signal, 128 and its number."""
    if not isinstance(code, int) or code == 0:
        return _FAILED
    return _SIGNALLED - code if code < 0 else code


def _managed(access: PoolAccess, row: PoolRow, given: ParsedLine) -> int:
    """Run a script on a pool without a manager, and manage the pool meanwhile."""
    from ..magics.cell_runs import cell_of
    from ..pool.runs.result import CellError
    from ..session.script_runs import run_script

    assert given.script is not None
    with access.attached(row) as pool:
        try:
            run_script(pool, given.script, cell_of(pool, "", "", 1, given), {})
        except CellError as error:
            print(f"sky-jupyter: {error}", file=sys.stderr)
            codes = [one.exit_code for one in error.errors.values() if isinstance(one, ScriptError)]
            return _shell_status(codes[0]) if codes else _FAILED
    return 0
