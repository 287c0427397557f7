"""What IPython keeps of every cell for as long as it lives, and a rank does not.

A rank works for days. What it printed and showed is in the journal, and the values of its last
cells are kept as long as they can be fetched.
"""

from __future__ import annotations

from typing import Any


class Unkept(dict[int, list[Any]]):
    """In the place of a dictionary of lists: what is appended to one is not kept."""

    def __missing__(self, key: int) -> list[Any]:
        return []


def keep_no_outputs(shell: Any) -> None:
    """Have an IPython shell keep nothing of what cells print and show; call it once."""
    shell.history_manager.outputs = Unkept()


def forget_cells(shell: Any, values: int) -> None:
    """Drop what an IPython shell has of its cells besides their code, but for the newest ``values`` of ``Out``."""
    for name in ("output_hist_reprs", "exceptions", "db_input_cache"):
        getattr(shell.history_manager, name, {}).clear()
    out = shell.user_ns.get("_oh")
    while isinstance(out, dict) and len(out) > values:
        number = next(iter(out))
        del out[number]
        shell.user_ns.pop(f"_{number}", None)
