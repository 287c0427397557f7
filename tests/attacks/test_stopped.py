"""Any one process of a pool stands still, at any moment of any verb: it is named, and two presses free the notebook.

Afterwards the pool is usable, or says that `%sky restart` makes it anew; and it can be ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psutil
import pytest

from sky_jupyter.pool.registry import Registry
from tests.attacks.presses import Going
from tests.attacks.processes import eventually, left_of, of_pool, stopped
from tests.magics.notebook import Notebook, notebook
from tests.magics.test_reattach import LOAD, the_pool
from tests.took import Took

ROLES = {
    "forkserver": "the forkserver",
    "host": "the host process",
    "scheduler": "the scheduler",
    "n1/agent": "the agent of node 1",
    "n1/rank1": "rank 1",
}
FOREVER = "import time\nwhile True: time.sleep(0.1)"
# What is asked of a pool of which a process stands still; each waits for as long as it is not done.
VERBS = {
    "cell": f"%%sky\n{FOREVER}",
    "wait": "%sky wait",
    "a rank that ends": "%%sky --on 1 --timeout 20\nimport os; os._exit(3)",
    "call": "forever() @ sky.current()",
    "restart": "%sky restart",
    "resize": "%sky resize 3 --yes",
    "put": "%sky put a-file there",
    "get": "%sky get there back",
    "pull": "%sky pull mine",
    "where": "%sky where",
    "down": "%sky down",
}
DAILY = [
    ("forkserver", "a rank that ends", False),
    ("forkserver", "restart", False),
    ("host", "resize", False),
    ("scheduler", "put", True),
    ("n1/agent", "call", False),
    ("n1/rank1", "cell", True),
    ("host", "down", True),
]
SET_UP = """
import time, sky_jupyter as sky
open("a-file", "w").write("text")
@sky.function
def forever():
    while True: time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("stopped")) as page:
        page.run(LOAD)
        page.run(SET_UP)
        yield page


@pytest.fixture
def name(page: Notebook) -> Iterator[str]:
    """The name of a pool of two nodes, of which nothing is left afterwards."""
    name = f"still-{uuid.uuid4().hex[:8]}"
    cell = page.run(f"%sky up --nodes 2 --name {name}")
    assert cell.status == "ok", cell.outputs
    assert page.run("%%sky\nmine = 7\nopen('there', 'w').write('x')").status == "ok"
    id = the_pool(name).id
    yield name
    page.run(f"%sky down --name {name}")
    eventually(lambda: not left_of(id), "something is left")


def is_usable(page: Notebook) -> bool:
    """Whether a cell runs on the pool; where it does not, it says what helps, and that does."""
    cell = Going(page, "%%sky\n40 + 2")
    if cell.shows("stands still"):
        # Without it nothing may go on, for as long as it stands still: that is said, and what helps.
        cell.hear(8.0)
        cell.freed()
    if cell.status == "ok":
        return True
    if "%sky restart" in cell.shown:
        again = Going(page, "%sky restart")
        again.ends()
        assert again.status == "ok", again.shown
    assert page.run("%%sky\n40 + 2").status == "ok", cell.shown
    return False


def attack(page: Notebook, name: str, who: str, verb: str, stays: bool, took: Took) -> None:
    """Stop a process as a verb is on, or before it begins, and see that whoever waits is told and freed."""
    pool = the_pool(name).id
    victim = of_pool(pool)[who]
    if verb == "wait":
        assert page.run(f"%%sky --detach\n{FOREVER}").status == "ok"
    going = Going(page, VERBS[verb]) if verb in ("cell", "call") else None
    if going is not None:
        going.hear(1.0)
    with stopped(victim):
        going = going or Going(page, VERBS[verb])
        # It may well be that the verb has no need of that process.
        if verb != "down" and going.shows("stands still"):
            assert ROLES[who] in going.shown
        freed = going.freed() if verb != "down" else going.ends()
        took.row(
            "a process of the pool stands still (SIGSTOP), and does not go on",
            see="`the forkserver, which makes the kernels, stands still: process N was stopped by a signal or a "
            "debugger; kill -CONT N there lets it go on`; two interrupts free the notebook",
            kept="what the process has, where it goes on",
            on=f"{who.rpartition('/')[2]}: {verb}",
            freed=freed,
        )
        if verb == "wait":
            # The run that was let go is on: whoever waits no longer has not ended it.
            going = Going(page, "%sky interrupt")
            going.ends()
        if stays and verb != "down":
            is_usable(page)
    if verb == "down":
        eventually(lambda: not left_of(pool), f"something is left: {left_of(pool)}")
    elif not stays:
        is_usable(page)


@pytest.mark.parametrize(("who", "verb", "stays"), DAILY)
def test_what_stands_still_is_named_and_two_presses_free_the_notebook(
    page: Notebook, name: str, who: str, verb: str, stays: bool, took: Took
) -> None:
    attack(page, name, who, verb, stays, took)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stays", [False, True], ids=["goes on", "stays"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("who", ROLES)
def test_whatever_stands_still_in_whatever_verb(
    page: Notebook, name: str, who: str, verb: str, stays: bool, took: Took
) -> None:
    attack(page, name, who, verb, stays, took)


# Not each day: a start's view has one line, and a notice that comes as one phase gives way to the next may be lost.
@pytest.mark.long
@pytest.mark.parametrize("who", ROLES)
def test_what_stands_still_in_a_start_is_named_and_nothing_is_left_of_it(page: Notebook, who: str) -> None:
    name = f"start-{uuid.uuid4().hex[:8]}"
    going = Going(page, f"%sky up --nodes 2 --name {name}")
    victim = eventually(lambda: going.over or going.hear(0.01) or processes_of(name).get(who), f"no {who} came up")
    if going.over:
        # It was too late to be stopped.
        assert going.status == "ok"
    else:
        pool = the_pool(name).id
        with stopped(victim):
            if going.shows("stands still"):
                assert ROLES[who] in going.shown
            going.freed()
            eventually(lambda: not left_of(pool), f"something is left: {left_of(pool)}")
    page.run(f"%sky down --name {name}")


def test_an_interrupt_that_an_agent_does_not_hear_reaches_it_when_it_goes_on(page: Notebook, name: str) -> None:
    going = Going(page, VERBS["cell"])
    going.hear(1.0)
    with stopped(of_pool(the_pool(name).id)["n1/agent"]):
        # Nobody who is known not to answer is asked.
        assert going.shows("node 1 does not answer")
        going.press()
        assert going.shows("interrupt again")
    going.ends()
    assert "ranks 0-1 interrupted" in going.shown or "KeyboardInterrupt" in going.shown
    assert page.run("%%sky\nmine").status == "ok"


def processes_of(name: str) -> dict[str, psutil.Process]:
    """The processes of a pool by its name, as far as it is known."""
    registry = Registry()
    try:
        row = registry.pool(name)
    finally:
        registry.close()
    return {} if row is None else of_pool(row.id)
