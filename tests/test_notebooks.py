"""The notebooks, each executed from top to bottom in a real kernel, and what they are saved with.

On local nodes, as they are; and on two real hosts, where only the line that makes the pool differs: over SSH, on
machines that are bought, and in pods that have no SSH. The providers of the latter two are a third party's; those that
are bought of AWS are instances of the tests' AWS.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.traces import wait_until_clean
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.plugins.world import needs
from tests.programs import ROOT, run_program
from tests.providers import aws_world
from tests.providers.cloud import HOSTS, STORE, Cloud
from tests.providers.distribution import PROVIDERS, install
from tests.providers.pod import API, announce

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Paths that a traceback or a repr would carry from the machine that ran it.
HOST_PATH = re.compile(r"site-packages|/home/|/Users/|/root/|/tmp/|[A-Z]:\\\\")


class Executed:
    """A notebook with its outputs, as text by the ids of its cells."""

    def __init__(self, notebook: Any) -> None:
        self.cells = {cell["id"]: cell for cell in notebook.cells if cell.cell_type == "code"}

    def __getitem__(self, id: str) -> str:
        """All that the cell said."""
        return "\n".join(self._text(output) for output in self.cells[id].outputs)

    def error(self, id: str) -> str:
        """The type of the error that the cell ended with; empty where there is none."""
        return "".join(output.ename for output in self.cells[id].outputs if output.output_type == "error")

    def images(self, id: str) -> int:
        return sum("image/png" in output.get("data", {}) for output in self.cells[id].outputs)

    @staticmethod
    def _text(output: Any) -> str:
        if output.output_type == "stream":
            return str(output.text)
        if output.output_type == "error":
            return COLOUR.sub("", "\n".join(output.traceback))
        return str(output.data.get("text/plain", ""))


def execute(
    name: str,
    folder: Path,
    probe: str = "",
    *,
    line: tuple[str, str] | None = None,
    around: str = "",
    seen: str = "",
) -> Executed:
    """Execute a copy of a notebook.

    Parameters
    ----------
    probe : str
        Code of one more cell at the end, called `probe`.
    line : tuple of str
        What the line that makes the pool says, and what it says instead: a user changes no more, either.
    around : str
        The cell before and after which each rank says its host, and what that has received until then; in
        the cell `crossed`.
    seen : str
        Code of one more cell after that, called `seen`.
    """
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    if seen:
        place = [cell["id"] for cell in notebook.cells].index(around)
        notebook.cells.insert(place + 1, added("seen", seen))
    if line:
        (first,) = [cell for cell in notebook.cells if line[0] in cell.source]
        first.source = first.source.replace(*line)
        place = [cell["id"] for cell in notebook.cells].index(around)
        notebook.cells[place + 1 : place + 1] = [added("after", RECEIVED), added("crossed", CROSSED)]
        notebook.cells.insert(place, added("before", RECEIVED))
    if probe:
        notebook.cells.append(added("probe", probe))
    copy = folder / f"{name}.ipynb"
    nbformat.write(notebook, copy)
    run_program(ROOT / "notebooks" / "execute.py", copy, "--save", folder=folder, timeout=LONGEST if line else 240)
    return Executed(nbformat.read(copy, as_version=4))


def added(id: str, source: str) -> Any:
    """A cell that the notebook itself has not."""
    cell = nbformat.v4.new_code_cell(source.replace("ID", id))
    cell["id"] = id
    return cell


LONGEST = 900.0
RECEIVED = """%%sky --quiet --out ID
import socket as _socket
_socket.gethostname(), int(open("/proc/net/dev").read().partition("eth0:")[2].split()[0])"""
CROSSED = "import json\nprint(json.dumps([list(before), list(after)]))"
IN_QUICKSTART = """
import json, sys
print(json.dumps({
    "accuracy": [result["accuracy"] for result in training],
    "history": [list(map(float, result["history"])) for result in training],
    "weights": [list(found) for found in weights],
    "imported": [name for name in ("jax", "keras", "torch") if name in sys.modules],
}))
"""
WEIGHTS = """%%sky --quiet --out weights
import hashlib as _hashlib
_losses = history.history["loss"]
_hashlib.sha256(b"".join(_part.tobytes() for _part in model.get_weights())).hexdigest(), _losses[0], _losses[-1]
"""
IN_TORCH = "import json\nprint(json.dumps({'training': list(training), 'curves': list(curves)}))"


# Hosts that are sent all from here, as if they had no way to an index; the frameworks' wheels are large.
ON_HOSTS = [
    pytest.mark.root,
    pytest.mark.timeout(LONGEST + 300),
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]
# On hosts a minute each, most of it for frameworks that are sent and built.
PLACES = ["local", pytest.param("hosts", marks=[*ON_HOSTS, pytest.mark.long])]
SSH = "--provider ssh --hosts host0,host1 --offline"
BOUGHT = "--provider aws --nodes 2 --offline"
# Of providers that are found by their entry points.
FOUND = [pytest.param(place, marks=[*ON_HOSTS, pytest.mark.long]) for place in PROVIDERS]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two hosts, which keep what one notebook needed for the next."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True) as made:
        yield made


def on(
    request: pytest.FixtureRequest,
    folder: Path,
    name: str,
    line: tuple[str, str],
    around: str,
    probe: str = "",
    seen: str = "",
) -> Executed:
    """A notebook, executed where the fixture's parameter says."""
    if request.param == "local":
        return execute(name, folder, probe, around=around, seen=seen)
    if request.param == "aws":
        pytest.importorskip("boto3")
        with hosts(0) as empty, aws_world.hosts(empty) as aws:
            executed = execute(name, folder, probe, line=line, around=around, seen=seen)
            assert [one["state"] for one in aws.instances()] == ["terminated"] * 2
            # The security group is kept.
            assert {thing: number for thing, number in aws.left().items() if number} == {"groups": 1}
        return executed
    world: World = request.getfixturevalue("world")
    cloud = Cloud(str(folder / "cloud.sqlite"))
    with pytest.MonkeyPatch.context() as environment:
        # No SSH is to be had of pods.
        config = "/nonexistent" if request.param == "pods" else str(world.ssh_config(folder / "config"))
        environment.setenv("SKY_SSH_CONFIG", config)
        environment.delenv("SSH_AUTH_SOCK", raising=False)
        environment.setenv(API, str(folder / "pods.json"))
        environment.setenv(STORE, cloud.store)
        environment.setenv(HOSTS, "host0 host1")
        announce(world, folder / "pods.json")
        # Beside the notebook, whose kernel looks for modules there.
        install(folder)
        executed = execute(name, folder, probe, line=line, around=around, seen=seen)
    wait_until_clean(world)
    bought = [one.state for one in cloud.machines()]
    assert bought == (["ended"] * 2 if request.param == "cloud" else [])
    return executed


