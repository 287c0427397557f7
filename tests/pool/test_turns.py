"""Turns as a notebook's supervisor takes them: what is left of them when answers get lost or come late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sky_jupyter.errors import NodeLost
from sky_jupyter.node.agent.run_turns import RunTurns
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.protocol.rpc import AgentCall
from sky_jupyter.pool.base.events import ignore
from sky_jupyter.pool.execution import turns
from sky_jupyter.pool.execution.supervisor import Supervisor
from sky_jupyter.pool.runs.run import Run
from sky_jupyter.providers.local import Local
from sky_jupyter.spec.pool_spec import PoolSpec


class Head:
    """The head's agent, which gives the turns, and its clients; every run is over as soon as a test lets it."""

    def __init__(self) -> None:
        self.notebooks: list[Supervisor] = []
        agent = SimpleNamespace(manager=1, node=0, runs={}, send=self.send)
        self.turns = RunTurns(agent)  # type: ignore[arg-type]
        # The calls that came, calls that are not answered, and runs that go on.
        self.calls: list[str] = []
        self.broken: set[str] = set()
        self.going_on: dict[str, asyncio.Event] = {}
        # What a supervisor knows of its client.
        self.there, self.addresses, self.shape, self.closing = {0}, {0: ""}, 0, False
        self.silent: set[int] = set()
        self.off: set[int] = set()
        self.lost: set[int] = set()

    def send(self, batch: dict[str, Any]) -> None:
        for one in self.notebooks:
            one.on_batch(batch)

    def notebook(self, guest: str = "") -> Supervisor:
        async def renew(ranks: Sequence[int]) -> None:
            pass

        async def again(ranks: Sequence[int]) -> bool:
            return True

        one = Supervisor(PoolSpec(provider=Local(), nodes=1), renew, again, print, print)
        one.turns.guest = guest
        one.turns.reset()
        one.control = self  # type: ignore[assignment]
        self.notebooks.append(one)
        return one

    async def ask(self, call: AgentCall, nodes: Iterable[int] | None = None, **arguments: Any) -> dict[int, Any]:
        self.calls.append(call.name)
        if call.name in self.broken or (call is rpc.LIST_RUNS and nodes is None):
            raise NodeLost("a node is lost")
        if call is rpc.TAKE_TURN:
            return {0: await self.turns.sky_take_turn(**arguments)}
        if call is rpc.LEAVE_TURN:
            await self.turns.sky_leave_turn(**arguments)
        if call is rpc.START_RUN:
            await self.going_on.setdefault(arguments["run"], asyncio.Event()).wait()
            raise NodeLost("it has begun")
        return {0: {}}

    async def begun(self, id: str) -> None:
        await until(lambda: id in self.going_on)

    def end(self, id: str) -> None:
        self.going_on.setdefault(id, asyncio.Event()).set()

    async def asked(self) -> None:
        """Wait until turns have been asked for twice."""
        before = self.calls.count("take_turn")
        await until(lambda: self.calls.count("take_turn") > before + 1)


def execute(one: Supervisor, id: str, wrote: str = "") -> asyncio.Task[str]:
    """Begin a run, which assigns a name; return how it ends."""

    async def executed() -> str:
        run = Run(id, {0: 0}, ignore)
        run.writes = {wrote: {0}} if wrote else {}
        await one.execute(run, {}, 0.0, None)
        return str(run.outcomes[0].end.get("text"))

    return asyncio.ensure_future(executed())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for tells nobody
        await asyncio.sleep(0.01)


