"""Input and debuggers on a rank: the notebook's user answers, or they fail."""

from __future__ import annotations

import bdb
import builtins
import functools
import getpass
import os
import pdb
import re
import sys
from typing import Any, NoReturn

from ...errors import NotInPoolError, NotOnRanks
from ..shared import agent_channel

DEBUGGERS = ("bdb", "cmd", "pdb", "IPython.core.debugger")
TO = "input"
_NOBODY = "where nobody can answer (a detached run, a script, a front end that takes no input)"
NO_INPUT = (
    "{} does not work on a rank " + _NOBODY + ": ask in a plain cell of the notebook, "
    "and use what it returns in the %%sky cell"
)
NO_DEBUGGER = (
    "{} does not work on a rank " + _NOBODY + ": call the function in a plain cell to debug it there, "
    "or print what you want to see; `%sky where` shows each rank's stack while a cell runs"
)
# Code that reads the failure of an earlier cell.
_LOOKING_BACK = re.compile(r"%debug\b|\bpdb\b|\blast_(?:traceback|value|type|exc)\b|\bprint_last\b")
_HIDDEN = "········"
_END_OF_FILE = "\x04"


class UserInput:
    """Replacement of `input`, `getpass` and the hook of `breakpoint` on a rank."""

    def __init__(self) -> None:
        # Whether somebody can answer the present request.
        self.allowed = False
        # Whether an interrupt came while a debugger asked.
        self.was_interrupted = False

    def begin(self, *, allowed: bool) -> None:
        """Note that a request begins, and whether somebody can answer it."""
        self.allowed, self.was_interrupted = allowed, False

    def end(self) -> None:
        """Note that the request has ended: its remaining threads cannot ask."""
        self.allowed = False

    def ask(self, prompt: str, refusal: str, what: str, *, password: bool = False, where: str = "") -> str:
        """Return the user's answer; raise EOFError, or NotOnRanks if nobody can answer.

        The prompt and the answer are output of this rank, except for a password.
        """
        __tracebackhide__ = True
        channel = self._channel() if self.allowed else None
        if channel is None:
            refuse(refusal, what)
        _flush()
        answer, _ = channel.ask(TO, {"prompt": prompt, "password": password}, where=where or f"in {what}")
        value = answer.get("value")
        if not isinstance(value, str):
            refuse(refusal, what)
        if value == _END_OF_FILE:
            print(prompt)
            raise EOFError
        print(f"{prompt}{_HIDDEN if password else value}")
        return value

    @staticmethod
    def _channel() -> agent_channel.AgentChannel | None:
        """Return the channel to the agent; None in a process that this rank has forked."""
        try:
            return agent_channel.of_rank()
        except NotInPoolError:
            return None


def looks_back(code: str) -> bool:
    """Return whether a cell may debug the failure of an earlier one."""
    return _LOOKING_BACK.search(code) is not None


def forget_results(namespace: dict[str, Any]) -> None:
    """Drop names that a debugger sets in a namespace where a cell returned or failed.

    A later debugger would show them with each frame of a cell, as a line ``None``.
    """
    for name in ("__return__", "__exception__"):
        namespace.pop(name, None)


def refuse(text: str, what: str) -> NoReturn:
    """Raise NotOnRanks with a message that names the refused operation."""
    __tracebackhide__ = True
    raise NotOnRanks(text.format(what))


def install() -> UserInput:
    """Replace `input`, `getpass` and `breakpoint`'s hook; return the `UserInput`.

    The standard functions would wait for an answer in a terminal that does not exist, or read empty input.
    """
    users = UserInput()

    def ask(prompt: object = "", /) -> str:
        __tracebackhide__ = True
        if sys._getframe(1).f_globals.get("__name__") not in DEBUGGERS:
            return users.ask(str(prompt), NO_INPUT, "input()")
        try:
            return users.ask(str(prompt), NO_DEBUGGER, "a debugger", where="in the debugger")
        except KeyboardInterrupt:
            # pdb would ask again, but the interrupt must end the cell.
            users.was_interrupted = True
            raise bdb.BdbQuit from None

    def ask_secretly(prompt: str = "Password: ", *arguments: Any, **options: Any) -> str:
        __tracebackhide__ = True
        return users.ask(str(prompt), NO_INPUT, "getpass()", password=True)

    def stop(*arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if os.environ.get("PYTHONBREAKPOINT"):
            # The user has disabled or replaced it.
            return sys.__breakpointhook__(*arguments, **options)
        if not users.allowed:
            refuse(NO_DEBUGGER, "breakpoint()")
        pdb.Pdb().set_trace(sys._getframe(1))
        return None

    builtins.input, getpass.getpass, sys.breakpointhook = ask, ask_secretly, stop
    _leave_interrupts_alone()
    return users


def _leave_interrupts_alone() -> None:
    """Keep debuggers from setting a signal handler.

    After `continue`, their handler would turn an interrupt of the cell into a prompt.
    """
    begin = pdb.Pdb.__init__

    @functools.wraps(begin)
    def begin_without(self: pdb.Pdb, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.nosigint = True  # type: ignore[attr-defined]

    pdb.Pdb.__init__ = begin_without  # type: ignore[method-assign]


def _flush() -> None:
    """Send printed text, so that it is seen before the question."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
