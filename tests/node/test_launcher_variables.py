"""Variables of a cluster's launcher, as ranks of a pool see them."""

from __future__ import annotations

from dataclasses import replace

from sky_jupyter.node.runtime.instance_info import InstanceInfo
from sky_jupyter.node.runtime.launcher_variables import corrected

# What Kubeflow Trainer injects into pod 1 of a job with two nodes.
JAX = {"JAX_COORDINATOR_ADDRESS": "p-node-0-0.p:29500", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
TORCH = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "p-node-0-0.p", "PET_MASTER_PORT": "29500",
}  # fmt: skip
ONE = InstanceInfo(
    node=1, rank=1, total_nodes=2, world_size=2, ranks_per_node=1, local_rank=0,
    head_addr="10.0.0.1", head_port=4000, peers=("10.0.0.1", "10.0.0.2"),
)  # fmt: skip
# Its pool has grown by a second job, in which this is pod 1 again.
GROWN = replace(ONE, node=3, rank=3, total_nodes=4, world_size=4, peers=tuple(f"10.0.0.{n}" for n in range(1, 5)))
TWO = replace(ONE, rank=3, world_size=4, ranks_per_node=2, local_rank=1)


def test_with_one_rank_a_pod_a_ranks_number_is_the_launchers() -> None:
    assert corrected(ONE, {**JAX, **TORCH}) == {
        **JAX,
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:29500",
        **{name: TORCH[name] for name in ("PET_NNODES", "PET_NODE_RANK")},
        "PET_MASTER_ADDR": "10.0.0.1",
    }


def test_a_pool_that_has_grown_by_another_job_is_one_world() -> None:
    found = corrected(GROWN, {**JAX, **TORCH})
    assert (found["JAX_NUM_PROCESSES"], found["JAX_PROCESS_ID"]) == ("4", "3")
    assert (found["PET_NNODES"], found["PET_NODE_RANK"]) == ("4", "3")
    assert "PET_NPROC_PER_NODE" not in found


def test_each_of_several_ranks_in_a_pod_is_a_process_and_a_node_of_torchrun() -> None:
    found = corrected(TWO, {**JAX, **TORCH})
    assert (found["JAX_NUM_PROCESSES"], found["JAX_PROCESS_ID"]) == ("4", "3")
    assert (found["PET_NNODES"], found["PET_NODE_RANK"], found["PET_NPROC_PER_NODE"]) == ("4", "3", "1")


def test_variables_that_are_not_there_are_not_made() -> None:
    assert corrected(ONE, {}) == {}
    assert corrected(ONE, {"JAX_PROCESS_ID": "7", "PET_NNODES": "3"}) == {}


def test_an_address_of_ipv6_has_brackets_where_a_port_follows() -> None:
    six = replace(ONE, head_addr="fd00::1", peers=("fd00::1", "fd00::2"))
    found = corrected(six, {**JAX, **TORCH})
    assert (found["JAX_COORDINATOR_ADDRESS"], found["PET_MASTER_ADDR"]) == ("[fd00::1]:29500", "fd00::1")
