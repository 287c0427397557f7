"""Any one process of a pool stands still, at any moment of any verb: it is named, and two presses free the notebook.

Afterwards the pool is usable, or says that `%sky restart` recreates it; and it can be ended.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest

from sky_jupyter.pool.registry.registry import Registry
from tests.attacks.presses import Going
from tests.attacks.processes import eventually, left_of, of_pool, stopped
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.magics.notebook import Notebook, notebook
from tests.magics.test_reattach import LOAD, the_pool
from tests.pool.remote import MARKS
from tests.took import Took

ROLES = {
    "forkserver": "the forkserver",
    "host": "the host process",
    "scheduler": "the scheduler",
    "n1/agent": "the agent of node 1",
    "n1/rank1": "rank 1",
}
# What a pool on hosts has besides, here.
LINK = "the link process"
FOREVER = "import time\nwhile True: time.sleep(0.1)"
# What is asked of a pool of which a process stands still; each waits for as long as it is not done.
VERBS = {
    "cell": f"%%sky\n{FOREVER}",
    "wait": "%sky wait",
    "a rank that ends": "%%sky --on 1 --timeout 20\nimport os; os._exit(3)",
    "call": "forever() @ pools.current",
    "restart": "%sky restart",
    "resize": "%sky resize 3 --yes",
    "put": "%sky put a-file there",
    "get": "%sky get there back",
    "pull": "%sky pull mine",
    "where": "%sky where",
    "attach": "%sky attach {name}",
    "down": "%sky down",
}
# Each of the others takes a moment, of which a random part passes before the process is stopped.
LASTING = {"cell": 2.0, "wait": 2.0, "call": 2.0, "restart": 2.0, "resize": 3.0, "attach": 1.0, "down": 1.0}
BRIEF = 0.3
SEED = int(os.environ.get("SKY_SEED", "5"))
# The notebook forgets a pool that is kept, as one does that ends.
LET_GO = """
pool = pools.current
pool.release()
pools.discard(pool)
"""
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
from sky_jupyter.pool.open_pools import pools
open("a-file", "w").write("text")
@sky.function
def forever():
    while True: time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    # Each node's agent is a process that can be stopped, as on several machines.
    with notebook(tmp_path_factory.mktemp("stopped"), SKY_RANKS_PER_AGENT="1") as page:
        page.run(LOAD)
        assert page.run(SET_UP).status == "ok"
        yield page


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook that has two hosts."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    folder = tmp_path_factory.mktemp("far")
    with hosts(2, python=True, warm=True) as world:
        config = world.ssh_config(folder / "config")
        with notebook(folder, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="") as page:
            page.run(LOAD)
            assert page.run(SET_UP).status == "ok"
            yield page


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a pool of two nodes, of which nothing is left afterwards."""
    name = f"still-{uuid.uuid4().hex[:8]}"
    is_far = "far" in request.fixturenames
    page: Notebook = request.getfixturevalue("far" if is_far else "page")
    options = "--provider ssh --hosts host0,host1 --offline" if is_far else "--nodes 2"
    if getattr(request.node, "callspec", None) is not None and request.node.callspec.params.get("verb") == "attach":
        options += " --keep"
    cell = page.run(f"%sky up {options} --name {name}", timeout=240)
    assert cell.status == "ok", cell.outputs
    assert page.run("%%sky\nmine = 7\nopen('there', 'w').write('x')").status == "ok"
    id = the_pool(name).id
    yield name
    page.run(f"%sky down --name {name}")
    eventually(lambda: not left_of(id), f"something is left: {left_of(id)}")


def is_usable(page: Notebook) -> bool:
    """Whether a cell runs on the pool; where it does not, it says what helps, and that does."""
    cell = Going(page, "%%sky\n40 + 2")
    if cell.shows("is suspended"):
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