def play(scene: Callable[[Head], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        head = Head()
        try:
            await asyncio.wait_for(scene(head), 60)
        finally:
            for one in head.notebooks:
                one.close()

    asyncio.run(played())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RENEWAL", "_FIRST_WAIT", "_WAIT"):
        monkeypatch.setattr(turns, name, 0.02)


async def share(head: Head, manager: Supervisor, guest: Supervisor) -> None:
    """Let both run something."""
    head.end("first")
    assert await execute(guest, "first") == "it has begun"
    assert manager.turns.shared


def test_each_listener_is_told_once_also_one_that_cannot_be_hashed() -> None:
    class Heard(list[str]):
        def __call__(self, event: Any) -> None:
            self.append(event.text)

        def take(self, event: Any) -> None:
            self(event)

    async def scene(head: Head) -> None:
        manager, several, one = head.notebook(), Heard(), Heard()
        for id, listener in (("m1", several.take), ("m2", several.take), ("m3", one)):
            manager.runs[id] = Run(id, {0: 0}, listener)
        manager.tell("node 0 does not answer")
        assert several == one == ["node 0 does not answer"]

    play(scene)


def test_a_manager_without_guests_asks_for_no_turn() -> None:
    async def scene(head: Head) -> None:
        manager = head.notebook()
        head.end("m1")
        assert await execute(manager, "m1") == "it has begun"
        assert head.calls == ["start_run"]

    play(scene)


def test_a_turn_whose_end_got_lost_is_ended_when_the_agent_answers_again() -> None:
    async def scene(head: Head) -> None:
        manager, guest = head.notebook(), head.notebook("a")
        await share(head, manager, guest)
        head.broken.add("leave_turn")
        for id in ("m1", "m2", "a1"):
            head.end(id)
        assert await execute(manager, "m1", wrote="x") == "it has begun"
        second, theirs = execute(manager, "m2"), execute(guest, "a1")
        await head.asked()
        assert not second.done()
        assert not theirs.done()
        head.broken.clear()
        assert await theirs == await second == "it has begun"
        assert guest.turns.take_wrote() == {"x"}

    play(scene)


def test_a_repair_that_is_cancelled_while_it_waits_holds_nobody_up() -> None:
    async def scene(head: Head) -> None:
        manager, guest, another = head.notebook(), head.notebook("a"), head.notebook("b")
        await share(head, manager, guest)
        running = execute(guest, "a1")
        await head.begun("a1")
        manager.repairs.on_kernel_end(0, "it ended")
        await head.asked()
        manager.repairs.give_up()
        for id in ("a1", "b1"):
            head.end(id)
        await running
        assert await execute(another, "b1") == "it has begun"

    play(scene)


def test_a_repair_learns_of_new_kernels_that_others_have_made_while_it_waited() -> None:
    async def scene(head: Head) -> None:
        manager, guest = head.notebook(), head.notebook("a")
        await share(head, manager, guest)
        running = execute(guest, "a1")
        await head.begun("a1")
        manager.repairs.on_kernel_end(0, "it ended")
        await head.asked()
        await head.turns.sky_leave_turn("another", "b", {"fresh": [0]})
        head.end("a1")
        await running
        await until(lambda: manager.restarted == {0})

    play(scene)


def test_a_request_that_fails_after_it_was_queued_holds_nobody_up() -> None:
    async def scene(head: Head) -> None:
        manager, guest, another = head.notebook(), head.notebook("a"), head.notebook("b")
        await share(head, manager, guest)
        running = execute(guest, "a1")
        await head.begun("a1")
        waiting = execute(manager, "m1")
        await head.asked()
        head.broken.add("take_turn")
        assert "no turn" in await waiting
        head.broken.clear()
        for id in ("a1", "b1"):
            head.end(id)
        await running
        assert await execute(another, "b1") == "it has begun"

    play(scene)


def test_a_manager_that_was_alone_again_before_it_could_yield_asks_for_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    # Guests count as gone at once.
    monkeypatch.setattr(turns, "_LEASE", 0.0)

    async def scene(head: Head) -> None:
        manager, guest = head.notebook(), head.notebook("a")
        first, second = execute(manager, "m1"), execute(manager, "m2")
        await head.begun("m1")
        await head.turns.sky_take_turn("a1", "a", "another notebook", 0.0)
        await head.turns.sky_leave_turn("a1", "a")
        for id in ("m1", "m2"):
            head.end(id)
        await first
        await second
        monkeypatch.setattr(turns, "_LEASE", 10.0)
        # The turn is given up now, as the guest has asked.
        running = execute(guest, "a2")
        await head.begun("a2")
        waiting = execute(manager, "m3")
        await head.asked()
        assert "m3" not in head.going_on
        for id in ("a2", "m3"):
            head.end(id)
        assert await running == await waiting == "it has begun"

    play(scene)


def test_a_dead_guests_run_that_cannot_be_ended_fails_the_next_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEASE", 0.1)

    async def scene(head: Head) -> None:
        manager, guest = head.notebook(), head.notebook("a")
        await share(head, manager, guest)
        await head.turns.sky_take_turn("a1", "a", "another notebook", 0.1)
        for id in ("m1", "m2", "a2"):
            head.end(id)
        head.broken.add("list_runs")
        assert "could not be stopped" in await execute(manager, "m1")
        head.broken.clear()
        assert await execute(manager, "m2") == "it has begun"
        assert await execute(guest, "a2") == "it has begun"

    play(scene)


def test_a_guest_that_has_lost_its_turn_aborts_nobodys_collectives() -> None:
    async def scene(head: Head) -> None:
        manager, guest = head.notebook(), head.notebook("a")
        await share(head, manager, guest)
        running = execute(guest, "a1")
        await head.begun("a1")
        run = Run("a1", {0: 0}, ignore)
        await guest.termination.abort(run)
        assert head.calls.count("abort_collectives") == 1
        await manager.turns.take("restart", print, lambda: False, force=True)
        await guest.termination.abort(run)
        assert head.calls.count("abort_collectives") == 1
        head.end("a1")
        await running

    play(scene)


def test_new_kernels_that_are_heard_of_while_a_run_waits_fail_it_but_not_a_guests_first_run() -> None:
    async def scene(head: Head) -> None:
        manager, guest = head.notebook(), head.notebook("a")
        manager.turns.renewed([0])
        await share(head, manager, guest)
        assert guest.restarted == {0}
        guest.restarted.clear()
        running = execute(manager, "m1")
        await head.begun("m1")
        waiting = execute(guest, "a1")
        await head.asked()
        await head.turns.sky_leave_turn("another", "b", {"fresh": [0]})
        await head.asked()
        # Another cell of the guest looks, too.
        await guest.look_at_others()
        assert guest.restarted == {0}
        for id in ("m1", "a1"):
            head.end(id)
        await running
        assert "another notebook replaced the kernels of rank 0" in await waiting

    play(scene)
