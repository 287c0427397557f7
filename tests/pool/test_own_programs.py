"""Programs that start or end the framework themselves: what is written for torchrun and for JAX across processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from tests.plugins.world import needs
from tests.pool.pools import Image, begin, local_pool, run
from tests.ports import free_port
from tests.tiers import daily

needs("jax")
needs("torch")

TORCH = """
import os, torch, torch.distributed as dist
def reduce():
    total = torch.ones(1); dist.all_reduce(total); return total.item()
"""
JAX = """
import os, jax, numpy
from jax.experimental import multihost_utils
def gather(): return multihost_utils.process_allgather(numpy.array([jax.process_index()])).ravel().tolist()
"""
# Written to a file that both ranks run, by %run and as a process.
PROGRAMS = {
    "torch": """
import torch, torch.distributed as dist
def main():
    dist.init_process_group("gloo")
    total = torch.ones(1); dist.all_reduce(total); print("sum", total.item())
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
""",
    "jax": """
import os, jax, numpy
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"]))
from jax.experimental import multihost_utils
print("sum", float(multihost_utils.process_allgather(numpy.ones(1)).sum()))
jax.distributed.shutdown()
""",
}


@pytest.fixture(scope="module")
def torch_pool() -> Iterator[Pool]:
    with local_pool(plugins=parse_plugins("torch")) as pool:
        run(pool, TORCH + "kept = 1")
        yield pool


@pytest.fixture(scope="module")
def jax_pool() -> Iterator[Pool]:
    with local_pool(plugins=parse_plugins("jax")) as pool:
        run(pool, JAX + "kept = 1")
        yield pool


def noticed(pool: Pool, code: str) -> list[str]:
    """What a cell that ends well has people told beside its output."""
    said: list[str] = []
    run(pool, code, listener=lambda event: said.append(event.text) if isinstance(event, NoticeEvent) else None)
    pool.settle()
    return said


def refused(pool: Pool, code: str) -> str:
    """Why rank 0 does not do something."""
    with pytest.raises(CellError) as caught:
        run(pool, code)
    return str(caught.value.errors[0])


@pytest.mark.parametrize("who", ["True", "dist.get_rank() == 0"])
def test_a_process_group_that_a_cell_ends_is_set_up_again_and_that_is_said(torch_pool: Pool, who: str) -> None:
    wraps = "from torch.nn.parallel import DistributedDataParallel as DDP\nshared = DDP(torch.nn.Linear(1, 1))\n"
    (text,) = noticed(torch_pool, f"{wraps}if {who}: dist.destroy_process_group()")
    assert "ended torch's process group: it is set up again, and every name is kept; recreate " in text
    assert run(torch_pool, "(reduce(), kept)").values == [(2.0, 1)] * 2
    assert torch_pool.take_restarted() == set()


def test_a_call_that_ends_the_process_group_leaves_a_pool_that_works(torch_pool: Pool) -> None:
    begun = begin(torch_pool, "dist.destroy_process_group(); 1 / 0")
    with pytest.raises(CellError):
        torch_pool.attend(begun)
    assert run(torch_pool, "(reduce(), kept)").values == [(2.0, 1)] * 2


def test_a_process_group_that_is_there_may_be_asked_for_again(torch_pool: Pool) -> None:
    code = """
dist.init_process_group(backend="gloo")
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
both = reduce()
dist.destroy_process_group(); dist.init_process_group("gloo"); dist.barrier()
both + reduce(), dist.is_initialized()
"""
    assert run(torch_pool, code).values == [(4.0, True)] * 2


@pytest.mark.parametrize("kind", daily(["torch"], ["torch", "jax"]))
def test_an_unchanged_program_runs_in_a_rank_and_as_a_process_of_its_own(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pool = request.getfixturevalue(f"{kind}_pool")
    program = tmp_path / "train.py"
    program.write_text(PROGRAMS[kind])
    code = f"""
import subprocess, sys
command = [sys.executable, {str(program)!r}]
alone = subprocess.run(command, capture_output=True, text=True)
get_ipython().run_line_magic("run", {str(program)!r})
alone.returncode, alone.stdout.count("sum 2.0"), alone.stderr[-500:] * alone.returncode
"""
    result = run(pool, code)
    assert result.values == [(0, 1, "")] * 2
    assert [result.stdout(rank) for rank in (0, 1)] == ["sum 2.0\n"] * 2
    assert run(pool, "kept").values == [1, 1]


def test_a_jax_cluster_that_a_cell_ends_is_there_in_the_next_with_its_arrays(jax_pool: Pool) -> None:
    code = """
