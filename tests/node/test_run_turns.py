"""The queue of several notebooks' runs, which the head's agent keeps: order, leases, and what they tell each other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.node.agent import run_turns
from sky_jupyter.node.agent.run_turns import RunTurns

LEASE = 10.0


class Clock:
    """Time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(run_turns.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Head:
    """The head's agent, as its turns see it; asked without waiting."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.agent = SimpleNamespace(manager=1, node=0, runs={}, send=self.sent.append)
        self.turns = RunTurns(self.agent)  # type: ignore[arg-type]

    def take(self, run: str, who: str, **more: Any) -> dict[str, Any]:
        return asyncio.run(self.turns.sky_take_turn(run, who, f"notebook {who or 'manager'}", LEASE, **more))

    def leave(self, run: str, who: str, **news: Any) -> None:
        asyncio.run(self.turns.sky_leave_turn(run, who, news))

    def begin(self, run: str) -> asyncio.Event:
        over = asyncio.Event()
        self.agent.runs[run] = SimpleNamespace(over=over)
        return over


@pytest.fixture
def head(clock: Clock) -> Head:
    return Head()


def test_the_manager_has_the_turn_until_it_gives_it_up_itself(head: Head) -> None:
    answer = head.take("r1", "a")
    assert (answer["turn"], answer["ahead"]["standing"], answer["ahead"]["runs"]) == (0, True, [])
    over = head.begin("m1")
    assert head.take("r1", "a")["ahead"]["runs"] == ["m1"]
    over.set()
    assert head.sent[:1] == [{"turn": "wanted", "node": 0}]
    head.leave("", "")
    assert head.take("r1", "a")["turn"] > 0


def test_runs_of_several_notebooks_take_turns_in_the_order_in_which_they_asked(head: Head) -> None:
    head.leave("", "")
    first = head.take("a1", "a")["turn"]
    assert not head.take("b1", "b")["turn"]
    assert not head.take("m1", "")["turn"]
    head.leave("a1", "a")
    assert not head.take("a2", "a")["turn"]
    assert not head.take("m1", "")["turn"]
    second = head.take("b1", "b")["turn"]
    assert 0 < first < second
    assert head.take("a2", "a")["ahead"]["label"] == "notebook b"
    head.leave("b1", "b")
    assert head.take("m1", "")["turn"] > second
    head.leave("m1", "")
    assert head.take("a2", "a")["turn"]


def test_a_repeated_request_is_the_same_turn(head: Head) -> None:
    head.leave("", "")
    assert head.take("a1", "a")["turn"] == head.take("a1", "a")["turn"]


def test_a_repair_goes_ahead_and_a_restart_ends_the_turn_of_whoever_has_it(head: Head) -> None:
    head.leave("", "")
    turn = head.take("a1", "a")["turn"]
    over = head.begin("a1")
    head.take("b1", "b")
    assert not head.take("repair", "", ahead=True)["turn"]
    assert head.take("restart", "", force=True)["turn"]
    assert head.take("a1", "a", hold=turn)["lost"]
    over.set()
    head.leave("restart", "")
    assert not head.take("b1", "b")["turn"]
    assert head.take("repair", "", ahead=True)["turn"]


def test_a_manager_that_is_alone_again_needs_no_more_turns(head: Head, clock: Clock) -> None:
    head.leave("", "")
    turn = head.take("a1", "a")["turn"]
    assert turn
    head.leave("a1", "a")
    answer = head.take("m1", "")
    assert answer["turn"]
    assert not answer.get("alone")
    head.leave("m1", "")
    clock.now += LEASE + 1
    assert head.take("m2", "").get("alone")
    # And the next guest has to ask again.
    assert head.take("b1", "b")["ahead"]["standing"]


def test_a_guest_that_runs_nothing_does_not_keep_the_manager_asking(head: Head, clock: Clock) -> None:
    head.leave("", "")
    head.take("a1", "a")
    head.leave("a1", "a")
    clock.now += LEASE + 1
    head.take("", "a")
    assert head.take("m1", "").get("alone")


def test_a_guest_that_renews_nothing_loses_its_turn_to_one_that_waits_the_whole_lease(head: Head, clock: Clock) -> None:
    head.leave("", "")
    turn = head.take("a1", "a")["turn"]
    head.begin("a1")
    clock.now += 5 * LEASE
    # It was the machine that slept: nobody has waited yet.
    assert not head.take("b1", "b")["turn"]
    assert not head.take("a1", "a", hold=turn)["lost"]
    for _ in range(30):
        clock.now += 1
        answer = head.take("b1", "b")
        if answer["turn"]:
            break
    assert answer["stale"] == ["a1"], "its run has to be ended first"
    assert head.take("a1", "a", hold=turn)["lost"]
    head.leave("a1", "b")
    head.leave("b1", "b")
    assert head.take("c1", "c")["stale"] == []


def test_a_run_that_is_no_longer_asked_for_holds_nobody_up(head: Head, clock: Clock) -> None:
    head.leave("", "")
    head.take("a1", "a")
    head.take("b1", "b")
    clock.now += LEASE + 1
    head.leave("a1", "a")
    assert head.take("c1", "c")["turn"]


def test_a_dead_managers_run_goes_on_and_is_waited_for(head: Head) -> None:
    over = head.begin("m1")
    answer = head.take("a1", "a", gone=1)
    assert (answer["turn"], answer["ahead"]["runs"]) == (0, ["m1"])
    over.set()
    assert head.take("a1", "a", gone=1)["turn"]


def test_a_manager_that_lives_keeps_its_turn_however_long_it_is_silent(head: Head, clock: Clock) -> None:
    head.leave("", "")
    head.take("a0", "a")
    head.leave("a0", "a")
    assert head.take("m1", "")["turn"]
    for _ in range(50):
        clock.now += 1
        assert not head.take("a1", "a")["turn"]
    # A later manager, with a higher token, has replaced it.
    head.agent.manager = 2
    assert head.take("a1", "a")["turn"]


def test_each_notebook_learns_once_what_the_others_have_changed(head: Head) -> None:
    head.leave("", "", wrote=["x"], fresh=[1])
    answer = head.take("", "a")
    assert (answer["wrote"], answer["fresh"]) == (["x"], [1])
    assert head.take("", "a", seen=answer["change"])["wrote"] == []
    head.leave("a1", "a", wrote=["y"])
    assert head.take("", "a", seen=answer["change"])["wrote"] == []
    assert head.take("", "")["wrote"] == ["y"]


def test_a_run_whose_turn_was_over_before_its_broadcast_arrived_is_refused(head: Head) -> None:
    for turn in (None, 5, 5, 7, None):
        head.turns.begin(turn)
    with pytest.raises(PoolError, match="run it again"):
        head.turns.begin(6)


def test_turns_rise_across_agents_of_a_node(head: Head, clock: Clock) -> None:
    head.leave("", "")
    turn = head.take("a1", "a")["turn"]
    later = Head()
    later.leave("", "")
    assert not later.take("a1", "a", hold=turn)["lost"]
    assert not later.take("b1", "b")["turn"]
    later.leave("a1", "a")
    assert later.take("b1", "b")["turn"] > turn


def test_a_turn_is_later_than_all_that_its_notebook_knows_whatever_the_clock_says(head: Head) -> None:
    head.leave("", "")
    known = head.take("a1", "a", latest=1 << 50)
    assert known["turn"] > 1 << 50
    assert known["latest"] == known["turn"]
