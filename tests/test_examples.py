"""The example programs, run as a person would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugins.world import needs
from tests.programs import ROOT, run_program

pytestmark = pytest.mark.slow
LINE = re.compile(r"^(?:node|rank) (\d): accuracy ([\d.]+), weights ([\d.]+)$", re.MULTILINE)


def run_example(name: str, folder: Path) -> str:
    return run_program(ROOT / "examples" / name, folder=folder)


def test_every_node_counts_the_devices_of_all(tmp_path: Path) -> None:
    needs("jax")
    said = run_example("total_devices.py", tmp_path)
    for node in (0, 1):
        assert f"[{node}] node {node}: 2 devices of 4\n" in said
        assert f"node {node} counted 4 devices, and 4 over the mesh\n" in said
    assert re.search(r"^one answer from node [01]$", said, re.MULTILINE)
    assert said.count("one answer") == 1


def test_keras_trains_one_model_on_the_nodes_shards(tmp_path: Path) -> None:
    needs("keras")
    needs("sklearn")
    said = run_example("keras_shard.py", tmp_path)
    assert "[0] 2 nodes, 718 images on each\n" in said
    assert "[1]" not in said, "sky.stdout(only='head')"
    (node, accuracy, weights), (other_node, other_accuracy, other_weights) = LINE.findall(said)
    assert (node, other_node) == ("0", "1")
    assert min(float(accuracy), float(other_accuracy)) > 0.9
    assert weights == other_weights


def test_ddp_trains_one_model_on_the_ranks_shards(tmp_path: Path) -> None:
    needs("torch")
    needs("sklearn")
    said = run_example("torch_ddp.py", tmp_path)
    losses = [float(loss) for loss in re.findall(r"^\[0\] epoch \d: loss ([\d.]+)$", said, re.MULTILINE)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 3
    assert "[1]" not in said, "sky.stdout(only='head')"
    (rank, accuracy, weights), (other_rank, other_accuracy, other_weights) = LINE.findall(said)
    assert (rank, other_rank) == ("0", "1")
    assert min(float(accuracy), float(other_accuracy)) > 0.9
    assert weights == other_weights
