"""A process of a pool is killed in the midst of a verb: what is said names it, and is never the control plane's own.

Afterwards the pool is usable, or says that `%sky restart` recreates it.
"""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.attacks.presses import Going
from tests.attacks.processes import eventually, of_pool
from tests.attacks.test_stopped import FOREVER, is_usable, name, page, processes_of
from tests.magics.notebook import Notebook
from tests.magics.test_reattach import the_pool
from tests.took import Took

__all__ = ["name", "page"]
# What the person is never shown.
FOREIGN = ("CommClosedError", "distributed", "ConnectionPool", "Traceback", "tls://")
# Who is killed, in what, and what names it where the verb does not get over it.
KILLED = [
    ("n1/agent", "%sky restart", "node 1 is lost: its agent ended (killed by SIGKILL (9))"),
    ("scheduler", "%sky restart", "the connection to the pool"),
    ("forkserver", "%sky restart", "ended"),
    ("host", "%sky restart", "the pool's processes are gone"),
]


def kernels_are_ended(pool: dict[str, psutil.Process]) -> bool:
    return not all(process.is_running() for name, process in pool.items() if "rank" in name)


@pytest.mark.slow
@pytest.mark.parametrize(("who", "verb", "words"), KILLED)
def test_what_is_killed_in_a_restart_is_named(
    page: Notebook, name: str, who: str, verb: str, words: str, took: Took
) -> None:
    pool = of_pool(the_pool(name).id)
    going = Going(page, verb)
    eventually(lambda: going.over or going.hear(0.01) or kernels_are_ended(pool), "no kernel was ended")
    pool[who].send_signal(signal.SIGKILL)
    seconds = going.ends()
    took.row(
        "a process of the pool is killed in `%sky restart`",
        see="who ended, by its name and signal; the restart goes on where that is revived, or the pool is broken: "
        "`%sky restart`",
        kept="nothing of the kernels, as in any restart",
        told=seconds,
    )
    assert [word for word in FOREIGN if word in going.shown] == [], going.shown
    if going.status != "ok":
        assert words in going.shown, going.shown
    is_usable(page)


@pytest.mark.slow
def test_a_host_process_that_is_killed_in_a_wait_is_named(page: Notebook, name: str) -> None:
    assert page.run(f"%%sky --detach\n{FOREVER}").status == "ok"
    pool = of_pool(the_pool(name).id)
    going = Going(page, "%sky wait")
    going.hear(1.0)
    pool["host"].kill()
    going.ends()
    assert "the pool's processes are gone" in going.shown
    assert "connection has been closed" not in going.shown
    is_usable(page)


def test_a_host_process_that_ends_in_a_start_is_named_at_once(page: Notebook, took: Took) -> None:
    going = Going(page, "%sky up --nodes 2 --name starts")
    host = eventually(lambda: going.hear(0.01) or _starting("starts"), "no host came up")
    host.terminate()
    told = going.ends()
    words = ("the pool's processes are gone", "the host ended")
    assert any(word in going.shown for word in words), going.shown
    assert [word for word in FOREIGN if word in going.shown] == [], going.shown
    took.row(
        "the host process of a pool ends in `%sky up`",
        see="`the pool's processes are gone`",
        kept="nothing; nothing is left",
        told=told,
    )


def _starting(name: str) -> psutil.Process | None:
    """The host process of a pool that is being started, once it has made its scheduler."""
    found = processes_of(name)
    return found.get("host") if "scheduler" in found else None
