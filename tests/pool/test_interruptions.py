"""Machines that are taken away: the nodes read the notice, and everybody hears of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.lifecycle import status
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool import notices
from tests.pool.pools import run, underway, wait_until


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(notices.FILE, str(tmp_path_factory.mktemp("notices") / "notice"))
        pool = Pool(PoolSpec(provider=notices.Doomed(), nodes=2, name="doomed"))
        pool.start()
        try:
            yield pool
        finally:
            pool.down()


LOOP = """
import time
import sky_jupyter as sky
seen = []

@sky.on_interruption
def save():
    seen.append(sky.interruption().nodes)
    print("saved")

while not sky.interruption():
    time.sleep(0.05)
"""


def test_a_notice_reaches_the_view_the_status_and_the_code_of_all_ranks(doomed: Pool) -> None:
    told: list[str] = []
    running = underway(
        doomed, LOOP, listener=lambda event: told.append(event.text) if isinstance(event, NoticeEvent) else None
    )
    notices.write()
    doomed.attend(running)
    assert {text for outcome in running.outcomes.values() for text in outcome.stdout if "saved" in text} == {"saved\n"}
    assert sum("the machine of node" in text and "is taken away in 1" in text for text in told) == 2
    facts = status.of(doomed, 0)
    assert sorted(facts["away"]) == ["node 0", "node 1"]
    assert "its machine is taken away in 1" in facts["away"]["node 0"]
    # A function that is registered late is called at once, and of two notices of one kind only the first counts.
    assert run(doomed, "import time\nwhile len(seen) < 1: time.sleep(0.01)\nlen(seen)").values == [1, 1]
    more = "import threading\ncame = threading.Event()\n_ = sky.on_interruption(came.set)\ncame.wait(60)"
    assert run(doomed, more).values == [True, True]
    facts = "there = sky.interruption()\n(bool(there), there.nodes, there.here, there.seconds_left > 60, there.wait(0))"
    assert run(doomed, facts).values == [(True, (0, 1), True, True, True)] * 2
    # A new kernel hears of it as it begins.
    doomed.restart(ranks=[1])
    again = "import sky_jupyter as sky\nsky.interruption().wait(60), sky.interruption().here"
    assert run(doomed, again).values == [(True, True)] * 2
    notices.withdraw()
    gone = "import time\nwhile sky.interruption():\n    time.sleep(0.05)\nrepr(sky.interruption())"
    assert run(doomed, gone).values == ["<no interruption>"] * 2
    wait_until(lambda: not status.of(doomed, 0)["away"])
