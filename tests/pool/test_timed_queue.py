"""The queue of a main thread that gets signals while it waits."""

from __future__ import annotations

import queue
import signal
import threading
import time

import pytest

from sky_jupyter.pool.base.timed_queue import TimedQueue


def test_a_timeout_ends_though_a_signals_handler_returns_after_it() -> None:
    handled: list[int] = []

    def late(number: int, frame: object) -> None:
        time.sleep(0.3)
        handled.append(number)

    before = signal.signal(signal.SIGUSR1, late)
    main = threading.main_thread().ident
    assert main is not None
    sender = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        sender.start()
        # `queue.SimpleQueue` of Python 3.10 to 3.12 hangs here.
        with pytest.raises(queue.Empty):
            TimedQueue[int]().get(0.2)
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [signal.SIGUSR1]


def test_items_come_in_order_from_another_thread() -> None:
    items: TimedQueue[int] = TimedQueue()
    sender = threading.Thread(target=lambda: [items.put(number) for number in range(10_000)])
    sender.start()
    assert [items.get(60.0) for _ in range(10_000)] == list(range(10_000))
    sender.join()
    with pytest.raises(queue.Empty):
        items.get_nowait()
