"""Interrupts (SIGINT) that are counted instead of raised."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def counting_interrupts() -> Iterator[list[object]]:
    """Defer SIGINT: collect interrupts in the yielded list, do not raise them.

    Outside the main thread the list stays empty.
    """
    presses: list[object] = []
    if threading.current_thread() is not threading.main_thread():
        yield presses
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    try:
        yield presses
    finally:
        # A handler that was not installed from Python cannot be restored.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