from jax.sharding import NamedSharding, PartitionSpec as P
jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.device_put(numpy.arange(4.0), NamedSharding(mesh, P("x")))
jax.distributed.shutdown()
jax.distributed.is_initialized()
"""
    assert run(jax_pool, code).values == [False, False]
    assert run(jax_pool, "jax.distributed.initialize(); (gather(), float(split.sum()))").values == [([0, 1], 6.0)] * 2


def test_a_jax_backend_that_a_cell_takes_away_is_set_up_again_and_that_is_said(jax_pool: Pool) -> None:
    (text,) = noticed(jax_pool, "import jax.extend.backend; jax.extend.backend.clear_backends()")
    assert "ended JAX's cluster: it is set up again, and every name is kept" in text
    assert run(jax_pool, "(gather(), kept)").values == [([0, 1], 1)] * 2


def test_what_cannot_be_asked_for_names_the_plugin_and_the_way_out(torch_pool: Pool, jax_pool: Pool) -> None:
    said = refused(torch_pool, "dist.init_process_group('gloo', rank=0, world_size=1)")
    assert "the plugin torch" in said
    assert "--plugins 'torch(init=False)'" in said
    said = refused(jax_pool, "jax.distributed.initialize('localhost:1234', 1, 0)")
    assert "the plugin jax" in said
    assert "--plugins 'jax(init=False)'" in said
    said = refused(jax_pool, "jax.config.update('jax_num_cpu_devices', 8)")
    assert "write --plugins 'jax(devices=8)'" in said
    code = "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'"
    assert "has no effect" in run(jax_pool, code).stderr(0)
    assert run(jax_pool, "jax.config.update('jax_num_cpu_devices', 1); del os.environ['XLA_FLAGS']").stderr(0) == ""


@pytest.mark.slow
def test_the_guides_program_joins_the_ranks_by_the_launchers_variables_in_a_pool_without_plugins() -> None:
    # As Trainer has them in each pod of another job: this pool is what counts.
    variables = {"JAX_COORDINATOR_ADDRESS": f"job-node-0-0.job:{free_port()}"}
    variables |= {"JAX_NUM_PROCESSES": "9", "JAX_PROCESS_ID": "5"}
    guide = PROGRAMS["jax"].rpartition("\n")[0].replace("jax.distributed.shutdown()", "")
    with local_pool(image=Image(env=variables)) as pool:
        result = run(pool, f"{guide}\n(jax.process_count(), jax.process_index())")
        assert result.values == [(2, 0), (2, 1)]
        # Gloo prints past Python, so that its lines may come later.
        assert all("sum 2.0" in result.stdout(rank).splitlines() for rank in (0, 1))
        with pytest.raises(CellError) as caught:
            run(pool, guide)
        shown = "\n".join(caught.value._render_traceback_())
        assert "JAX's cluster is set up already in this process" in shown
        assert "%sky restart" in shown


def test_the_guides_program_finds_the_plugins_cluster_and_another_world_is_refused_in_words(jax_pool: Pool) -> None:
    guide = PROGRAMS["jax"]
    assert [run(jax_pool, guide).stdout(rank) for rank in (0, 1)] == ["sum 2.0\n"] * 2
    said = refused(jax_pool, guide.replace('os.environ["JAX_NUM_PROCESSES"]', "3"))
    assert "a cluster of 2 processes is set up already" in said
    assert "the plugin jax does so before the first cell" in said


@pytest.mark.long
def test_torch_leaves_the_group_to_the_program_where_it_is_asked_to() -> None:
    with local_pool(plugins=parse_plugins("torch(init=False)")) as pool:
        assert run(pool, TORCH + "kept = 1; dist.is_initialized()").values == [False, False]
        both = "dist.init_process_group('gloo'); total = reduce(); dist.destroy_process_group()\n"
        assert run(pool, both * 2 + "total").values == [2.0, 2.0]
        run(pool, "dist.init_process_group('gloo')")
        with pytest.raises(CellError):
            run(pool, "if dist.get_rank() == 0: raise ValueError\nreduce()", grace=0.5)
        assert run(pool, "(dist.is_initialized(), kept)").values == [(False, 1)] * 2
        assert run(pool, "dist.init_process_group('gloo'); reduce()").values == [2.0, 2.0]


@pytest.mark.long
def test_jax_leaves_the_cluster_to_the_program_where_it_is_asked_to() -> None:
    with local_pool(plugins=parse_plugins("jax(init=False)")) as pool:
        start = "kept = 1; jax.config.update('jax_num_cpu_devices', 2); jax.distributed.initialize()\n"
        assert run(pool, f"{JAX}{start}(gather(), jax.device_count())").values == [([0, 1], 4)] * 2
        run(pool, "jax.distributed.shutdown()")
        assert run(pool, "jax.distributed.is_initialized()").values == [False, False]
        assert run(pool, "jax.distributed.initialize(); gather()").values == [[0, 1]] * 2
        with pytest.raises(CellError):
            run(pool, "if jax.process_index() == 0: raise ValueError\ngather()", grace=0.5)
        assert run(pool, "(jax.distributed.is_initialized(), kept)").values == [(False, 1)] * 2
        assert run(pool, "jax.distributed.initialize(); gather()").values == [[0, 1]] * 2


@pytest.mark.long
def test_a_world_of_one_rank_is_set_up_again_too() -> None:
    with local_pool(nodes=1, plugins=parse_plugins("torch")) as pool:
        assert len(noticed(pool, TORCH + "kept = 1; dist.destroy_process_group()")) == 1
        assert run(pool, "(reduce(), kept)").values == [(1.0, 1)]
