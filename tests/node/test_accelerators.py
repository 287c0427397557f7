"""Which accelerators there are, as the driver's tool says it, and which of them each rank gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sky_jupyter.errors import ProvisionError
from sky_jupyter.magics.parsing import parse as parse_line
from sky_jupyter.node.system import gpus
from sky_jupyter.node.system.gpus import VISIBLE, is_kind, parse
from sky_jupyter.node.system.metrics import MachineMonitor
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.providers.base import Order
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import Accelerator, Image, PoolSpec
from tests.node import smi
from tests.pool.pools import local_pool, run
from tests.pool.test_scripts import launch

SEEN = "import os; os.environ.get('CUDA_VISIBLE_DEVICES')"


def ids(visible: str | None, kinds: int = 4) -> list[str]:
    return [device.id for device in parse(smi.rows([smi.A100] * kinds), visible).all]


def test_all_devices_are_there_unless_some_are_chosen() -> None:
    assert ids(None) == ["0", "1", "2", "3"]
    assert ids("2,3") == ["2", "3"]
    assert ids("3, 1") == ["3", "1"]
    assert ids(smi.uuid(2)) == [smi.uuid(2)]
    assert ids(smi.uuid(2)[:12]) == [smi.uuid(2)[:12]]
    assert ids("MIG-3f,MIG-4a") == ["MIG-3f", "MIG-4a"]


@pytest.mark.parametrize(
    ("visible", "left"),
    [("", []), ("-1", []), ("0,9,1", ["0"]), ("1,1", ["1"]), ("none", []), ("GPU-0", []), (f"1,{smi.uuid(1)}", ["1"])],
)
def test_what_is_chosen_ends_at_the_first_that_is_no_device_as_in_cuda(visible: str, left: list[str]) -> None:
    assert ids(visible) == left


def test_messages_of_the_tool_are_no_devices() -> None:
    assert not parse(["No devices were found"]).all
    assert not parse(["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."]).all
    assert not parse([], "0,1").all
    assert not parse([], "MIG-3f").all
    lost = "Unable to determine the device handle for GPU0000:3D:00.0: Unknown Error"
    assert len(parse([*smi.rows([smi.H100]), lost])) == 1


@pytest.mark.parametrize(
    ("wanted", "name", "same"),
    [
        ("A100", smi.A100, True),
        ("a100-80gb", smi.A100, True),
        ("A10", smi.A100, False),
        ("H100", smi.H100, True),
        ("H100", smi.A100, False),
        ("L4", "NVIDIA L40S", False),
        ("L4", "NVIDIA L4", True),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("T4", "Tesla T4", True),
    ],
)
def test_a_kind_is_known_by_the_drivers_name(wanted: str, name: str, same: bool) -> None:
    assert is_kind(wanted, name) is same


def test_shares_are_equal_and_contiguous_or_none() -> None:
    eight = parse(smi.rows([smi.A100] * 8))
    assert [share.environment()[VISIBLE] for share in eight.shares(4)] == ["0,1", "2,3", "4,5", "6,7"]
    assert eight.shares(4)[0].environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert [share.environment() for share in eight.shares(3)] == [{}] * 3
    assert [share.environment() for share in eight.shares(16)] == [{}] * 16
    # Numbers that the user has given are in the user's order.
    chosen = parse(smi.rows([smi.A100] * 8), "7,5")
    assert [share.environment() for share in chosen.shares(2)] == [{VISIBLE: "7"}, {VISIBLE: "5"}]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine's driver says that it has four devices."""
    monkeypatch.setenv("PATH", f"{smi.install(tmp_path / 'bin', [smi.A100] * 4)}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(VISIBLE, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("four")
def test_the_devices_of_this_machine_are_shared_out_among_its_ranks() -> None:
    assert len(gpus.present()) == 4
    with local_pool(nodes=2, ranks_per_node=2) as pool:
        assert run(pool, SEEN).values == ["0", "1", "2", "3"]
        infos = run(pool, "from sky_jupyter import instance_info\ni = instance_info(); i.accelerators, i.accelerator")
        assert infos.values == [(2, smi.A100)] * 4
        # A rank in the place of one that died has its devices.
        pool.restart()
        assert run(pool, SEEN).values == ["0", "1", "2", "3"]


@pytest.mark.usefixtures("four")
def test_what_the_user_chose_narrows_the_set(tmp_path: Path) -> None:
    with local_pool(nodes=1, ranks_per_node=2, image=Image(env={VISIBLE: "3,1"})) as pool:
        assert run(pool, SEEN).values == ["3", "1"]
        # In a script, as under torchrun, LOCAL_RANK is the number of a process's device.
        (tmp_path / "sees.py").write_text(f"import os\nprint(os.environ['{VISIBLE}'], os.environ['LOCAL_RANK'])\n")
        result = launch(pool, str(tmp_path / "sees.py"))
        assert [result.stdout(rank) for rank in (0, 1)] == ["3,1 0\n", "3,1 1\n"]


@pytest.mark.usefixtures("four")
def test_local_ranks_that_get_no_equal_shares_are_refused_unless_they_are_to_have_none() -> None:
    pool = Pool(PoolSpec(provider=Local(), nodes=3))
    with pytest.raises(ProvisionError, match="3 ranks cannot share 4 x NVIDIA A100-SXM4-80GB equally: have 1 or 2 or"):
        pool.start()
    assert pool.state == "ended"
    with local_pool(nodes=3, image=Image(env={VISIBLE: ""})) as pool:
        infos = run(pool, "from sky_jupyter import instance_info\ni = instance_info(); i.accelerators, i.accelerator")
        assert infos.values == [(0, None)] * 3


@pytest.mark.usefixtures("four")
def test_the_only_device_is_for_all_local_ranks() -> None:
    spec = PoolSpec(provider=Local(), nodes=2, image=Image(env={VISIBLE: "2"}))
    assert len(Local().create(spec, 2, Order("p"))) == 2


def test_ranks_that_share_the_only_device_leave_each_other_memory_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{smi.install(tmp_path / 'bin', [smi.H100])}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(VISIBLE, raising=False)
    told: list[str] = []
    pool = Pool(PoolSpec(provider=Local(), nodes=2))
    pool.start(lambda event: told.append(event.text))
    try:
        part = run(pool, "import os; os.environ.get('XLA_PYTHON_CLIENT_MEM_FRACTION'), os.environ.get('JAX_PLATFORMS')")
        assert part.values == [("0.375", None)] * 2
        (said,) = [text for text in told if "share" in text]
        assert said.startswith(f"2 ranks share 1 x {smi.H100}: JAX takes 0.375 of its memory in each (XLA_PYTHON_")
        assert "collectives among them go over the CPU (gloo)" in said
    finally:
        pool.down()


def test_what_the_user_says_of_jaxs_memory_stands_and_devices_of_ones_own_are_used_whole() -> None:
    one, two = parse(smi.rows([smi.H100])), parse(smi.rows([smi.H100] * 2))
    assert gpus.sharing(one, 4, {}) == {gpus.FRACTION: "0.188"}
    for name, value in (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("XLA_CLIENT_MEM_FRACTION", ".2")):
        assert gpus.sharing(one, 2, {name: value}) == {}
        assert "JAX takes" not in gpus.shared_by(one, 2, {name: value})
    assert gpus.sharing(one, 1, {}) == gpus.sharing(parse([]), 2, {}) == {}
    assert gpus.shared_by(one, 1, {}) == gpus.shared_by(two, 2, {}) == ""
    assert gpus.shared_by(parse([]), 2, {}) == ""


def test_more_local_ranks_than_the_machine_bears_are_asked_for_twice() -> None:
    machine = MachineMonitor()
    many = int(4 * machine.cores) + 9
    with pytest.raises(ProvisionError) as caught:
        Local().create(PoolSpec(provider=Local(), nodes=many), many, Order("p"))
    assert f"{many} rank processes, which need about" in str(caught.value)
    assert f"this machine's {machine.cores:g} cores" in str(caught.value)
    assert "--yes (Options(crowded=True))" in str(caught.value)
    meant = PoolSpec(provider=Local(), nodes=many, options=Options(crowded=True))
    assert len(Local().create(meant, many, Order("p"))) == many
    assert parse_line(f"--nodes {many} --yes", cell=True).spec() == meant


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"accelerator": "H100"},
            "the pool needs H100 on each node; this machine has 4 x NVIDIA A100-SXM4-80GB. Leave --accelerator",
        ),
        (
            {"accelerator": "A100-40GB"},
            "the pool needs A100-40GB on each node; this machine has 4 x NVIDIA A100-SXM4-80GB",
        ),
        ({"accelerator": "A100:3", "nodes": 2}, "A100:3 on each of 2 nodes, which share this machine"),
        (
            {"accelerator": "A100", "nodes": 3},
            "3 ranks cannot share 4 x NVIDIA A100-SXM4-80GB equally: have 1 or 2 or 4",
        ),
        (
            {"accelerator": "A100", "image": Image(env={VISIBLE: ""})},
            "no accelerator (CUDA_VISIBLE_DEVICES names none)",
        ),
    ],
)
def test_accelerators_that_are_asked_for_must_be_there(options: dict[str, object], told: str) -> None:
    wanted = Accelerator.parse(str(options["accelerator"]))
    pool = Pool(PoolSpec(**{"provider": Local(), **options, "accelerator": wanted}))
    with pytest.raises(ProvisionError) as caught:
        pool.start()
    assert told in str(caught.value)
    assert pool.state == "ended"
