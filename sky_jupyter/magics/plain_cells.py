"""Names that the notebook's own cells assign while pools live."""

from __future__ import annotations

import sys
from typing import Any

from ..capture.cell_names import analyse
from ..capture.module_changes import statements
from ..pool.open_pools import pools
from ..session import cells


def note(shell: Any, result: Any) -> None:
    """Note what a cell of the notebook assigned.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    result : Any
        IPython's result of the cell.
    """
    try:
        source = shell.transform_cell(getattr(result.info, "raw_cell", None) or "")
        cell, done = analyse(source), statements(source, shell.user_ns)
    except SyntaxError:
        return
    _tell_where(result.error_in_exec)
    for pool in pools.all():
        pool.calls.note_writes(shell.user_ns)
        pool.ledger.notebook_ran(cell, shell.user_ns, finished=result.success)
        pool.settings.notebook_did(done)


def _tell_where(error: BaseException | None) -> None:
    """Tell the user about a name that a plain cell lacks and the nodes have."""
    name = getattr(error, "name", None) if isinstance(error, NameError) else None
    for pool in pools.all() if name else ():
        if name in cells.only_there(pool):
            of = "" if pool is pools.current else f" --name {pool.spec.name}"
            print(f"{name} is on the nodes: `%sky pull {name}{of}`", file=sys.stderr)
            return
