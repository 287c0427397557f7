"""Machines that are replaced while others of the pool go, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from sky_jupyter.errors import NodeLost, ProvisionError
from sky_jupyter.node.protocol.rpc import AgentCall
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.lifecycle import machine_replacement
from sky_jupyter.pool.lifecycle.machine_replacement import MachineReplacement
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers.cloud import Cloud


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


def test_a_node_that_is_lost_while_machines_of_another_are_discarded_is_replaced_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_replacement, "_PAUSE", 0.0)
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    options = Options(console=False, max_provision_attempts=1, provision_retry_delay=0)
    pool = Pool(PoolSpec(provider=cloud, nodes=3, options=options)).lifecycle
    pool.ids = pool.provisioning.acquire(pool.spec, 3, (), lambda line: None)
    replacement, destroy = pool.replacement, Cloud.destroy
    tried: list[tuple[int, ...]] = []
    discarded: list[str] = []

    def refuse(nodes: Any, tell: Any) -> None:
        tried.append(tuple(nodes))
        raise ProvisionError("nobody is let in")

    async def lose(node: int) -> None:
        replacement._lost.add(node)
        replacement._begin(node)

    def lose_another(self: Cloud, ids: list[str]) -> None:
        if not discarded:
            loop().call(lose(2), timeout=60)
        discarded.extend(ids)
        destroy(self, ids)

    async def settle() -> None:
        while (work := replacement.over) is not None:
            await asyncio.wait([work])

    monkeypatch.setattr(replacement, "_connect", refuse)
    monkeypatch.setattr(Cloud, "destroy", lose_another)
    loop().call(lose(1), timeout=60)
    loop().call(settle(), timeout=60)
    assert list(dict.fromkeys(tried)) == [(1,), (2,)]
    given_up = [line for line in pool.supervisor.news if "no machine could be made in place of" in line]
    assert [line.split(" (")[0].rpartition("of ")[2] for line in given_up] == ["node 1", "node 2"]
    # Nothing that was made is left.
    assert len(discarded) == 2
    assert set(cloud.alive()) == set(pool.ids)
    destroy(cloud, list(pool.ids))
