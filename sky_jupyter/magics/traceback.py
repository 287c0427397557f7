"""How IPython shows a `CellError`.

IPython prints exception groups natively, as text of our own frames. Its hook for custom exceptions
lets a `CellError` be what it is for a notebook: an error output with each rank's traceback once.
"""

from __future__ import annotations

from typing import Any

from ..pool.results import CellError


def install(shell: Any) -> None:
    """Show `CellError` our way; what was set for other exceptions stays."""
    before, earlier = tuple(shell.custom_exceptions), shell.CustomTB

    def show(self: Any, etype: Any, value: Any, tb: Any, tb_offset: int | None = None) -> Any:
        if not isinstance(value, CellError):
            return earlier(etype, value, tb, tb_offset=tb_offset)
        lines = value._render_traceback_()
        self._showtraceback(etype, value, lines)
        return lines

    shell.set_custom_exc((*before, CellError), show)


def remove(shell: Any) -> None:
    """Undo `install`."""
    shell.custom_exceptions = tuple(item for item in shell.custom_exceptions if item is not CellError)
