"""Machines that are replaced while others of the pool go, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from sky_jupyter.errors import NodeLost
from sky_jupyter.node.protocol.rpc import AgentCall
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.lifecycle import machine_replacement
from sky_jupyter.pool.lifecycle.machine_replacement import MachineReplacement


class Hosts(MachineReplacement):
    """A replacement whose machines are names, and whose hosts are started at once."""

    started: list[MagicMock]

    async def _obtain(self, nodes: Any, tell: Any) -> None:
        self._ids.update({node: f"new-{node}" for node in nodes})
        self._machines.update({node: ((f"new-{node}", ""), f"machine {node}") for node in nodes})

    def _prepare(self, nodes: Any) -> Any:
        return SimpleNamespace(phases=[], sites=[])

    def _launch(self, nodes: Any, preparation: Any, take: Any) -> None:
        for node in nodes:
            self.started.append(MagicMock(nodes=[node], here=False))
            take(self.started[-1])


def test_a_new_host_is_ended_if_another_node_goes_before_the_rest_know_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_replacement, "_PAUSE", 0.0)
    pool = MagicMock(ids=["old-0", "old-1", "old-2"], hosts=[MagicMock(nodes=[node], here=False) for node in range(3)])
    pool.control = control = SimpleNamespace(lost={1}, there={0, 2}, closing=False, direct=False)
    asked: list[list[int]] = []

    async def unregister(node: int) -> None:
        pass

    async def ask(call: AgentCall, nodes: list[int], **arguments: Any) -> None:
        asked.append(nodes)
        if len(asked) == 1:
            raise NodeLost("node 2 is lost: its agent does not answer")
        control.lost.clear()

    control.unregister, control.ask = unregister, ask

    async def lose() -> Hosts:
        replacement = Hosts(pool)
        replacement.started = []
        replacement._lost.add(1)
        replacement._begin(1)
        assert replacement._task is not None
        await replacement._task
        return replacement

    replacement = loop().call(lose(), timeout=60)
    first, second = replacement.started
    assert asked == [[0, 2], [0, 2]]
    assert first.end.called
    assert not second.end.called
    assert [host is second for host in pool.hosts] == [False, True, False]
    assert pool.ids == ["old-0", "new-1", "old-2"]
