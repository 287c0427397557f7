"""Questions beside a run: the answer may come late or never; nothing waits.

A front end has one line for an answer, which belongs to the running cell. So a question is asked while the main thread
waits for a run, and asked again by the next run if there was no answer. Output continues meanwhile.
"""

from __future__ import annotations

import contextlib
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..terminal import bottom_rows
from .prompts import can_ask

_END_OF_FILE = "\x04"


@dataclass(frozen=True)
class _Question:
    text: str
    password: bool = False
    # Whether the answer is returned as it was typed, and an end of file as its character.
    verbatim: bool = False
    answer: Future[str | None] = field(default_factory=Future)


class _Line(Protocol):
    """Line of a front end in which a person can answer."""

    def take(self) -> str | None:
        """Return the answer; None as long as there is none."""

    def close(self) -> None:
        """Leave the front end as it was; any thread, and more than once."""

    @property
    def is_open(self) -> bool:
        """Whether the line belongs to what runs now."""


class BackgroundPrompts:
    """Questions of a process, one at a time; there is one, `background_prompts`."""

    def __init__(self) -> None:
        self._waiting: deque[_Question] = deque()
        self._lock = threading.Lock()
        self._line: _Line | None = None

    def ask(self, text: str, *, password: bool = False, verbatim: bool = False) -> Future[str | None]:
        """Ask a person, from any thread; the answer is None if nobody can be asked.

        Cancel the future to withdraw the question.

        Parameters
        ----------
        text : str
            The question.
        password : bool
            Whether to hide the answer.
        verbatim : bool
            Whether to keep the answer's spaces, and return an end of file as the character 4. Otherwise the answer is
            stripped, and an end of file is an empty answer.

        Returns
        -------
        Future of str or None
            The answer.
        """
        question = _Question(text, password, verbatim)
        if not can_ask():
            question.answer.set_result(None)
            return question.answer
        with self._lock:
            self._waiting.append(question)
        return question.answer

    def looking(self, tick: Callable[[], None]) -> Callable[[], None]:
        """Return a poll callback of the main thread that asks, and calls ``tick``."""

        def look() -> None:
            tick()
            if self._waiting:
                self._look()

        return look

    def _look(self) -> None:
        question = self._waiting[0]
        if question.answer.done():
            self._next()
            return
        if self._line is None or not self._line.is_open:
            self._line = line = _open_line(question)
            question.answer.add_done_callback(lambda _: line.close())
        typed = self._line.take()
        if typed is not None:
            if not question.verbatim:
                typed = "" if typed == _END_OF_FILE else typed.strip()
            with contextlib.suppress(InvalidStateError):
                question.answer.set_result(typed)
            self._next()

    def _next(self) -> None:
        self._line = None
        with self._lock:
            self._waiting.popleft()


def _open_line(question: _Question) -> _Line:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    return _TerminalLine(question) if kernel is None else _KernelLine(kernel, question)


class _KernelLine:
    """Input line of a notebook's cell; `input` would wait for it."""

    def __init__(self, kernel: Any, question: _Question) -> None:
        self._kernel, self._parent = kernel, kernel.get_parent("shell")
        content = {"prompt": question.text, "password": question.password}
        idents = self._parent_ident()
        self._drain()
        sent = kernel.session.send(kernel.stdin_socket, "input_request", content, self._parent, ident=idents)
        self._id = (sent or {}).get("header", {}).get("msg_id")

    def _parent_ident(self) -> Any:
        kernel = self._kernel
        if hasattr(kernel, "_get_shell_context_var"):
            return kernel._get_shell_context_var(kernel._shell_parent_ident)
        return kernel._parent_ident["shell"]

    def _drain(self) -> None:
        """Drop answers to earlier questions."""
        while self._receive() is not None:
            pass

    def _receive(self) -> dict[str, Any] | None:
        import zmq

        with contextlib.suppress(Exception):
            _, reply = self._kernel.session.recv(self._kernel.stdin_socket, mode=zmq.NOBLOCK)
            return reply
        return None

    def take(self) -> str | None:
        while (reply := self._receive()) is not None:
            # Not every front end says which request it answers. The input box of an earlier question may still be open.
            if (reply.get("parent_header") or {}).get("msg_id", self._id) == self._id:
                return str((reply.get("content") or {}).get("value", ""))
        return None

    def close(self) -> None:
        """Do nothing: the front end removes the line with the cell's end."""

    @property
    def is_open(self) -> bool:
        now = self._kernel.get_parent("shell")
        return bool(now.get("header", {}).get("msg_id") == self._parent.get("header", {}).get("msg_id"))


class _TerminalLine:
    """Line of a terminal; `input` would wait for it."""

    is_open = True

    def __init__(self, question: _Question) -> None:
        bottom_rows.make_room()
        self._before = _hide_typing() if question.password else None
        sys.stderr.write(f"{question.text}")
        sys.stderr.flush()

    def take(self) -> str | None:
        try:
            if not select.select([sys.stdin], [], [], 0)[0]:
                return None
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else _END_OF_FILE
        except (OSError, ValueError):
            # Standard input is closed.
            return _END_OF_FILE

    def close(self) -> None:
        """Show again what is typed."""
        before, self._before = self._before, None
        if before is not None:
            import termios

            with contextlib.suppress(OSError, ValueError, termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
            sys.stderr.write("\n")


def _hide_typing() -> list[Any] | None:
    """Turn off a terminal's echo; return its former settings, or None on failure."""
    try:
        import termios

        before = termios.tcgetattr(sys.stdin)
        now = [*before]
        now[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, now)
    except (ImportError, OSError, ValueError, termios.error):
        return None
    return before


background_prompts = BackgroundPrompts()

__all__ = ["BackgroundPrompts", "background_prompts"]
