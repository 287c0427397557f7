"""Refusal of input and of debuggers on a rank, where nobody can answer."""

from __future__ import annotations

import builtins
import getpass
import os
import sys
from typing import Any, NoReturn

from ...errors import NotOnRanks

DEBUGGERS = ("bdb", "cmd", "pdb", "IPython.core.debugger")
NO_INPUT = (
    "{} does not work on a rank, where nobody can be asked: ask in a plain cell of the notebook, "
    "and use what it returns in the %%sky cell"
)
NO_DEBUGGER = (
    "{} does not work on a rank, where nobody can type: call the function in a plain cell to debug it there, "
    "or print what you want to see; `%sky where` shows each rank's stack while a cell runs"
)


def refuse(text: str, what: str) -> NoReturn:
    """Raise NotOnRanks with a message that names the refused operation."""
    __tracebackhide__ = True
    raise NotOnRanks(text.format(what))


def refuse_input() -> None:
    """Make this process refuse input(), getpass() and debuggers.

    Otherwise they would wait for an answer, or read an empty one.
    """

    def ask(*arguments: Any, **options: Any) -> NoReturn:
        __tracebackhide__ = True
        if sys._getframe(1).f_globals.get("__name__") in DEBUGGERS:
            refuse(NO_DEBUGGER, "a debugger")
        refuse(NO_INPUT, "input()")

    def ask_secretly(*arguments: Any, **options: Any) -> NoReturn:
        __tracebackhide__ = True
        refuse(NO_INPUT, "getpass()")

    def stop(*arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if os.environ.get("PYTHONBREAKPOINT"):
            # Disabled, or chosen by the user.
            return sys.__breakpointhook__(*arguments, **options)
        refuse(NO_DEBUGGER, "breakpoint()")

    builtins.input, getpass.getpass, sys.breakpointhook = ask, ask_secretly, stop
