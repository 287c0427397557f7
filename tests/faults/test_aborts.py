"""Aborts in a row in a pool of four ranks (ten with ``--long``): names stay, and the next collective is right."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import sky_jupyter as sky
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.runs.result import CellError
from tests.pool.pools import local_pool, run
from tests.took import Took

pytestmark = pytest.mark.slow

JAX = """
import jax, numpy, sky_jupyter as sky
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
rank, n = sky.instance_info().rank, sky.instance_info().world_size
def reduce(): return float(multihost_utils.process_allgather(numpy.array([rank + 1.0])).sum())
mesh = jax.make_mesh((n,), ("ranks",))
spread = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("ranks")), numpy.ones(2) * rank)
local = jax.numpy.arange(3) + rank
def parts(): return numpy.asarray(spread.addressable_data(0)).tolist(), numpy.asarray(local).tolist()
"""
TORCH = """
import numpy, torch, torch.distributed as dist
rank, n = dist.get_rank(), dist.get_world_size()
def reduce():
    total = torch.tensor([rank + 1.0]); dist.all_reduce(total); return total.item()
spread = torch.ones(2) * rank
local = torch.arange(3) + rank
def parts(): return spread.tolist(), local.tolist()
"""
KINDS: dict[str, tuple[str, Callable[[], Plugin]]] = {
    "jax": (JAX, sky.plugins.jax),
    "torch": (TORCH, sky.plugins.torch),
}
RANKS = 4


@pytest.mark.parametrize("times", [RANKS, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_aborts_in_a_row_keep_names_arrays_and_local_shards(kind: str, times: int, took: Took) -> None:
    pytest.importorskip(kind, reason=f"needs the extra {kind}")
    code, plugin = KINDS[kind]
    everyone = range(RANKS)
    with local_pool(nodes=RANKS, plugins=(plugin(),)) as pool:
        run(pool, code + "plain = {'rank': rank}; array = numpy.arange(5) + rank")
        seconds = []
        for attempt in range(times):
            failing = attempt % RANKS
            began = time.monotonic()
            with pytest.raises(CellError) as caught:
                run(pool, f"if rank == {failing}: raise ValueError('boom {attempt}')\nreduce()", grace=0.1)
            assert str(caught.value.errors[failing]) == f"boom {attempt}"
            assert run(pool, "reduce()").values == [10.0] * RANKS
            seconds.append(time.monotonic() - began - 0.1)
        assert pool.take_restarted() == set()
        kept = run(pool, "plain, array.tolist(), parts()").values
        assert kept == [({"rank": r}, [r + i for i in range(5)], ([r, r], [r, r + 1, r + 2])) for r in everyone]
    took.row(
        f"{times} aborts in a row: a rank raises each time, and the others are inside a collective",
        see="its traceback, and that the others were freed",
        kept="every name, numpy values, the rank's own part of arrays",
        on=f"{kind}, {RANKS} ranks",
        fastest=min(seconds),
        slowest=max(seconds),
    )
