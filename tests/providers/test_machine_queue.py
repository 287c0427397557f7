"""Machines that wait in their provider's queue: what is said, what does not count, and what stays of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import LoginRefused, MachineError, ProvisionError, SkyError
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import Event, PhaseEvent
from sky_jupyter.pool.lifecycle import machine_queue, machine_replacement, status
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.remote import wait_until
from tests.providers.cloud import Cloud

GPU = "Insufficient nvidia.com/gpu"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(machine_queue, "_PAUSE", 0.02)
    monkeypatch.setattr(machine_queue, "_LONGEST_PAUSE", 0.02)
    return Cloud(str(tmp_path / "cloud.sqlite"), queues=True)


class Starting:
    """A pool's start in a thread, and what its view is told of the queue."""

    def __init__(self, cloud: Cloud, nodes: int, **options: float) -> None:
        told = Options(console=False, max_provision_attempts=2, provision_retry_delay=0, **options)  # type: ignore[arg-type]
        self.pool = Pool(PoolSpec(provider=cloud, nodes=nodes, options=told))
        self.lines: list[str] = []
        self.pressed = threading.Event()

    def begin(self, beside: ThreadPoolExecutor) -> Future[None]:
        return beside.submit(self.pool.start, self.hear, self.tick)

    def hear(self, event: Event) -> None:
        if isinstance(event, PhaseEvent) and event.phase == "queue" and not event.done:
            self.lines.append(event.text)

    def tick(self) -> None:
        if self.pressed.is_set():
            raise KeyboardInterrupt


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_a_start_says_at_each_change_which_machines_wait_and_why_and_does_not_count_that_time(
    cloud: Cloud, beside: ThreadPoolExecutor, registry: Registry
) -> None:
    cloud.hold(GPU, free=3)
    starting = Starting(cloud, 4, provision_timeout=0.5)
    began = time.monotonic()
    start = starting.begin(beside)
    wait_until(lambda: f"3 of 4 running, node 3: {GPU}" in starting.lines)
    queue = status.of(starting.pool)["phases"][-1]
    assert (queue["phase"], queue["state"], queue["lines"][-1]) == ("queue", "on", f"3 of 4 running, node 3: {GPU}")
    cloud.requeue(starting.pool.ids[3], "0/3 nodes are\n available")
    wait_until(lambda: "3 of 4 running, node 3: 0/3 nodes are available" in starting.lines)
    cloud.plan("describe", "error")
    wait_until(lambda: [line for line in starting.lines if "cloud did not answer, and is asked again" in line])
    # Longer than the machines may take that are not in a queue.
    wait_until(lambda: time.monotonic() - began > 1.0)
    assert not start.done()
    cloud.admit()
    # It goes on: machines without hosts let nobody in.
    with pytest.raises(LoginRefused):
        start.result(timeout=60)
    # Each line once.
    assert len(set(starting.lines)) == len(starting.lines)
    assert cloud.alive() == []


def test_reasons_that_several_machines_share_are_said_once(cloud: Cloud, beside: ThreadPoolExecutor) -> None:
    cloud.hold("suspended by its queue")
    starting = Starting(cloud, 3)
    start = starting.begin(beside)
    wait_until(lambda: "0 of 3 running, nodes 0-2: suspended by its queue" in starting.lines)
    cloud.requeue(starting.pool.ids[1], GPU)
    wait_until(
        lambda: f"0 of 3 running, nodes 0, 2: suspended by its queue; node 1: {GPU}" in starting.lines,
    )
    starting.pressed.set()
    with pytest.raises(KeyboardInterrupt):
        start.result(timeout=60)


def test_an_interrupt_of_a_start_that_waits_leaves_nothing(
    cloud: Cloud, beside: ThreadPoolExecutor, registry: Registry
) -> None:
    cloud.hold(GPU)
    starting = Starting(cloud, 2)
    start = starting.begin(beside)
    wait_until(lambda: starting.lines)
    starting.pressed.set()
    with pytest.raises(KeyboardInterrupt):
        start.result(timeout=60)
    assert cloud.alive() == []
    assert registry.pools() == []


def test_the_end_of_a_pool_that_waits_leaves_nothing(
    cloud: Cloud, beside: ThreadPoolExecutor, registry: Registry
) -> None:
    cloud.hold(GPU)
    starting = Starting(cloud, 2)
    start = starting.begin(beside)
    wait_until(lambda: starting.lines)
    starting.pool.down()
    with pytest.raises(SkyError):
        start.result(timeout=60)
    assert cloud.alive() == []
    assert registry.pools() == []


def test_machines_do_not_wait_longer_than_the_option_says(cloud: Cloud, registry: Registry) -> None:
    cloud.hold(GPU)
    with pytest.raises(ProvisionError, match=rf"queue_timeout=0\.2\)\): 0 of 2 running, nodes 0-1: {GPU}"):
        Starting(cloud, 2, queue_timeout=0.2).pool.start()
    assert cloud.alive() == []


def test_a_machine_that_was_taken_away_is_waited_for_once_as_long_as_the_option_says(
    cloud: Cloud, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []
    wait = machine_queue.wait

    def counted(*arguments: Any) -> list[str]:
        waits.append(arguments)
        return wait(*arguments)

    pool = Starting(cloud, 2, queue_timeout=0.2).pool.lifecycle
    pool.ids = pool.provisioning.acquire(pool.spec, 2, (), lambda line: None)
    monkeypatch.setattr(machine_queue, "wait", counted)
    monkeypatch.setattr(machine_replacement, "_PAUSE", 0.0)
    cloud.evict(pool.ids[1], GPU)

    async def lose() -> None:
        pool.replacement._returning.add(1)
        pool.replacement._lost.add(1)
        pool.replacement._begin(1)
        assert pool.replacement.over is not None
        await pool.replacement.over

    loop().call(lose(), timeout=60)
    assert len(waits) == 1
    (said,) = [line for line in pool.supervisor.news if "no machine could be prepared in place of node 1" in line]
    assert "queue_timeout=0.2" in said
    cloud.destroy(list(pool.ids))


def test_a_machine_that_ends_in_the_queue_is_made_again(cloud: Cloud, beside: ThreadPoolExecutor) -> None:
    cloud.hold(GPU)
    starting = Starting(cloud, 1)
    start = starting.begin(beside)
    wait_until(lambda: starting.lines)
    cloud.vanish(starting.pool.ids)
    wait_until(lambda: len(cloud.machines()) == 2)
    cloud.admit()
    with pytest.raises((LoginRefused, MachineError)):
        start.result(timeout=60)
    assert cloud.alive() == []


def test_the_deadline_of_machines_leaves_them_the_time_to_wait(cloud: Cloud) -> None:
    plain = Cloud(cloud.store)
    options = Options(console=False, queue_timeout=1000)
    specs = [PoolSpec(provider=one, nodes=1, ttl=60, options=options) for one in (plain, cloud)]
    deadlines = [Pool(spec).lifecycle.provisioning.deadline(spec) for spec in specs]
    assert deadlines[1] - deadlines[0] == pytest.approx(1000, abs=5)
