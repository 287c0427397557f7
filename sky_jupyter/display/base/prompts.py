"""Prompts: passphrases of keys, unknown hosts, and what may be lost.

Connections are made in threads, but only the main thread can ask: a kernel's front end has one line for an answer,
which belongs to the running cell. So questions wait until the main thread, which waits for the pool, polls them.
"""

from __future__ import annotations

import contextlib
import getpass
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from ...machines.ssh.known_hosts import Unknown
from ...machines.ssh.types import Prompts
from ..terminal import bottom_rows

T = TypeVar("T")
_TICK = 0.05
_TRIES = 3


class _Question(Generic[T]):
    """Question to a person, with the answer to assume if nobody answers."""

    def __init__(self, ask: Callable[[], T], otherwise: T) -> None:
        self._ask, self._otherwise = ask, otherwise
        self.answer: Future[T] = Future()

    def put(self) -> None:
        """Ask; whoever waits gets the answer or the error."""
        try:
            bottom_rows.make_room()
            self.answer.set_result(self._ask())
        except (EOFError, OSError, RuntimeError):
            # The line for answers is gone, or was never there.
            self.give_up()
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Tell whoever waits that nobody answers."""
        self.answer.set_result(self._otherwise)


class UserPrompts:
    """Prompts of a process; there is one, `person`.

    It asks only inside `answering`, and only where a line can be typed.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Question[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._answering = False

    @property
    def prompts(self) -> Prompts:
        """Prompts for code that connects; none where nobody can be asked."""
        return Prompts(self._passphrase, self._accept) if can_ask() else Prompts()

    @contextlib.contextmanager
    def answering(self, tick: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """Ask questions, inside the block, on the thread that calls the poll callback.

        Parameters
        ----------
        tick : callable
            Called before each look for a question.
        """

        def look() -> None:
            tick()
            self._ask_all()

        if not can_ask():
            yield tick
            return
        with self._lock:
            outer, self._answering = self._answering, True
        try:
            yield look
        finally:
            if not outer:
                self._close()

    def wait(self, work: Callable[[], T]) -> T:
        """Run a function in a thread that may ask, and wait for it here."""
        with ThreadPoolExecutor(1, thread_name_prefix="sky-asking") as thread:
            # Inside: if this is interrupted, the awaited thread must learn that nobody answers.
            with self.answering(lambda: None) as tick:
                future = thread.submit(work)
                while not future.done():
                    wait([future], timeout=_TICK)
                    tick()
            return future.result()

    def _ask(self, ask: Callable[[], T], otherwise: T) -> T:
        """Ask on the main thread, and wait for the answer."""
        question = _Question(ask, otherwise)
        with self._lock:
            if not self._answering:
                return otherwise
            self._waiting.put(question)
        return question.answer.result()

    def _ask_all(self) -> None:
        for question in self._left():
            try:
                question.put()
            except BaseException:
                # An interrupt: drop the remaining questions.
                self._close()
                raise

    def _close(self) -> None:
        """Tell all who still wait that there is no answer."""
        with self._lock:
            self._answering = False
        for question in self._left():
            question.give_up()

    def _left(self) -> Iterator[_Question[Any]]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()

    def _passphrase(self, path: str, attempt: int) -> str | None:
        again = "That was not it. " if attempt else ""
        text = f"{again}Passphrase of the key {path} (nothing: go on without that key): "
        return self._ask(lambda: getpass.getpass(text) or None, None)

    def _accept(self, new: Unknown) -> bool:
        return self._ask(lambda: _is_right(new), False)


def can_ask() -> bool:
    """Tell whether a person can answer here.

    A person cannot in scripts, nor where the front end takes no answers, as in nbconvert.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", False))
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # it is closed
        return False


def agrees(text: str) -> bool | None:
    """Ask a yes-or-no question on the main thread; None if nobody can be asked."""
    if not can_ask():
        return None
    try:
        for _ in range(_TRIES):
            answer = input(f"{text} (yes or no): ").strip().lower()
            if answer in ("y", "yes"):
                return True
            if answer in ("", "n", "no"):
                return False
    except (EOFError, OSError, RuntimeError):
        return None
    return False


def _is_right(new: Unknown) -> bool:
    text = (
        f"The host {new.host} is not known yet: the fingerprint of its {new.kind} key is {new.fingerprint}.\n"
        "Is it the right one? It is saved then. (yes, no, or the fingerprint that it should have): "
    )
    for _ in range(_TRIES):
        answer = input(text).strip()
        if answer.lower() == "yes" or answer == new.fingerprint:
            return True
        if answer.lower() in ("", "no") or answer.startswith("SHA256:"):
            return False
        text = "yes, no, or the fingerprint that it should have: "
    return False


person = UserPrompts()
