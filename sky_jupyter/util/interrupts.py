"""Interrupts (SIGINT) that are counted instead of raised."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

try:
    # `signal.signal` converts its values to enumerations. A call sets handlers four times: that took a tenth of its
    # time.
    from _signal import signal as _signal  # type: ignore[import-not-found]
except ImportError:
    _signal = signal.signal

_INTERRUPT = int(signal.SIGINT)
# The handlers that `counting_interrupts` has replaced in the main thread, the innermost last.
_replaced: list[Any] = []


@contextlib.contextmanager
def counting_interrupts() -> Iterator[list[object]]:
    """Defer SIGINT: collect interrupts in the yielded list, do not raise them.

    Outside the main thread the list stays empty.
    """
    presses: list[object] = []
    if threading.current_thread() is not threading.main_thread():
        yield presses
        return
    before = set_interrupt_handler(lambda number, frame: presses.append(number))
    # A handler that was not installed from Python cannot be restored.
    before = signal.default_int_handler if before is None else before
    _replaced.append(before)
    try:
        yield presses
    finally:
        _replaced.pop()
        set_interrupt_handler(before)


@contextlib.contextmanager
def interrupts_as_before() -> Iterator[None]:
    """Handle SIGINT inside `counting_interrupts` as outside it; for code of users."""
    if not _replaced or threading.current_thread() is not threading.main_thread():
        yield
        return
    counting = set_interrupt_handler(_replaced[-1])
    try:
        yield
    finally:
        set_interrupt_handler(counting)


def raise_again(presses: list[object]) -> None:
    """Raise the interrupts that were counted, after `counting_interrupts`."""
    for _ in presses:
        # An outer `counting_interrupts` counts them; without one, KeyboardInterrupt is raised here.
        signal.raise_signal(signal.SIGINT)


def set_interrupt_handler(handler: Any) -> Any:
    """Set the handler of SIGINT, as `signal.signal` does; return the one before."""
    return _signal(_INTERRUPT, int(handler) if isinstance(handler, int) else handler)
