"""Requests of pages and terminals to the kernel; handlers load at the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pool import request_names
from ..util import control_channel
from ..util.control_channel import Handler

if TYPE_CHECKING:
    from .cell_questions import CellQuestions

_NAMES = (request_names.FRONTEND, request_names.TERMINAL, request_names.COMPLETE, request_names.INSPECT)


def _frontend() -> Handler:
    from ..pool.frontend_requests import FrontendRequestHandler

    return FrontendRequestHandler()


def _terminal() -> Handler:
    from ..pool.terminal_requests import TerminalRequestHandler

    return TerminalRequestHandler()


def install(shell: Any, questions: CellQuestions) -> None:
    """Answer from now on, if the shell is a Jupyter kernel's.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    questions : CellQuestions
        Completion and inspection of cells.
    """

    def complete() -> Handler:
        from . import busy_completion

        return busy_completion.completer(questions.inspector)

    def inspect() -> Handler:
        from . import busy_completion

        return busy_completion.describer(questions.inspector)

    kernel = getattr(shell, "kernel", None)
    for name, make in zip(_NAMES, (_frontend, _terminal, complete, inspect), strict=True):
        control_channel.register(kernel, name, control_channel.made_when_asked(make))


def remove(shell: Any) -> None:
    """Undo `install`."""
    for name in _NAMES:
        control_channel.unregister(getattr(shell, "kernel", None), name)
