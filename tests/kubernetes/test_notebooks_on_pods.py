"""The notebooks, each from top to bottom in a real kernel, on the pods of a TrainJob: only the pool's line differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes import containers
from tests.programs import ROOT, run_program

if TYPE_CHECKING:
    from tests.kubernetes.space import Space

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("kubeflow")

LONGEST = 900.0
# Pods have no way to an index here, and their image has the frameworks.
MORE = f"--image {containers.JAX} --offline --resources cpu=500m"
pytestmark = [pytest.mark.root, pytest.mark.timeout(LONGEST + 60)]


def executed(name: str, space: Space, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the cells of a notebook have said, by their ids."""
    monkeypatch.setenv("KUBECONFIG", str(space.kubeconfig("ada")))
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            place = "--provider kubeflow "
            text = (
                cell.source if place in cell.source else cell.source.replace("%%sky --nodes", f"%%sky {place}--nodes")
            )
            cell.source = text.replace(place, f"{place}{MORE} ")
    copy = folder / f"{name}.ipynb"
    nbformat.write(notebook, copy)
    run_program(ROOT / "notebooks" / "execute.py", copy, "--save", folder=folder, timeout=LONGEST)
    space.wait("nothing is left", lambda: space.left() == [])
    found = nbformat.read(copy, as_version=4)
    return {cell["id"]: "\n".join(map(said, cell.outputs)) for cell in found.cells if cell.cell_type == "code"}


def said(output: dict[str, object]) -> str:
    text = output.get("text") or (output.get("data") or {}).get("text/plain", "")
    return str(text)


@pytest.mark.slow
def test_the_kubeflow_notebook_joins_by_trainers_variables_and_trains_with_the_plugin(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = executed("kubeflow_jax", space, tmp_path, monkeypatch)
    assert all(f"[{rank}] process {rank} of 2" in cells["join"] for rank in (0, 1))
    assert "[0-1] Out: Array(11., dtype=float32)" in cells["mesh"]
    assert "1437 images to train with, 360 to test with" in cells["read"]
    first, second = cells["show"].splitlines()
    assert first.partition(": ")[2] == second.partition(": ")[2]
    assert float(first.rpartition(", ")[2].partition("%")[0]) > 90
    assert "[0-1] the same parameters everywhere: True" in cells["agree"]
    for rank in (0, 1):
        assert f"-node-0-{rank} is process {rank} of 2" in cells["pods"]
    assert "ended" in cells["end"]


@pytest.mark.long
def test_the_quickstart_runs_on_pods(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed("quickstart", space, tmp_path, monkeypatch)
    assert "[0-1] Out: Array([11.], dtype=float32)" in cells["mesh"]
    assert "test images are right" in cells["fit"]
    assert "from the nodes: [100, 101]" in cells["notebook-writes-again"]


@pytest.mark.long
def test_the_torch_notebook_runs_on_pods(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed("torch_ddp", space, tmp_path, monkeypatch)
    assert "[0-1] Out: tensor([11.])" in cells["group"]
    assert "[0-1] 9,610 parameters, largest difference between ranks: 0.0" in cells["agree"]
