"""Tracebacks of ``%%sky`` in IPython: each rank's once.

The faulty line of a cell is shown as Python would show it.

By itself, IPython prints an exception group with the frames of this package, and a syntax error with the frames of the
code that found it. Its hook for custom exceptions shows both as a notebook's user expects.
"""

from __future__ import annotations

import sys
from typing import Any

from ..errors import OwnTraceback
from ..util.text import rank_label


class CellSyntaxError(SyntaxError, OwnTraceback):
    """Raised for a cell that is not Python, before anything is sent."""

    sky_lines: list[str]

    def _render_traceback_(self) -> list[str]:
        return self.sky_lines


def install(shell: Any) -> None:
    """Show this package's errors as they render themselves; keep other handlers."""
    before, earlier = tuple(shell.custom_exceptions), shell.CustomTB

    def show(self: Any, etype: Any, value: Any, tb: Any, tb_offset: int | None = None) -> Any:
        if not isinstance(value, OwnTraceback):
            return earlier(etype, value, tb, tb_offset=tb_offset)
        lines = value._render_traceback_()
        # `%debug` and other tools must take this error for the last one, not an earlier error.
        sys.last_type, sys.last_value, sys.last_traceback = etype, value, tb
        if sys.version_info >= (3, 12):
            sys.last_exc = value
        self._showtraceback(etype, value, lines)
        return lines

    shell.set_custom_exc((*before, OwnTraceback), show)
    shell.sky_earlier_exceptions = before, shell.CustomTB, earlier
    debug = shell.debugger

    def debugger(force: bool = False) -> None:
        if force and isinstance(last := getattr(sys, "last_value", None), OwnTraceback):
            print(_not_here(last))
        else:
            debug(force)

    shell.debugger = debugger


def _not_here(error: Any) -> str:
    """Explain why the frames of an error cannot be inspected."""
    if isinstance(error, CellSyntaxError):
        return f"nothing has run: {error}"
    ranks = rank_label(error.errors)
    return (
        f"the error is on {ranks}, whose frames cannot be debugged from here: {error}\n"
        f"`%debug {min(error.errors)}` debugs it on the rank; `_sky.errors[RANK]` has it with its traceback"
    )


def remove(shell: Any) -> None:
    """Undo `install`."""
    # The attribute that was set on the shell hides its own method.
    vars(shell).pop("debugger", None)
    before, ours, earlier = shell.sky_earlier_exceptions
    del shell.sky_earlier_exceptions
    if shell.CustomTB == ours:
        shell.custom_exceptions, shell.CustomTB = before, earlier
    else:  # another handler was installed around ours
        shell.custom_exceptions = tuple(item for item in shell.custom_exceptions if item is not OwnTraceback)


def short(error: BaseException) -> None:
    """Show only the message in IPython: the frames are this package's."""
    text = f"\x1b[31m{type(error).__name__}\x1b[39m"
    if str(error):
        text += f": {error}"
    error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
