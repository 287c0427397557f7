"""The plugin `torch` on real ranks."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from sky_jupyter import plugins
from tests.plugins.world import RankError, World, needs

np = pytest.importorskip("numpy")
needs("torch")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World([plugins.torch(timeout=3)], 2) as world:
        yield world


def total(info: Any) -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor([info.rank + 1.0])
    dist.all_reduce(value)
    return float(value)


def listening(info: Any) -> list[str]:
    import psutil

    found = [c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return [c.laddr.ip.removeprefix("::ffff:") for c in found]


def gradients(info: Any, ranks: int) -> list[Any]:
    """The gradients of one step: of this rank's part under DDP, or of everything in one process."""
    import torch

    torch.manual_seed(info.rank)  # DDP gives all ranks the head's weights, whatever theirs were.
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
    random = np.random.default_rng(3)
    x = torch.from_numpy(random.normal(size=(32, 6)).astype("float32"))
    y = torch.from_numpy(random.normal(size=(32, 3)).astype("float32"))
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
        x, y = x[info.rank :: ranks], y[info.rank :: ranks]
    torch.nn.functional.mse_loss(model(x), y).backward()
    return [parameter.grad.numpy() for parameter in model.parameters()]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has such threads")
def test_threads_that_hold_the_connections_wait_their_turn_and_the_main_thread_does_not(world: World) -> None:
    def policies(info: Any) -> tuple[int, list[int]]:
        threads = [int(thread) for thread in os.listdir("/proc/self/task")]
        return os.sched_getscheduler(0), [os.sched_getscheduler(thread) for thread in threads]

    for main, every in world.run(policies):
        assert main == os.SCHED_OTHER
        assert os.SCHED_BATCH in every


def test_ddp_gives_the_gradients_of_one_process_on_all_ranks(world: World) -> None:
    first, second = world.run(gradients, 2)
    with World([plugins.torch()], 1) as single:
        (expected,) = single.run(gradients, 1)
    for mine, other, alone in zip(first, second, expected, strict=True):
        assert (mine == other).all()
        assert np.abs(mine - alone).max() < TOLERANCE
        assert np.abs(mine).max() > 1e-3


def is_launched(info: Any) -> bool:
    import torch.distributed as dist

    return dist.is_torchelastic_launched()


def test_the_environment_is_that_of_a_launcher(world: World) -> None:
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    seen = world.run(lambda info: [os.environ[name] for name in names])
    port = str(world.infos[0].ports["torch.programs"])
    assert seen == [["127.0.0.1", port, "2", str(rank), "0", "1", str(rank)] for rank in range(2)]
    names = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
    names += ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE")
    seen = world.run(lambda info: [os.environ[name] for name in names])
    assert seen == [[str(rank), "2", "default", str(rank), "2", "0", "0", "False"] for rank in range(2)]
    assert all(world.run(is_launched))


def test_threads_are_shared_out_among_the_ranks_of_a_machine(world: World) -> None:
    def threads(info: Any) -> int:
        import torch

        return torch.get_num_threads()

    assert world.run(threads) == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2


def test_nothing_listens_beyond_the_nodes_own_address(world: World) -> None:
    for addresses in world.run(listening):
        assert addresses, "gloo listens on every rank"
        assert set(addresses) == {"127.0.0.1"}


def test_setting_up_again_works_ten_times_also_after_a_peer_was_late(world: World) -> None:
    for round_ in range(10):
        if round_ == 5:
            with pytest.raises(RankError):
                world.run(total, ranks=[0])
        world.again()
        assert world.run(total) == [3.0, 3.0]


def test_ranks_end_in_order_and_leave_no_process_and_no_port() -> None:
    with World([plugins.torch()], 1, ranks_per_node=2) as world:
        pids = world.run(lambda info: os.getpid())
        assert world.run(lambda info: os.environ["LOCAL_RANK"]) == ["0", "1"]
    assert world.statuses == {0: 0, 1: 0}
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", world.infos[0].ports["torch"]))


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.slow
def test_a_survivor_of_a_killed_peer_gets_an_error_and_ends_well(killed: int) -> None:
    with World([plugins.torch()], 2) as world:
        world.kill(killed)
        left = 1 - killed
        with pytest.raises(RankError) as failed:
            world.run(total, ranks=[left])
        assert "RuntimeError" in failed.value.failed[left]
        assert world.leave(left) < 5
    assert world.statuses == {left: 0, killed: -9}


def check(info: Any) -> None:
    plugins.torch().check(info)  # type: ignore[misc]


def test_ranks_in_step_pass_the_check_and_those_out_of_step_do_not() -> None:
    def meet(info: Any) -> None:
        import torch
        import torch.distributed as dist

        dist.all_gather([torch.zeros(2, dtype=torch.int64) for _ in range(2)], torch.ones(2, dtype=torch.int64))

    with World([plugins.torch()], 2) as world:
        world.run(check)
        world.run(meet)
        world.run(check)
        # Rank 0 takes a step that rank 1 was kept from.
        world.start(0, meet)
        world.start(0, check)
        with pytest.raises(RankError, match="rank 1 is out of step"):
            world.run(check, ranks=[1])