def attack(page: Notebook, name: str, who: str, verb: str, stays: bool, took: Took, after: float | None = None) -> None:
    """Stop a process before a verb begins, or so many seconds ``after``; see that whoever waits is told and freed."""
    pool = the_pool(name).id
    victim = of_pool(pool)[who]
    if verb == "wait":
        assert page.run(f"%%sky --detach\n{FOREVER}").status == "ok"
    if verb == "attach":
        assert page.run(LET_GO).status == "ok"
    if after is None and verb in ("cell", "call"):
        after = 1.0
    going = None
    if after is not None:
        going = Going(page, VERBS[verb].format(name=name))
        going.hear(after)
        assert not going.over or verb not in ("cell", "call"), going.cell.outputs
        # Of what a verb has replaced by now, there is another.
        victim = of_pool(pool).get(who, victim)
    with stopped_if_there(victim):
        began = time.monotonic()
        going = going or Going(page, VERBS[verb].format(name=name))
        # It may well be that the verb has no need of that process.
        told = None
        if going.shows("is suspended"):
            assert (LINK if who == "link" else ROLES[who]) in going.shown
            told = time.monotonic() - began
        # The end of a pool ends by itself, too.
        freed = going.ends() if verb == "down" and stays else going.freed()
        moment = "before" if after is None else f"after {after:.2f} s"
        print(f"{who}: {verb}, {moment}: told {told}, freed {freed:.1f}, {going.status}: {going.shown[-300:]}")
        took.row(
            "a process of the pool stands still (SIGSTOP), and does not go on",
            see="`the forkserver, which makes the kernels, is suspended: process N was stopped by a signal or a "
            "debugger; kill -CONT N there resumes it`; two interrupts free the notebook",
            kept="what the process has, where it goes on",
            on=f"{who.rpartition('/')[2]}: {verb}",
            freed=freed,
            **({} if told is None else {"told": told}),
        )
        if verb == "wait":
            # The run that was let go is on: whoever waits no longer has not ended it.
            going = Going(page, "%sky interrupt")
            going.ends()
        if verb == "attach" and going.status != "ok":
            # Nobody has it: it is as it was, and can be taken up, or ended, when it goes on.
            stays = False
        if stays and who == "link":
            # Nothing reaches the hosts, and nothing helps but that it goes on: that is said, and keeps nobody.
            cell = Going(page, "%%sky\n40 + 2")
            assert cell.shows("is suspended") or verb in ("down", "restart", "resize")
            cell.freed()
            stays = False
        if stays and verb != "down":
            is_usable(page)
    if verb == "attach" and going.status != "ok":
        again = Going(page, VERBS[verb].format(name=name))
        again.ends()
        assert again.status == "ok", again.shown
    if verb == "down":
        eventually(lambda: not left_of(pool), f"something is left: {left_of(pool)}")
    elif not stays:
        is_usable(page)


@pytest.mark.slow
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


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("who", ROLES)
def test_whatever_stands_still_from_a_random_moment_of_whatever_verb(
    page: Notebook, name: str, who: str, verb: str, took: Took
) -> None:
    chance = random.Random(f"{SEED} {who} {verb}")
    after, stays = chance.uniform(0, LASTING.get(verb, BRIEF)), chance.random() < 0.5
    print(f"seed {SEED}: {who} stands still {after:.2f} s after {verb} began, and {'stays' if stays else 'goes on'}")
    attack(page, name, who, verb, stays, took, after)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("verb", [pytest.param(verb, marks=MARKS) for verb in VERBS])
def test_a_link_that_stands_still_is_named_and_two_presses_free_the_notebook(
    far: Notebook, name: str, verb: str, took: Took
) -> None:
    stays = random.Random(f"{SEED} {verb}").random() < 0.5
    print(f"seed {SEED}: {'stays' if stays else 'goes on'}")
    attack(far, name, "link", verb, stays, took)


@pytest.mark.parametrize(
    "who", [who if who in ("forkserver", "scheduler") else pytest.param(who, marks=pytest.mark.long) for who in ROLES]
)
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
            if going.shows("is suspended"):
                assert ROLES[who] in going.shown
                # It stays in sight, whatever phases come and go.
                going.hear(1.0)
                assert going.over or ROLES[who] in going.cell.run
            going.freed()
            eventually(lambda: not left_of(pool), f"something is left: {left_of(pool)}")
    page.run(f"%sky down --name {name}")


@pytest.mark.slow
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


@contextlib.contextmanager
def stopped_if_there(process: psutil.Process) -> Iterator[None]:
    """A process stands still meanwhile, unless it has ended by now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def processes_of(name: str) -> dict[str, psutil.Process]:
    """The processes of a pool by its name, as far as it is known."""
    registry = Registry()
    try:
        row = registry.pool(name)
    finally:
        registry.close()
    return {} if row is None else of_pool(row.id)
