"""The example programs, run as a person would run them: as scripts on two local nodes, and one in a notebook."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.magics.notebook import notebook
from tests.plugins.world import needs
from tests.programs import ROOT, run_program

EXAMPLES = ROOT / "examples"
SCORES = re.compile(r"^(?:node|rank) (\d): accuracy ([\d.]+), weights ([\d.]+)$", re.MULTILINE)


def run_example(name: str, folder: Path) -> str:
    return run_program(EXAMPLES / name, folder=folder)


def assert_one_model(said: str, least: float = 0.9) -> None:
    """Both nodes have the same weights, and guess well by them."""
    (node, accuracy, weights), (other_node, other_accuracy, other_weights) = SCORES.findall(said)
    assert (node, other_node) == ("0", "1")
    assert min(float(accuracy), float(other_accuracy)) > least
    assert weights == other_weights
    assert "[1]" not in said, "sky.stdout(only='head')"


def lines_of(said: str) -> dict[str, str]:
    """What the program said, by what stands before the colon."""
    return dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)


def test_a_function_answers_from_a_node(tmp_path: Path) -> None:
    said = run_example("hello.py", tmp_path)
    assert said == ("hello you, from node 0 of 1\n{'mean': 5.0, 'deviation': 2.0}\n{'mean': 2.0, 'deviation': 1.0}\n")


PARALLEL = {
    "chunks": "(4950, 14950, 24950, 34950)",
    "both": "7 1024!",
    "as they end": "[0.05, 0.6]",
    "in order": "[0.6, 0.05]",
    "meanwhile": "10",
    "future": "18446744073709551616",
    "map": "['2', '4', '8']",
}


@pytest.mark.slow
def test_many_calls_run_at_once(tmp_path: Path) -> None:
    assert lines_of(run_example("parallel.py", tmp_path)) == PARALLEL


def test_every_node_counts_its_part(tmp_path: Path) -> None:
    said = lines_of(run_example("broadcast.py", tmp_path))
    assert said == {
        "node 0": "2 lines, 16 words",
        "node 1": "2 lines, 18 words",
        "most common": "[('a', 7), ('is', 4)]",
    }


@pytest.mark.slow
def test_parts_of_arrays_belong_together(tmp_path: Path) -> None:
    needs("numpy")
    said = lines_of(run_example("sharding.py", tmp_path))
    assert said == {
        "node 0": "50 rows, still paired: True",
        "node 1": "50 rows, still paired: True",
        "every row once": "True",
        "kinds": "list tuple range str ndarray",
        "equal parts": "[50, 50]",
        "third of four": "[2, 6]",
    }


def test_items_go_and_come_one_by_one(tmp_path: Path) -> None:
    said = lines_of(run_example("streaming.py", tmp_path))
    assert said == {
        "squares": "[0, 1, 4, 9, 16, 25, 36, 49, 64]",
        "average": "49.95",
        "smoothed": "[0.0, 1.5, 4.5, 7.5]",
    }


def test_nodes_share_state(tmp_path: Path) -> None:
    said = lines_of(run_example("shared_state.py", tmp_path))
    assert said == {
        "given": "10",
        "measured, letters": "(4, 21)",
        "lowest": "[0.125, 0.125]",
        "jobs done once each": "True",
    }


@pytest.mark.slow
def test_nodes_that_are_alone_work_all_the_same(tmp_path: Path) -> None:
    said = run_example("standalone.py", tmp_path)
    assert [line.split(":")[0] for line in said.splitlines()[:6]] == [f"chunk {chunk}" for chunk in range(6)]
    digest = lines_of(said)["chunk 0"]
    assert lines_of(said)["everywhere"] == f"[(0, '{digest}'), (0, '{digest}')]"


@pytest.mark.slow
def test_joblib_runs_on_the_ranks(tmp_path: Path) -> None:
    needs("joblib")
    said = lines_of(run_example("joblib_pool.py", tmp_path))
    assert said["cubes"] == "True"
    assert said["computed here"] == "0"
    assert said["computed by"] in ("1 processes", "2 processes")


@pytest.mark.slow
def test_a_grid_search_runs_on_the_ranks(tmp_path: Path) -> None:
    needs("sklearn")
    said = lines_of(run_example("grid_search.py", tmp_path))
    assert said["best"] == "{'C': 10, 'kernel': 'rbf'}"
    assert float(said["accuracy"]) > 0.98


@pytest.mark.slow
def test_a_model_goes_to_a_node_and_comes_back_trained(tmp_path: Path) -> None:
    needs("torch")
    said = lines_of(run_example("torch_roundtrip.py", tmp_path))
    assert float(said["after"]) > 0.95
    assert float(said["before"]) < 0.8
    assert said["here unchanged"] == said["before"]


@pytest.mark.slow
def test_every_node_counts_the_devices_of_all(tmp_path: Path) -> None:
    needs("jax")
    said = run_example("total_devices.py", tmp_path)
    for node in (0, 1):
        assert f"[{node}] node {node}: 2 devices of 4\n" in said
        assert f"node {node} counted 4 devices, and 4 over the mesh\n" in said
    assert re.search(r"^one answer from node [01]$", said, re.MULTILINE)
    assert said.count("one answer") == 1


@pytest.mark.slow
def test_plain_jax_trains_on_a_mesh_of_all_nodes(tmp_path: Path) -> None:
    needs("jax")
    said = run_example("jax_mesh.py", tmp_path)
    assert "[0] 2 processes, 2 devices\n" in said
    assert_one_model(said)


@pytest.mark.long
def test_a_gpt_learns_from_the_nodes_shards(tmp_path: Path) -> None:
    needs("jax")
    said = run_example("jax_names.py", tmp_path)
    results = re.findall(r"^node \d: loss ([\d.]+) to ([\d.]+); ([a-z, ]+)$", said, re.MULTILINE)
    assert len(results) == 2
    assert results[0] == results[1], "the nodes have one model, and roll the same dice"
    first, last, _ = results[0]
    assert float(last) < float(first) / 3


@pytest.mark.slow
def test_keras_trains_one_model_on_the_nodes_shards(tmp_path: Path) -> None:
    needs("keras")
    needs("sklearn")
    said = run_example("keras_shard.py", tmp_path)
    assert "[0] 2 nodes, 718 images on each\n" in said
    assert_one_model(said)


@pytest.mark.slow
def test_ddp_trains_one_model_on_the_ranks_shards(tmp_path: Path) -> None:
    needs("torch")
    needs("sklearn")
    said = run_example("torch_ddp.py", tmp_path)
    losses = [float(loss) for loss in re.findall(r"^\[0\] epoch \d: loss ([\d.]+)$", said, re.MULTILINE)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 3
    assert_one_model(said)


def test_a_program_runs_unchanged_in_a_notebook(tmp_path: Path) -> None:
    with notebook(tmp_path) as book:
        book.run("%load_ext sky_jupyter")
        cell = book.run((EXAMPLES / "parallel.py").read_text(encoding="utf-8"))
        assert cell.status == "ok", cell.outputs
        assert lines_of(cell.stream()) == PARALLEL


def test_every_example_says_how_it_is_run_and_is_run_here() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert said.endswith(f"Run it: python examples/{path.name}"), path
        assert f'"{path.name}"' in tested, path
