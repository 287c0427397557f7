"""Any one process of a pool stands still, at any moment of any verb: it is named, and two presses free the notebook.

Afterwards the pool is usable, or says that `%sky restart` makes it anew; and it can be ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

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
# What is asked of a pool of which a process stands still; each waits for as long as it is not done.
VERBS = {
    "cell": "%%sky\nimport time\nwhile True: time.sleep(0.1)",
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
    ("forkserver", "a rank that ends"),
    ("forkserver", "restart"),
    ("host", "resize"),
    ("scheduler", "put"),
    ("n1/agent", "call"),
    ("n1/rank1", "cell"),
    ("host", "down"),
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
    cell.ends()
    if cell.status == "ok":
        return True
    assert "%sky restart" in cell.shown, cell.shown
    again = Going(page, "%sky restart")
    again.ends()
    assert again.status == "ok", again.shown
    assert page.run("%%sky\n40 + 2").status == "ok"
    return False


def attack(page: Notebook, name: str, who: str, verb: str, took: Took) -> None:
    pool = the_pool(name).id
    victim = of_pool(pool)[who]
    begun_before = verb in ("cell", "call")
    going = Going(page, VERBS[verb]) if begun_before else None
    if going is not None:
        going.hear(1.0)
    with stopped(victim):
        going = going or Going(page, VERBS[verb])
        # It may well be that the verb has no need of that process.
        told = going.shows("stands still") if verb != "down" else False
        assert not told or ROLES[who] in going.shown
        freed = going.freed() if verb != "down" else going.ends()
    took.row(
        f"a process of the pool stands still: {who.rpartition('/')[2].rstrip('01')} ({verb})",
        see=f"`{ROLES[who]} … stands still: process N was stopped`; two presses free the notebook",
        kept="what the process has, where it goes on",
        freed=freed,
    )
    if verb == "down":
        eventually(lambda: not left_of(pool), f"something is left: {left_of(pool)}")
        return
    is_usable(page)


@pytest.mark.parametrize(("who", "verb"), DAILY)
def test_what_stands_still_is_named_and_two_presses_free_the_notebook(
    page: Notebook, name: str, who: str, verb: str, took: Took
) -> None:
    attack(page, name, who, verb, took)