@pytest.fixture(scope="module", params=[*PLACES, *FOUND, pytest.param("aws", marks=[*ON_HOSTS, pytest.mark.long])])
def quickstart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    for package in ("jax", "keras", "sklearn", "matplotlib"):
        needs(package)
    line = "--nodes 2 ", f"--provider {request.param} --nodes 2 " if request.param in PROVIDERS else f"{SSH} "
    line = ("--nodes 2 ", f"{BOUGHT} ") if request.param == "aws" else line
    return on(request, tmp_path_factory.mktemp("quickstart"), "quickstart", line, "fit", IN_QUICKSTART, WEIGHTS)


@pytest.fixture(scope="module", params=PLACES)
def torch_ddp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    for package in ("torch", "sklearn", "matplotlib"):
        needs(package)
    line = "--nodes 2 ", f"{SSH} "
    return on(request, tmp_path_factory.mktemp("torch"), "torch_ddp", line, "fit", IN_TORCH)


@pytest.fixture(scope="module", params=PLACES)
def jax_multiprocess(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    for package in ("jax", "rich"):
        needs(package)
    # Four processes, as the guide has them: two on each of the hosts.
    line = "--nodes 4 ", f"{SSH} --ranks-per-node 2 "
    return on(request, tmp_path_factory.mktemp("jax"), "jax_multiprocess", line, "fetch-values")


def assert_crossed(executed: Executed, hosts: list[str], least: int) -> None:
    """On hosts, the ranks were there, and so many bytes reached each of them in the cell that was looked at."""
    if "crossed" not in executed.cells:
        return
    before, after = json.loads(executed["crossed"])
    assert [name for name, _ in before] == [name for name, _ in after] == hosts
    assert min(late - early for (_, early), (_, late) in zip(before, after, strict=True)) > least


class TestQuickstart:
    @pytest.fixture
    def probed(self, quickstart: Executed) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(quickstart["probe"])
        return found

    def test_all_devices_are_in_the_mesh_and_psum_adds_over_both_nodes(self, quickstart: Executed) -> None:
        (devices,) = re.findall(r"^\[0-1\] all devices: (.+)$", quickstart["mesh"], re.MULTILINE)
        mine = re.findall(r"^\[[01]\] mine: +(.+)$", quickstart["mesh"], re.MULTILINE)
        assert devices.split() == mine
        assert len(set(mine)) == 2
        assert "[0-1] Out: Array([11.], dtype=float32)" in quickstart["mesh"]

    def test_the_gradients_cross_the_network_between_hosts(self, quickstart: Executed) -> None:
        # 12 epochs of 22 steps, each of which sums 9,610 numbers of four bytes.
        assert_crossed(quickstart, ["host0", "host1"], 12 * 22 * 9_610 * 4)

    def test_both_nodes_learn_the_same_model(self, probed: dict[str, Any]) -> None:
        first, second = probed["history"]
        assert first == second
        assert first[-1] > 0.8 > first[0]
        # Fashion-MNIST, where it is installed, is the harder one.
        assert [accuracy for accuracy in probed["accuracy"] if accuracy > 0.8] == probed["accuracy"]
        assert len(probed["accuracy"]) == 2

    def test_the_loss_falls_and_the_weights_are_the_same_on_both_nodes(self, probed: dict[str, Any]) -> None:
        (weights, first, last), (theirs, *_) = probed["weights"]
        assert weights == theirs
        assert last < first / 2

    def test_the_digits_are_learnt_well(self, quickstart: Executed, probed: dict[str, Any]) -> None:
        if not quickstart["read"].startswith("digits"):
            pytest.skip("Fashion-MNIST is installed")
        assert min(probed["accuracy"]) > 0.9

    def test_only_the_heads_bar_is_shown(self, quickstart: Executed) -> None:
        epochs = re.findall(r"^\[(.+)\] Epoch (\d+)/12$", quickstart["fit"], re.MULTILINE)
        assert epochs == [("0", str(epoch)) for epoch in range(1, 13)]

    def test_the_results_are_plotted(self, quickstart: Executed) -> None:
        assert quickstart.images("figure") == 1

    def test_the_model_is_still_on_the_head(self, quickstart: Executed) -> None:
        answers, labels = (
            re.findall(rf"^{name}: +(.+)$", quickstart["predict"], re.MULTILINE)[0].split()
            for name in ("model", "labels")
        )
        assert len(labels) == 12
        assert sum(answer == label for answer, label in zip(answers, labels, strict=True)) >= 9

    def test_the_last_writer_of_a_name_wins(self, quickstart: Executed) -> None:
        assert "[0] Out: 100\n[1] Out: 101" in quickstart["nodes-read"]
        assert "from the nodes: [100, 101]" in quickstart["notebook-writes-again"]
        assert "[0-1] Out: 'mine again'" in quickstart["nodes-read-again"]

    def test_the_pool_is_ended(self, quickstart: Executed) -> None:
        assert "ended" in quickstart["end"]

    def test_the_notebook_itself_imports_no_framework(self, probed: dict[str, Any]) -> None:
        assert probed["imported"] == []


@pytest.mark.slow
class TestTorch:
    def test_the_ranks_are_a_group(self, torch_ddp: Executed) -> None:
        for rank in (0, 1):
            assert f"[{rank}] rank {rank} of 2, gloo, local rank 0" in torch_ddp["group"]
        assert "[0-1] Out: tensor([11.])" in torch_ddp["group"]

    def test_the_gradients_cross_the_network_between_hosts(self, torch_ddp: Executed) -> None:
        assert_crossed(torch_ddp, ["host0", "host1"], 12 * 22 * 9_610 * 4)

    def test_both_ranks_learn(self, torch_ddp: Executed) -> None:
        probed = json.loads(torch_ddp["probe"])
        assert [result["images"] for result in probed["training"]] == [718, 718]
        assert min(result["accuracy"] for result in probed["training"]) > 0.9
        first, second = probed["curves"]
        assert len(first) == len(second) == 12
        assert first != second, "each rank has images of its own"
        assert max(first[-1], second[-1]) < 0.3

    def test_the_parameters_are_the_same_on_all_ranks(self, torch_ddp: Executed) -> None:
        assert "[0-1] 9,610 parameters, largest difference between ranks: 0.0" in torch_ddp["agree"]

    def test_the_results_are_plotted(self, torch_ddp: Executed) -> None:
        assert torch_ddp.images("figure") == 1


@pytest.mark.slow
class TestJaxMultiprocess:
    def test_the_first_program_gives_the_guides_answer_on_all_processes(self, jax_multiprocess: Executed) -> None:
        assert "[0-3] Out: Array(-0.12398" in jax_multiprocess["toy-example"]
        shards = re.findall(r"^\[(\d)\] device \S+ has \[\[ *(\d+) ", jax_multiprocess["toy-example"], re.MULTILINE)
        assert shards == [(str(number // 2), str(4 * number)) for number in range(8)]

    def test_each_process_has_its_own_devices_and_sees_all(self, jax_multiprocess: Executed) -> None:
        said = jax_multiprocess["local-and-global"]
        own = [
            device
            for rank in range(4)
            for device in re.findall(rf"^\[{rank}\] 2 local devices: +(.+)$", said, re.MULTILINE)[0].split()
        ]
        assert re.findall(r"^\[0-3\] 8 global devices: (.+)$", said, re.MULTILINE)[0].split() == own
        assert len(set(own)) == 8

    def test_psum_adds_over_all_devices(self, jax_multiprocess: Executed) -> None:
        assert "[0-3] Out: Array([8.], dtype=float32)" in jax_multiprocess["psum-of-ones"]

    def test_arrays_and_computations_span_processes(self, jax_multiprocess: Executed) -> None:
        # In the hybrid mesh, a row holds one process's devices.
        rows = re.findall(r"^ ?\[+\w+\(id=\d+\) \w+\(id=\d+\)\]", jax_multiprocess["make-meshes"], re.MULTILINE)
        assert len(rows) == 4
        assert all(re.search(rf"\b{word}\b", jax_multiprocess["put"]) for word in ("CPU 0", "CPU 1"))
        assert "CPU 0,1" in jax_multiprocess["matmul-over-a-mesh"]
        assert "[0-3] both are whole: (512, 512) True 256.0 256.0" in jax_multiprocess["fetch-values"]
        assert "is not possible" in jax_multiprocess["fetch-values"]

    def test_collectives_cross_the_network_between_hosts(self, jax_multiprocess: Executed) -> None:
        # Twice, all of a 512 x 512 matrix is put together on each process, half of it from the other host.
        assert_crossed(jax_multiprocess, ["host0", "host0", "host1", "host1"], 512 * 512 * 4)

    def test_half_of_the_processes_can_compute_and_hand_over(self, jax_multiprocess: Executed) -> None:
        assert "[0-1] Out: []" in jax_multiprocess["half-the-devices"]
        assert "[2-3] Out: [0.0965857" in jax_multiprocess["half-the-devices"]
        assert [int(n) for n in re.findall(r"': (\d+)", jax_multiprocess["hand-over"])] == [2, 34, 66, 98]
        assert "[3] Out: [6, 10, 14]" in jax_multiprocess["run-pipeline"]

    def test_global_arrays_are_made_of_each_processs_data(self, jax_multiprocess: Executed) -> None:
        assert "[0-3] mine (16, 20), global (64, 20), on each device (8, 20)" in jax_multiprocess["process-local-data"]
        assert "[1] I was asked for [(16, 24), (24, 32)]" in jax_multiprocess["from-callback"]
        assert "[0-3] Out: Array(2016., dtype=float32)" in jax_multiprocess["from-callback"]
        rows = re.findall(r"\[(\d), (\d)\]", jax_multiprocess["single-device-arrays"])
        assert rows == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
        assert "[1] shape (2, 2) of which I hold [2, 3]" in jax_multiprocess["two-processes"]

    def test_multihost_utils_gather_broadcast_and_wait(self, jax_multiprocess: Executed) -> None:
        for line in ("gathered:  [0 1 4 9]", "broadcast: [3. 1. 4.]", "all are here, and agree"):
            assert f"[0-3] {line}" in jax_multiprocess["helpers"]

    @pytest.mark.parametrize(
        ("hangs", "next_cell", "answer"),
        [("shapes", "shapes-right", "[0-3] Out: 10.0"), ("loop", "loop-right", "[0-3] step 1: [8.]")],
    )
    def test_a_hang_is_stopped_and_the_next_cell_works(
        self, jax_multiprocess: Executed, hangs: str, next_cell: str, answer: str
    ) -> None:
        assert jax_multiprocess.error(hangs) == "CellError"
        assert "longer than 5 s (--timeout)" in jax_multiprocess[hangs]
        assert not jax_multiprocess.error(next_cell)
        assert answer in jax_multiprocess[next_cell]
        # The processes are those that hung, and still have what only they had.
        assert "kernels are new" not in jax_multiprocess[next_cell]

    def test_who_leaves_the_loop_early_is_not_who_hangs(self, jax_multiprocess: Executed) -> None:
        assert "the cell timed out on ranks 0-2 of 4" in jax_multiprocess["loop"]
        assert "step 2" not in jax_multiprocess["loop"]

    def test_an_order_of_a_set_mixes_sums_up_and_sorting_does_not(self, jax_multiprocess: Executed) -> None:
        value = {"weights": 1, "bias": 10, "scale": 100, "shift": 1000, "mean": 10000, "variance": 100000}
        sums = re.compile(r"^\[([\d,-]+)\] (\w+): (\d+)$", re.MULTILINE)
        mixed, sorted_ = (sums.findall(jax_multiprocess[cell]) for cell in ("order-wrong", "order-right"))
        assert [name for _, name, total in mixed if int(total) != 4 * value[name]]
        right = {name: int(total) for ranks, name, total in sorted_ if ranks == "0-3"}
        assert right == {name: 4 * number for name, number in value.items()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestSaved:
    def test_it_is_saved_with_what_its_cells_said(self, path: Path) -> None:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        over_nodes = [
            cell for cell in notebook.cells if cell.source.startswith("%%sky") and "--quiet" not in cell.source
        ]
        assert len(over_nodes) >= 3
        assert all(cell.outputs for cell in over_nodes)

    def test_it_holds_no_path_of_the_machine_that_ran_it(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert str(ROOT) not in text
        assert str(Path.home()) not in text
        assert not HOST_PATH.findall(text)

    def test_only_cells_that_are_meant_to_fail_have_failed(self, path: Path) -> None:
        for cell in nbformat.read(path, as_version=4).cells:
            failed = any(output.output_type == "error" for output in cell.get("outputs", []))
            assert failed == ("raises-exception" in cell.metadata.get("tags", [])), cell["id"]


@pytest.mark.slow
def test_the_readmes_cells_run(tmp_path: Path) -> None:
    for package in ("jax", "keras"):
        needs(package)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    cells = [nbformat.v4.new_code_cell(block.strip()) for block in blocks]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "readme.ipynb")
    said = run_program(ROOT / "notebooks" / "execute.py", tmp_path / "readme.ipynb", folder=tmp_path)
    assert any(block.startswith("%%sky") for block in blocks)
    assert "[0] rank 0\n[1] rank 1\n[0-1] Out: [CpuDevice(id=0), CpuDevice(id=" in said
