"""How busy a machine is: its own cores and memory, a container's, and GPUs by a stand-in for the driver's library.

No GPU can be had here: what is tested is how the library is called, against nvml.h's own types.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from sky_jupyter.node.system import metrics
from sky_jupyter.node.system.metrics import KEPT, MachineMonitor, NoGpus, Sampler
from sky_jupyter.node.system.nvml import Nvml
from sky_jupyter.pool.lifecycle import status
from tests.node import smi
from tests.pool.pools import local_pool

GIB = 1 << 30


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is missing (Debian: apt-get install gcc libc6-dev)")
    built = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(built), str(source)], check=True)
    return built


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_NVML", str(library))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


# Cores and memory.


def test_a_machine_that_computes_is_busy_and_one_that_holds_memory_uses_it() -> None:
    machine = MachineMonitor()
    assert 0 < machine.used() < machine.memory
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    # One of its cores at least was busy: with us.
    assert machine.cpu() > 0.5 / (psutil.cpu_count() or 1) * 0.5


def test_a_container_of_version_2_has_what_its_groups_leave_it(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/pods/one/app\n")
    root = tmp_path / "fs"
    write(root, memory__stat="")
    write(
        root / "pods",
        memory__max=f"{2 * GIB}\n",
        memory__current=f"{GIB}\n",
        memory__stat=f"inactive_file {GIB // 4}\n",
    )
    write(
        root / "pods/one", memory__max="max\n", cpu__max="50000 100000\n", cpu__stat="usage_usec 1000000\nuser_usec 1\n"
    )
    write(root / "pods/one/app", memory__max="max\n", cpu__max="max 100000\n")
    machine = MachineMonitor(root, own)
    assert (machine.cores, machine.memory, machine.used()) == (0.5, 2 * GIB, 3 * GIB // 4)
    time.sleep(0.1)
    (root / "pods/one/cpu.stat").write_text("usage_usec 1010000\n")
    # 10 ms of half a core within 100 ms or more.
    assert 0 < machine.cpu() <= 0.2
    (root / "pods/one/cpu.stat").write_text("usage_usec 9000000\n")
    assert machine.cpu() == 1.0


def test_a_container_of_version_1_has_what_its_groups_leave_it(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n")
    root = tmp_path / "fs"
    # Inside, what is the container's own is mounted as the root.
    stat = f"cache 5\ntotal_inactive_file {GIB // 2}\n"
    write(
        root / "memory",
        memory__limit_in_bytes=f"{GIB}\n",
        memory__usage_in_bytes=f"{GIB}\n",
        memory__stat=stat,
    )
    write(root / "cpu", cpu__cfs_quota_us="150000\n", cpu__cfs_period_us="100000\n")
    write(root / "cpuacct", cpuacct__usage="5000000000\n")
    machine = MachineMonitor(root, own)
    assert (machine.cores, machine.memory, machine.used()) == (1.5, GIB, GIB // 2)


@pytest.mark.parametrize("text", ["", "nonsense", "0::/../../etc", "1:memory:/none\n2:cpu:/none", "4:memory:/\n0::/"])
def test_without_limits_it_is_the_machine(tmp_path: Path, text: str) -> None:
    (tmp_path / "cgroup").write_text(text)
    machine = MachineMonitor(tmp_path / "fs", tmp_path / "cgroup")
    assert machine.memory == psutil.virtual_memory().total
    assert machine.used() > 0


# The history.


def test_the_newest_samples_are_kept_and_only_new_ones_are_told() -> None:
    sampler = Sampler(MachineMonitor(), NoGpus())
    for _ in range(KEPT + 20):
        sampler.take()
    whole = sampler.since(0)
    assert (len(whole["samples"]), whole["next"]) == (KEPT, KEPT + 20)
    assert sampler.since(KEPT + 18)["samples"] == whole["samples"][-2:]
    assert sampler.since(KEPT + 20)["samples"] == []
    # A number of another agent's, which had been here longer.
    assert len(sampler.since(5000)["samples"]) == KEPT


# GPUs.


def test_devices_are_found_by_index_and_by_what_their_uuid_begins_with(driver: None) -> None:
    found = Nvml.of(["1", smi.uuid(0)[:14], "MIG-3f", "7", "GPU-ffff"])
    assert found is not None
    assert found.all == [("NVIDIA A100-SXM4-80GB", 80 * GIB)] * 2
    assert found.look() == [(0.25, 5 * GIB), (0.9, 60 * GIB)]


def test_what_an_older_driver_keeps_for_itself_counts_as_used(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_TEST_OLD_DRIVER", "1")
    found = Nvml.of(["0"])
    assert found is not None
    assert found.look() == [(0.9, 61 * GIB)]


def test_a_device_that_is_lost_is_idle_and_the_others_are_told(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_TEST_LOST", "1")
    found = Nvml.of(["0", "1"])
    assert found is not None
    assert found.look() == [(0.9, 60 * GIB), (0.0, 0)]


def test_without_a_driver_there_are_none(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [metrics.Device("0", smi.A100)]
    monkeypatch.setenv("SKY_TEST_NO_DRIVER", "1")
    assert metrics.gpus_of(devices).all == ()
    # No library, and one of something else.
    for other in ("/nosuch/library.so", ctypes.util.find_library("c") or "libc.so.6"):
        monkeypatch.setenv("SKY_NVML", other)
        assert metrics.gpus_of(devices).all == ()


def test_a_pool_tells_how_busy_its_nodes_are(driver: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = smi.install(tmp_path / "bin", [smi.A100, smi.A100])
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with local_pool(nodes=2) as pool:
        end = time.monotonic() + 60
        while not all(len(node["samples"]) >= 3 for node in status.of(pool, 0)["nodes"]):
            assert time.monotonic() < end
            time.sleep(0.2)
        found = status.of(pool, 0)
        for node, busy in zip(found["nodes"], (0.9, 0.25), strict=True):
            assert (node["state"], node["address"], node["accelerators"]) == ("idle", "127.0.0.1", 1)
            assert node["gpus"] == [{"name": smi.A100, "memory": 80.0 * GIB}]
            assert node["now"][2] == busy
            assert 0 < node["now"][1] < node["memory"]
            assert node["ranks"][0]["memory"] > 1 << 20
            assert node["uptime"] > 1
            ages = [sample[0] for sample in node["samples"]]
            assert ages == sorted(ages, reverse=True)
        # What was told is not told again.
        time.sleep(0.6)
        later = status.of(pool, found["mark"])
        assert all(len(node["samples"]) < 10 for node in later["nodes"])
        assert all(node["samples"] == [] for node in status.of(pool)["nodes"])
        assert [phase["state"] for phase in found["phases"]] == ["done"] * 3


@pytest.mark.timing
def test_sampling_takes_next_to_nothing_of_a_core() -> None:
    sampler = Sampler(MachineMonitor(), NoGpus())
    began = time.process_time()
    for _ in range(200):
        sampler.take()
    # One a second: a thousandth of a core, on a machine that has much else to do.
    assert (time.process_time() - began) / 200 < 0.005
