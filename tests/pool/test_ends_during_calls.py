"""What a call or a cell says whose pool ends while it is being sent."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.capture.project_files import LocalCode
from sky_jupyter.display.views import DelayedView
from sky_jupyter.errors import PoolError, SkyError
from sky_jupyter.pool.execution.short_calls import ShortCalls
from sky_jupyter.pool.execution.supervisor import Supervisor
from sky_jupyter.pool.execution.tasks import PoolTasks
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer import project_code, send_values
from sky_jupyter.pool.transfer.packages import PoolPackages
from sky_jupyter.pool.transfer.project_code import PoolCode
from tests.conftest import pool_folders
from tests.pool.pools import local_pool, run

WHY = "its time is over"
WAYS: dict[str, Callable[[Pool], Any]] = {
    "call": lambda pool: sky.function(lambda: None)() >> pool,
    "broadcast": lambda pool: sky.function(lambda: None)() @ pool,
    # These go the long way.
    "retried call": lambda pool: sky.function(lambda: None)().with_retries(1) >> pool,
    "retried broadcast": lambda pool: sky.function(lambda: None)().with_retries(1) @ pool,
    "cell": lambda pool: run(pool, "len(text)", {"text": "a" * 100_000}),
}
POINTS: dict[str, tuple[Any, str]] = {
    "as code is looked at": (LocalCode, "look"),
    "as packages are compared": (PoolPackages, "check"),
    "before values": (send_values, "ship"),
    "before code": (PoolCode, "bring"),
    "amid code": (project_code, "_write_one"),
    "before arguments": (PoolTasks, "_own"),
    "as it is sent": (ShortCalls, "send"),
    "as it is added": (Supervisor, "add"),
    "as it has been begun": (DelayedView, "__exit__"),
}
DAILY = {
    ("call", "amid code"),
    ("call", "as it is sent"),
    ("retried call", "as it is added"),
    ("cell", "before values"),
}
# A broadcast and a cell have no arguments of their own, and a cell of a test no view and no code.
NEVER = {("retried broadcast", "before arguments"), ("cell", "before arguments"), ("cell", "as it has been begun")}
NEVER |= {("cell", "before code"), ("cell", "amid code"), ("cell", "as it is sent")}
NEVER |= {(way, "as it is sent") for way in ("retried call", "retried broadcast")}
LONG = ("before arguments", "as it is added", "as it has been begun")
NEVER |= {(way, point) for way in ("call", "broadcast") for point in LONG}


@pytest.mark.parametrize(
    ("way", "point"),
    [
        pytest.param(way, point, marks=[] if (way, point) in DAILY else pytest.mark.slow)
        for way in WAYS
        for point in POINTS
        if (way, point) not in NEVER
    ],
)
def test_a_call_whose_pool_ends_says_why(way: str, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_pool(nodes=1) as pool:
        owner, name = POINTS[point]
        before = getattr(owner, name)

        @functools.wraps(before)
        def ends(*arguments: Any, **named: Any) -> Any:
            pool.lifecycle.teardown.expire(WHY)
            return before(*arguments, **named)

        monkeypatch.setattr(owner, name, ends)
        if owner is PoolPackages:
            # As in another environment: the nodes of this one have the notebook's packages.
            monkeypatch.setattr(PoolPackages, "may_differ", True)
        with pytest.raises(SkyError, match=WHY):
            WAYS[way](pool)
        assert pool.state == "ended"
        assert not pool.supervisor.runs
        # Nor is its folder made anew by what was still being written.
        assert not pool_folders(pool.id)


def test_a_call_finds_out_that_the_nodes_ended_their_pool_as_its_time_was_over() -> None:
    with local_pool(nodes=1, ttl=3600) as pool:
        # Their timers fired a moment before ours, and their hosts have not been heard of.
        pool.expiry.stop()
        pool.expiry.ttl = 0.0
        pool.expiry._at = 0.0
        shutil.rmtree(pool.hosts[0].folder)
        with pytest.raises(PoolError, match="has ended: its ttl of 0 s is over"):
            WAYS["call"](pool)
