"""Cells and scripts with the options of their line, on the pool that it means."""

from __future__ import annotations

import ast
import contextlib
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..capture.project_files import check_paths
from ..pool.open_pools import pools
from ..session import cells, script_runs
from ..session.cells import Cell
from .option_table import chosen, without_values
from .parsing import ParsedLine, check_shown
from .pool_choice import pool_for
from .tracebacks import CellSyntaxError

if TYPE_CHECKING:
    from ..pool.pool import Pool
    from .cell_completion import CellInspector


def run_code(shell: Any, inspector: CellInspector, code: str, given: ParsedLine) -> None:
    """Run code on a pool as a cell; start the pool if there is none."""
    # The number that the notebook shows; the shell's own counter may be one ahead of it.
    count = shell.displayhook.prompt_count
    # Errors of the cell itself are raised before a pool is made for it.
    source = to_python(shell, code, count)
    check_paths(given.include)
    # IPython turns `name?` into a call of `pinfo`. `answer_question` checks whether the cell has nothing else.
    if "pinfo" in source and inspector.answer_question(source, given):
        return
    pool = pools.current if given.name is None else pools.get(given.name)
    if pool is None or given.pool:
        pool = pool_for(given)
    pools.use(pool)
    cells.run_cell(pool, cell_of(pool, code, source, count, given), shell.user_ns)


def run_script(shell: Any, given: ParsedLine) -> None:
    """Run a script on a pool; start a pool for the launcher's options if none lives."""
    assert given.script is not None
    script = given.script.found()
    check_paths(given.include)
    if (pools.current if given.name is None else pools.get(given.name)) is None:
        given = replace(given, pool={**script.pool_options(), **given.pool})
    pool = pool_for(replace(given, verb=None))
    count = shell.displayhook.prompt_count
    script_runs.run_script(pool, script, cell_of(pool, "", "", count, given), shell.user_ns)


def shown_ranks(pool: Pool, given: ParsedLine) -> tuple[list[int], list[int]]:
    """Return the ranks that run a cell, and those whose output is shown."""
    size = pool.spec.world_size
    ranks = list(range(size)) if given.on is None else pool.check_ranks(chosen(given.on, size))
    if given.only is None:
        return ranks, ranks
    shown = pool.check_ranks(chosen(given.only, size))
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

    A cell magic below ``%%sky`` must stay in the first line, and counts its own lines anyway. The text is kept with the
    run, here and on the nodes, so the line's secrets are left out.
    """
    return body if body.lstrip().startswith("%%") else f"# %%sky {line and without_values(line)}\n{body}"


def to_python(shell: Any, code: str, count: int) -> str:
    """Transform a cell as IPython does; refuse invalid Python as the notebook would.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    code : str
        The cell's source.
    count : int
        The cell's number, for the traceback.

    Returns
    -------
    str
        The cell in plain Python.

    Raises
    ------
    SyntaxError
        When the cell is not Python. It is shown as ``Cell In[3], line 2``, with the line.
    """
    try:
        source = str(shell.transform_cell(code))
    except SyntaxError as error:
        # Such as an indentation that matches none above.
        place = error.lineno, error.offset, error.text
        ours = type(error)(error.msg, (shell.compile.cache(code, count), *place))
        raise _as_cells(shell, ours) from None
    if not _is_python(shell, source):
        # Only now with the cell's own name: IPython keeps the text of everything that has one.
        try:
            _compile(shell, source, shell.compile.cache(source, count))
        except SyntaxError as error:
            raise _as_cells(shell, error) from None
    return source


def _as_cells(shell: Any, error: SyntaxError) -> SyntaxError:
    """Return an error of the same name and fields, which is caught like the original."""
    kind = type(error)
    shown = type(kind.__name__, (CellSyntaxError, kind) if kind is not SyntaxError else (CellSyntaxError,), {})
    ours: CellSyntaxError = shown(*error.args)
    ours.sky_lines = shell.SyntaxTB.structured_traceback(kind, error, [])
    return ours


def _is_python(shell: Any, code: str) -> bool:
    with contextlib.suppress(SyntaxError):
        _compile(shell, code, "")
        return True
    return False


def _compile(shell: Any, code: str, name: str) -> None:
    with warnings.catch_warnings():
        # The ranks show the warnings.
        warnings.simplefilter("ignore")
        compile(code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | shell.compile.flags, dont_inherit=True)
