"""Cells and scripts with the options of their line, on the pool that it means."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..capture.project_files import check_path
from ..pool.open_pools import pools
from ..session import cells, script_runs
from ..session.cells import Cell
from . import tracebacks
from .option_table import chosen, without_values
from .parsing import ParsedLine, check_shown
from .pool_choice import pool_for

if TYPE_CHECKING:
    from ..pool.pool import Pool
    from .cell_completion import CellInspector


def run_code(shell: Any, inspector: CellInspector, code: str, given: ParsedLine) -> None:
    """Run code on a pool as a cell; start the pool if there is none."""
    # The number that the notebook shows; the shell's own counter may be one ahead of it.
    count = shell.displayhook.prompt_count
    # Everything that can be wrong with the cell itself is said before a pool is made for it.
    source = tracebacks.to_python(shell, code, count)
    for path in given.include:
        check_path(path)
    if inspector.answer_question(source, given):
        return
    pool = pool_for(given)
    cells.run_cell(pool, cell_of(pool, code, source, count, given), shell.user_ns)


def run_script(shell: Any, given: ParsedLine) -> None:
    """Run a script on a pool; start the pool if there is none, with what the launcher's options ask for."""
    assert given.script is not None
    script = given.script.found()
    for path in given.include:
        check_path(path)
    if (pools.current if given.name is None else pools.get(given.name)) is None:
        given = replace(given, pool={**script.pool_options(), **given.pool})
    pool = pool_for(replace(given, verb=None))
    count = shell.displayhook.prompt_count
    script_runs.run_script(pool, script, cell_of(pool, "", "", count, given), shell.user_ns)


def shown_ranks(pool: Pool, given: ParsedLine) -> tuple[list[int], list[int]]:
    """Return the ranks that run a cell, and those whose output is shown."""
    size = pool.spec.world_size
    ranks = pool.check_ranks(chosen(given.on, size))
    shown = pool.check_ranks(chosen(given.only, size)) if given.only is not None else ranks
    check_shown(shown, ranks)
    return ranks, shown


def cell_of(pool: Pool, code: str, source: str, count: int, given: ParsedLine) -> Cell:
    """Return a cell with the options of its line.

    Parameters
    ----------
    pool : Pool
        The pool.
    code : str
        Its text, before IPython transforms it.
    source : str
        Its text afterwards.
    count : int
        Its number.
    given : ParsedLine
        The line.

    Returns
    -------
    Cell
        The cell.
    """
    ranks, shown = shown_ranks(pool, given)
    return Cell(
        code,
        source,
        count,
        ranks,
        shown,
        include=given.include,
        exclude="all" if "all" in given.no_capture else frozenset(given.no_capture),
        push=given.push,
        shard=given.shard,
        grace=given.grace,
        timeout=given.timeout,
        sync=given.sync,
        quiet=given.quiet,
        saved=given.saved,
        detach=given.detach,
        out=given.out,
    )


def numbered(line: str, body: str) -> str:
    """Return the code with lines numbered as in the notebook: ``%%sky`` is line 1.

    A cell magic below ours must stay in the first line to be one, and counts its own lines anyway. The text is kept
    with the run, here and on the nodes.
    """
    return body if body.lstrip().startswith("%%") else f"# %%sky {without_values(line)}\n{body}"
