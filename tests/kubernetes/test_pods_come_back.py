"""Pods that wait for a place, restart in place, or are all taken away and given back: what a pool on them does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import sky_jupyter as sky
from sky_jupyter.pool.base.events import Event, PhaseEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.session.pools import renew_taken
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.kubernetes import containers
from tests.pool.pools import run

if TYPE_CHECKING:
    from tests.kubernetes.space import Space

pytest.importorskip("kubeflow")
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
NAMES = "globals().get('mine')"


class Starting:
    """A pool's start in a thread, and what its view is told of the queue."""

    def __init__(self, space: Space, nodes: int, resources: dict[str, str], **options: Any) -> None:
        kubeconfig = str(space.kubeconfig("ada"))
        provider = sky.Kubeflow(
            kubeconfig=kubeconfig,  # type: ignore[arg-type]
            image=containers.JAX,
            resources=resources,  # type: ignore[arg-type]
            offline=True,
            **options,
        )
        self.pool = Pool(PoolSpec(provider=provider, nodes=nodes, name="pods"))
        self.lines: list[str] = []
        self.pressed = threading.Event()

    def hear(self, event: Event) -> None:
        if isinstance(event, PhaseEvent) and event.phase == "queue":
            self.lines.append(event.text)

    def tick(self) -> None:
        if self.pressed.is_set():
            raise KeyboardInterrupt

    def run(self) -> None:
        self.pool.start(self.hear, self.tick)


@pytest.mark.slow
def test_an_interrupt_of_a_start_whose_pods_find_no_gpu_leaves_nothing(space: Space) -> None:
    starting = Starting(space, 2, {"cpu": "100m", "nvidia.com/gpu": "1"})
    with ThreadPoolExecutor(1) as beside:
        start = beside.submit(starting.run)
        space.wait("the queue is shown", lambda: [line for line in starting.lines if "nvidia.com/gpu" in line])
        assert any(line.startswith("0 of 2 running, nodes 0-1: ") for line in starting.lines)
        starting.pressed.set()
        with pytest.raises(KeyboardInterrupt):
            start.result()
    assert space.wait("all is gone", lambda: space.left() == [])


@pytest.mark.slow
def test_a_job_that_waits_in_its_queue_starts_when_it_is_admitted_and_its_pods_begin_anew(space: Space) -> None:
    space.cluster.run_kubectl(space.kubeconfig("admin"), "label", "namespace", space.name, "sky-tests/queue=on")
    starting = Starting(space, 2, {"cpu": "400m"}, queue="people")
    pool = starting.pool
    with ThreadPoolExecutor(1) as beside:
        start = beside.submit(starting.run)
        space.wait("the queue is shown", lambda: [line for line in starting.lines if "0 of 2 running" in line])
        space.admit_all()
        start.result()
        try:
            run(pool, "mine = 'kept'")
            # As the kernel does where memory is up: the same pod, with none of its processes.
            space.kill_container(space.pods()[1]["metadata"]["name"])
            space.wait("its node is lost", lambda: pool.control.lost)
            space.wait("it is replaced", lambda: pool.supervisor.repairs.replacing() or not pool.control.lost)
            pool.settle()
            assert run(pool, NAMES).values == ["kept", None]
            assert len(space.all("trainjobs")) == 1
            # Preempted: the pods are gone, the job stays.
            job = space.all("trainjobs")[0]["metadata"]["name"]
            space.suspend(job)
            # It waits for them by itself, and so does a cell that comes.
            space.wait("the queue is shown", lambda: pool.phases.line_of("queue"))
            assert "its machine was taken away" in pool.lifecycle.failure.taken_away()
            again = beside.submit(renew_taken, pool)
            space.suspend(job, False)
            again.result()
            assert run(pool, NAMES).values == [None, None]
            assert [one["metadata"]["name"] for one in space.all("trainjobs")] == [job]
        finally:
            pool.down()
    assert space.wait("all is gone", lambda: space.left() == [])
