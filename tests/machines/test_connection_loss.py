"""A session's connection is lost once, and everybody who asked hears of it."""

from __future__ import annotations

import threading

from sky_jupyter.errors import LinkLost
from sky_jupyter.machines.ssh.connection_loss import ConnectionLoss


def lost(text: str) -> LinkLost:
    return LinkLost("gpu1", "broken", text)


def test_a_loss_shuts_the_session_before_it_is_reported_to_early_and_late_listeners() -> None:
    heard: list[str] = []
    loss = ConnectionLoss(threading.Event())
    loss.on_lost(lambda reason: heard.append(f"early: {reason}"))
    first = lost("the connection broke")
    loss.lose(first, lambda: heard.append("shut"))
    loss.on_lost(lambda reason: heard.append(f"late: {reason}"))
    assert heard == ["shut", f"early: {first}", f"late: {first}"]
    assert loss.reason is first


def test_the_first_loss_alone_counts() -> None:
    heard: list[LinkLost] = []
    loss = ConnectionLoss(threading.Event())
    loss.on_lost(heard.append)
    first = lost("the connection broke")
    loss.lose(first)
    loss.lose(lost("it does not answer"))
    assert heard == [first] == [loss.reason]


def test_what_breaks_after_the_session_was_closed_is_no_loss() -> None:
    heard: list[LinkLost] = []
    closing = threading.Event()
    loss = ConnectionLoss(closing)
    loss.on_lost(heard.append)
    closing.set()
    loss.lose(lost("the connection broke"), lambda: heard.append(lost("shut")))
    assert heard == []
    assert loss.reason is None


def test_of_many_threads_that_see_the_loss_one_reports_it() -> None:
    heard: list[LinkLost] = []
    loss, ready = ConnectionLoss(threading.Event()), threading.Barrier(8)
    loss.on_lost(heard.append)

    def see() -> None:
        ready.wait()
        loss.lose(lost("the connection broke"))

    threads = [threading.Thread(target=see) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(heard) == 1
