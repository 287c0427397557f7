"""Questions beside a run: the answer may come late or never, and nothing waits for it.

A front end has one line for an answer, which belongs to the cell that runs: it is asked for while the main thread waits
for a run, and again by the next run if there was no answer. Output goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

from ..terminal import bottom_rows
from .prompts import can_ask


class _Line(Protocol):
    """Line of a front end in which a person can answer."""

    def take(self) -> str | None:
        """Return the answer; None as long as there is none."""

    @property
    def is_open(self) -> bool:
        """True as long as the line belongs to what runs now."""


class BackgroundPrompts:
    """Questions of a process, one at a time; there is one, `background_prompts`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Future[str | None]]] = deque()
        self._lock = threading.Lock()
        self._line: _Line | None = None

    def ask(self, text: str) -> Future[str | None]:
        """Ask a person from any thread; the answer is None at once if nobody can be asked.

        Cancel the future to withdraw the question.
        """
        future: Future[str | None] = Future()
        if not can_ask():
            future.set_result(None)
            return future
        with self._lock:
            self._waiting.append((text, future))
        return future

    def looking(self, tick: Callable[[], None]) -> Callable[[], None]:
        """Return a poll callback of the main thread that asks, and calls ``tick``."""

        def look() -> None:
            tick()
            if self._waiting:
                self._look()

        return look

    def _look(self) -> None:
        text, future = self._waiting[0]
        if future.done():
            self._next()
            return
        if self._line is None or not self._line.is_open:
            self._line = _open_line(text)
        answer = self._line.take()
        if answer is not None:
            with contextlib.suppress(InvalidStateError):
                future.set_result(answer)
            self._next()

    def _next(self) -> None:
        self._line = None
        with self._lock:
            self._waiting.popleft()


def _open_line(text: str) -> _Line:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    return _TerminalLine(text) if kernel is None else _KernelLine(kernel, text)


class _KernelLine:
    """Input line of a notebook's cell; `input` would wait for it."""

    def __init__(self, kernel: Any, text: str) -> None:
        self._kernel, self._parent = kernel, kernel.get_parent("shell")
        content = {"prompt": text, "password": False}
        idents = self._parent_ident()
        self._drain()
        kernel.session.send(kernel.stdin_socket, "input_request", content, self._parent, ident=idents)

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
        reply = self._receive()
        if reply is None:
            return None
        value = (reply.get("content") or {}).get("value", "")
        return "" if value == "\x04" else str(value)

    @property
    def is_open(self) -> bool:
        now = self._kernel.get_parent("shell")
        return bool(now.get("header", {}).get("msg_id") == self._parent.get("header", {}).get("msg_id"))


class _TerminalLine:
    """Line of a terminal; `input` would wait for it."""

    is_open = True

    def __init__(self, text: str) -> None:
        bottom_rows.make_room()
        sys.stderr.write(f"{text}")
        sys.stderr.flush()

    def take(self) -> str | None:
        try:
            if not select.select([sys.stdin], [], [], 0)[0]:
                return None
            return sys.stdin.readline().strip()
        except (OSError, ValueError):
            # It is closed.
            return ""


background_prompts = BackgroundPrompts()

__all__ = ["BackgroundPrompts", "background_prompts"]
