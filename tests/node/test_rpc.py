"""The table of the agents' calls: each has its handler, and nothing else is asked."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import NodeLost
from sky_jupyter.node.agent.agent import Agent
from sky_jupyter.node.dask.shared_state import SharedStateExtension
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.protocol.host_config import HostConfig
from sky_jupyter.node.system.gpus import Devices
from sky_jupyter.pool.base.event_loop import NoAnswer
from sky_jupyter.pool.control.control_client import Control

PACKAGE = Path(rpc.__file__).parent.parent.parent
EVERY_CALL = [*rpc.AGENT_CALLS, *rpc.SCHEDULER_CALLS]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    config = HostConfig("p", [0], 1, 2, ["127.0.0.1"], [], str(tmp_path), str(tmp_path))
    (tmp_path / "n0").mkdir()
    return Agent(tmp_path, config, 0, Devices())


def handler_of(call: rpc.AgentCall, agent: Agent) -> Callable[..., Any]:
    return getattr(SharedStateExtension, call.op) if call in rpc.SCHEDULER_CALLS else agent.handler(call)


def modules() -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def table_name(node: ast.expr) -> str | None:
    """The call that ``rpc.NAME`` names."""
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rpc"
    return node.attr if named and node.attr.isupper() else None


def test_each_call_has_one_row_that_is_named_like_it() -> None:
    assert [name for name, one in vars(rpc).items() if isinstance(one, rpc.AgentCall)] == [
        call.name.upper() for call in EVERY_CALL
    ]
    assert max(Counter(call.name for call in EVERY_CALL).values()) == 1


@pytest.mark.parametrize("call", EVERY_CALL, ids=lambda call: call.name)
def test_each_call_has_a_handler_that_takes_its_arguments(call: rpc.AgentCall, agent: Agent) -> None:
    handler = handler_of(call, agent)
    assert inspect.iscoroutinefunction(handler)
    parameters = [one for one in inspect.signature(handler).parameters.values() if one.name != "self"]
    assert tuple(one.name for one in parameters if one.default is one.empty) == call.required
    assert tuple(one.name for one in parameters if one.default is not one.empty) == call.optional


def test_no_handler_answers_what_is_not_in_the_table(agent: Agent) -> None:
    parts = [agent, *(one for one in vars(agent).values() if type(one).__module__.startswith("sky_jupyter."))]
    found = {name for one in [*parts, SharedStateExtension] for name in dir(one) if name.startswith("sky_")}
    assert found == {call.op for call in EVERY_CALL}


def test_each_call_is_asked_by_somebody_and_nothing_else_is() -> None:
    """`AgentCall` is a type: mypy lets nobody ask for what is no row of the table."""
    asked = set()
    for path in set(PACKAGE.rglob("*.py")) - {Path(rpc.__file__)}:
        text = path.read_text(encoding="utf-8")
        asked |= {call.name for call in EVERY_CALL if f"rpc.{call.name.upper()}" in text}
        asked |= {call.joint.name for call in EVERY_CALL if call.joint is not None and call.name in asked}
        asked |= {rpc.READ_PIECES.name} if f"._rpc.{rpc.READ_PIECES.op}(" in text else set()
    assert asked == {call.name for call in EVERY_CALL}


def test_calls_are_asked_with_arguments_that_they_take() -> None:
    """Where a call is written out; what is put together elsewhere is checked as it is asked."""
    looked = 0
    for tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or any(one.arg is None for one in node.keywords):
                continue
            for name in filter(None, map(table_name, node.args)):
                call, given = getattr(rpc, name), {one.arg for one in node.keywords}
                if call.part == "streams":
                    given.add("run")  # `pool.execution.stream_client` adds it
                call.check(str(one) for one in given)
                looked += 1
    assert looked > 40, "the calls are written in another way now"


@pytest.mark.parametrize(("arguments", "said"), [({}, "lacks"), ({"size": 1, "most": 2}, "takes no")])
def test_arguments_that_a_call_does_not_take_are_refused_before_it_is_sent(
    arguments: dict[str, int], said: str
) -> None:
    with pytest.raises(TypeError, match=f"'make_room' {said}"):
        asyncio.run(control().ask(rpc.MAKE_ROOM, **arguments))


def test_a_call_ends_with_its_timeout_where_no_agent_answers() -> None:
    with pytest.raises(NoAnswer, match=r"has not answered in 0\.01 s"):
        asyncio.run(control().ask(dataclasses.replace(rpc.PING, timeout=0.01)))


def test_a_client_that_is_closed_while_agents_are_awaited_tells_what_ended() -> None:
    class Closing(Control):
        async def _dial_unless(self, broken: Callable[[], str], timeout: float) -> None:
            await self.close()

    closing = Closing(object(), direct=True, generation=1)  # type: ignore[arg-type]
    with pytest.raises(NodeLost, match="the host ended"):
        asyncio.run(closing.connect("tls://127.0.0.1:1", Path(), 2, 5.0, lambda: "the host ended"))


def test_a_look_that_takes_long_refuses_no_agents_that_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine one look may take longer than agents have to come."""
    late = control()

    async def learn(_: Control) -> None:
        late.addresses.update({0: "tls://127.0.0.1:1", 1: "tls://127.0.0.1:2"})

    async def ask(*_: object) -> dict[int, str]:
        return {0: "a", 1: "b"}

    async def nothing(*_: object) -> None:
        pass

    for name, does in {"_dial_unless": nothing, "_learn": learn, "ask": ask, "_beat": nothing}.items():
        monkeypatch.setattr(Control, name, does)
    asyncio.run(late.connect("tls://127.0.0.1:1", Path(), 2, 0.0, str))
    assert late.up.is_set()


def control() -> Control:
    """One that is not connected: nobody is told of anything."""
    return Control(object(), direct=True, generation=1)  # type: ignore[arg-type]
