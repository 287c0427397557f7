"""The plugin `jax` on real ranks."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from sky_jupyter import plugins
from tests.plugins.world import RankError, World, needs

needs("jax")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # A proxy for the world outside, at a port where nobody is: ranks must not use it among themselves.
    with World([plugins.jax()], 2, env={"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}) as world:
        yield world


def psum(info: Any) -> float:
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(float(info.rank + 1)).sum())


def listening(info: Any) -> list[str]:
    import psutil

    found = [c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return [c.laddr.ip.removeprefix("::ffff:") for c in found]


def test_every_rank_sees_the_devices_of_all(world: World) -> None:
    def devices(info: Any) -> tuple[list[tuple[int, int]], int, int]:
        import jax

        return [(d.process_index, d.id) for d in jax.devices()], jax.process_index(), jax.local_device_count()

    first, second = world.run(devices)
    assert first == ([(0, 0), (1, 2048)], 0, 1)
    assert second == (first[0], 1, 1)


def test_collectives_reach_all_ranks(world: World) -> None:
    def over_mesh(info: Any) -> float:
        import jax
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        mine = np.full((2,), info.rank + 1.0)
        whole = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("i")), mine)
        return float(jax.jit(jax.numpy.sum)(whole))

    assert world.run(over_mesh) == [6.0, 6.0]
    assert world.run(psum) == [3.0, 3.0]


def test_the_environment_names_the_cluster(world: World) -> None:
    def cluster(info: Any) -> dict[str, str]:
        found = {key: value for key, value in os.environ.items() if key.startswith("JAX_")}
        return {key: value for key, value in found.items() if "CACHE" not in key}

    seen = world.run(cluster)
    port = world.infos[0].ports["jax.programs"]
    for rank, variables in enumerate(seen):
        assert variables == {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(rank),
            "JAX_LOCAL_DEVICE_COUNT": "1",
        }


def test_nothing_listens_beyond_the_nodes_own_address(world: World) -> None:
    for addresses in world.run(listening):
        assert addresses, "gloo listens on every rank"
        assert set(addresses) == {"127.0.0.1"}


def test_collectives_listen_on_each_nodes_own_address() -> None:
    with World([plugins.jax()], 2, peers=("127.0.0.1", "127.0.0.2")) as world:
        assert [set(found) for found in world.run(listening)] == [{"127.0.0.1"}, {"127.0.0.2"}]
        assert world.run(psum) == [3.0, 3.0]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has such threads")
def test_threads_that_hold_the_connections_wait_their_turn_and_no_others_do(world: World) -> None:
    def policies(info: Any) -> tuple[int, list[int]]:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("a collective")
        threads = [int(thread) for thread in os.listdir("/proc/self/task")]
        return os.sched_getscheduler(0), [os.sched_getscheduler(thread) for thread in threads]

    for main, every in world.run(policies):
        assert main == os.SCHED_OTHER
        assert 0 < every.count(os.SCHED_BATCH) < len(every) - 1


def test_setting_up_again_works_ten_times_and_leaves_no_port_open(world: World) -> None:
    before = world.run(listening)
    for _ in range(10):
        world.again()
        assert world.run(psum) == [3.0, 3.0]
    assert [len(found) for found in world.run(listening)] == [len(found) for found in before]


def test_native_chatter_is_known_as_noise(world: World) -> None:
    for rank in range(2):
        lines = world.printed(rank).splitlines()
        assert any("[Gloo]" in line for line in lines)
        assert [line for line in lines if not any(re.fullmatch(p, line) for p in plugins.jax().noise)] == []


def test_preloading_starts_no_backend_and_no_thread() -> None:
    import subprocess

    code = (
        "import importlib, os, threading\n"
        "import numpy; before = len(os.listdir('/proc/self/task'))\n"
        f"for name in {plugins.jax().preload!r}: importlib.import_module(name)\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized(), threading.active_count(),"
        " len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.stdout.split() == ["False", "1", "0"], done.stderr


def test_two_ranks_a_node_with_two_devices_each_make_one_cluster() -> None:
    with World([plugins.jax(devices=2)], 1, ranks_per_node=2) as world:

        def counts(info: Any) -> tuple[int, int, str]:
            import jax

            return jax.device_count(), jax.local_device_count(), os.environ["JAX_LOCAL_DEVICE_COUNT"]

        assert world.run(counts) == [(4, 2, "2")] * 2


def test_a_rank_without_peers_may_still_configure_jax() -> None:
    def configure(info: Any) -> tuple[str, str, int]:
        import jax

        before = os.environ["JAX_LOCAL_DEVICE_COUNT"]
        jax.config.update("jax_num_cpu_devices", 3)
        return os.environ["JAX_NUM_PROCESSES"], before, jax.device_count()

    with World([plugins.jax()], 1) as world:
        assert world.run(configure) == [("1", "1", 3)]


def test_ranks_end_in_order_and_leave_no_process_and_no_port() -> None:
    with World([plugins.jax()], 2) as world:
        pids = world.run(lambda info: os.getpid())
    assert world.statuses == {0: 0, 1: 0}
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", world.infos[0].ports["jax"]))


def test_a_survivor_of_a_killed_peer_gets_an_error_and_ends_well() -> None:
    with World([plugins.jax()], 2) as world:
        world.kill(1)
        with pytest.raises(RankError) as failed:
            world.run(psum, ranks=[0])
        assert "Gloo" in failed.value.failed[0]
        assert "the rank is gone" not in failed.value.failed[0]
        assert world.run(lambda info: info.rank, ranks=[0]) == [0]
        assert world.leave(0) < 5
    assert world.statuses == {0: 0, 1: -9}


def check(info: Any) -> None:
    plugins.jax().check(info)  # type: ignore[misc]


def test_ranks_in_step_pass_the_check_and_those_out_of_step_do_not() -> None:
    def meet(info: Any) -> None:
        from jax.experimental import multihost_utils

        multihost_utils.process_allgather(float(info.rank))

    with World([plugins.jax()], 2) as world:
        world.run(check)
        world.run(meet)
        world.run(check)
        # Rank 0 takes a step that rank 1 was kept from.
        world.start(0, meet)
        world.start(0, check)
        with pytest.raises(RankError, match="rank 1 is out of step"):
            world.run(check, ranks=[1])
