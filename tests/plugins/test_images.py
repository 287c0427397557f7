"""What each plugin adds to an image, and how ranks share a machine."""

from __future__ import annotations

import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sky_jupyter import plugins
from sky_jupyter.errors import SkyError, SpecError
from sky_jupyter.plugins import Plugin
from sky_jupyter.plugins.core import rank_resources
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Accelerator, Image, PoolSpec
from tests.plugins.world import infos
from tests.ports import free_port


def image(*given: Plugin, accelerator: str | None = None, ranks_per_node: int = 1, own: Image | None = None) -> Image:
    spec = PoolSpec(
        None,
        plugins=given,
        image=own or Image(),
        ranks_per_node=ranks_per_node,
        accelerator=None if accelerator is None else Accelerator.parse(accelerator),
    )
    return spec.full_image


@pytest.mark.parametrize(
    ("cuda", "accelerator", "expected"),
    [
        (None, None, "jax"),
        ("cu128", None, "jax"),
        ("cu128", "A100:8", "jax[cuda12]"),
        ("cu12", "H100", "jax[cuda12]"),
        ("cu130", "B200", "jax[cuda13]"),
        ("cu13x", "L4", "jax[cuda13]"),
        ("cu128", "TPU-v5e", "jax[tpu]"),
        ("cu128", "V100", "jax[cuda12]"),
        (None, "V100", "jax[cuda12]"),
        (None, "T4", "jax[cuda13]"),
        (None, "B200", "jax[cuda13]"),
    ],
)
def test_jax_is_installed_for_what_the_node_has(cuda: str | None, accelerator: str | None, expected: str) -> None:
    own = Image(python="3.12")
    assert image(plugins.jax(cuda=cuda), accelerator=accelerator, own=own).pip == (expected,)


def test_an_extra_that_the_nodes_release_of_jax_lacks_is_not_asked_for() -> None:
    assert image(plugins.jax(), accelerator="A100", own=Image(python="3.10")).pip == ("jax[cuda12]",)


def test_extras_of_the_users_own_are_left_alone() -> None:
    own = Image(python="3.12", pip=("jax[cuda12-local]",))
    assert image(plugins.jax(), accelerator="A100", own=own).pip == ("jax[cuda12-local]",)


@pytest.mark.parametrize("accelerator", ["custom:Quadro K2200", "Trainium2"])
def test_jax_for_cpus_on_nodes_with_accelerators_is_told(accelerator: str) -> None:
    with pytest.warns(UserWarning, match="CPUs only"):
        assert image(plugins.jax(), accelerator=accelerator).pip == ("jax",)


@pytest.mark.parametrize("plugin", [plugins.jax(cuda="cu130"), plugins.torch(cuda="cu130")])
def test_a_cuda_that_has_dropped_the_accelerator_is_refused(plugin: Plugin) -> None:
    with pytest.raises(SpecError, match=r"on V100-32GB: CUDA 13 does not run on it any more; write (jax|torch)\(\)"):
        image(plugin, accelerator="V100-32GB")


def test_keras_names_its_backend_in_the_image() -> None:
    made = image(plugins.keras(backend="torch"), plugins.torch(version="2.13.0"))
    assert made.pip == ("keras", "numpy", "torch==2.13.0")
    assert made.env["KERAS_BACKEND"] == "torch"


def test_keras_alone_brings_its_backend_along_on_one_rank() -> None:
    assert sorted(image(plugins.keras()).pip) == ["jax", "keras"]
    assert "torch" in image(plugins.keras(backend="torch")).pip
    made = image(plugins.keras(backend="tensorflow"))
    assert (sorted(made.pip), made.env["KERAS_BACKEND"]) == (["keras", "tensorflow"], "tensorflow")
    assert "tensorflow[and-cuda]" in image(plugins.keras(backend="tensorflow"), accelerator="A100").pip
    own = image(plugins.keras(backend="tensorflow"), own=Image(pip=["tensorflow-cpu"]))
    assert sorted(own.pip) == ["keras", "tensorflow-cpu"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keras", ["keras on 2 ranks", "jax or torch", "write --plugins jax,keras or ", "keras(backend=torch),torch"]),
        ("torch,keras", ["jax or torch", "keras(backend=torch),torch"]),
        ("keras(backend=torch)", ["needs the plugin torch", '--plugins "keras(backend=torch),torch"']),
        ("jax,keras(backend=tensorflow)", ["plugin jax", "tf.distribute", "write jax,keras"]),
        ("keras(backend=tensorflow),torch", ["plugin torch", "tf.distribute"]),
    ],
)
def test_ranks_that_nothing_joins_are_refused_with_what_to_write(text: str, says: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        PoolSpec(None, nodes=2, plugins=plugins.parse_plugins(text))  # type: ignore[arg-type]
    for words in says:
        assert words in str(refused.value)


def test_several_ranks_with_tensorflow_are_told_that_each_trains_alone() -> None:
    with pytest.warns(UserWarning, match="tf.distribute"):
        PoolSpec(Local(), nodes=2, plugins=(plugins.keras(backend="tensorflow"),)).full_image  # noqa: B018


def test_a_variable_that_contradicts_the_backend_is_refused() -> None:
    with pytest.raises(SpecError, match=r"write keras\(backend=torch\)"):
        image(plugins.jax(), plugins.keras(), own=Image(env={"KERAS_BACKEND": "torch"}))


def test_torch_is_built_for_cuda_only_where_there_is_some() -> None:
    assert image(plugins.torch(cuda="cu128"), accelerator="A100").env["UV_TORCH_BACKEND"] == "cu128"
    assert "UV_TORCH_BACKEND" not in image(plugins.torch(cuda="cu128")).env
    assert "UV_TORCH_BACKEND" not in image(plugins.torch(cuda="cu128"), accelerator="Trainium1").env


@pytest.mark.parametrize(
    ("accelerator", "version", "expected"),
    [
        ("A100", None, "cu130"),
        ("V100", None, "cu126"),
        ("P100", "2.8.0", "cu126"),
        ("V100", "2.8.0", "cu128"),
        ("V100", "2.11.0", "cu126"),
        ("GH200", None, "cu130"),
        ("RTX 5090", "2.8", "cu128"),
        ("B200", "2.13.0", "cu130"),
        ("A100", "2.5.1", None),
    ],
)
def test_the_build_of_torch_is_one_that_runs_on_the_accelerator(
    accelerator: str, version: str | None, expected: str | None
) -> None:
    made = image(plugins.torch(version=version), accelerator=accelerator)
    assert made.env.get("UV_TORCH_BACKEND") == expected
    # Another build is another environment.
    assert (made.digest == image(plugins.torch(version=version)).digest) is (expected is None)


@pytest.mark.parametrize(
    ("plugin", "accelerator", "python", "says"),
    [
        ("torch(cuda=cu126)", "B200", None, ["cu126", "not built for compute capability 10.0", "chooses cu130"]),
        ("torch(cuda=cu128)", "V100", None, ["not built for compute capability 7.0", "chooses cu126"]),
        ("torch(cuda=cu124)", "RTX 5090", None, ["nothing for compute capability 12.0 yet", "chooses cu130"]),
        ("torch(cuda=cu128,version=2.13.0)", "A100", None, ["torch 2.13 is not built so", "torch from 2.7 to 2.11 is"]),
        ("torch(version=2.15.0)", "V100", None, ["torch 2.15", "compute capability 7.0", "from 2.6 to 2.14 do"]),
        ("torch(version=2.5.1)", "B200", None, ["torch 2.5", "those of torch from 2.7 on do"]),
        ("torch", "T4G", None, ["builds nothing for compute capability 7.5", "Arm", "torch @ URL"]),
        ("jax(cuda=cu130)", "A100", "3.10", ["no release of JAX for Python 3.10", "jax(), which chooses jax[cuda12]"]),
    ],
)
def test_what_no_package_does_is_refused_in_words(
    plugin: str, accelerator: str, python: str | None, says: list[str]
) -> None:
    with pytest.raises(SpecError) as refused:
        image(*plugins.parse_plugins(plugin), accelerator=accelerator, own=Image(python=python))
    for words in [accelerator.replace(" ", "_"), *says]:
        assert words in str(refused.value)


def test_a_torch_of_the_users_own_is_left_alone() -> None:
    own = Image(pip=("torch @ https://wheels.example/torch-2.14-cp312.whl",))
    assert "UV_TORCH_BACKEND" not in image(plugins.torch(), accelerator="T4G", own=own).env


def test_more_ranks_than_accelerators_are_refused() -> None:
    with pytest.raises(SpecError, match="--accelerator A100:4"):
        image(plugins.torch(), accelerator="A100:2", ranks_per_node=4)


def test_ranks_of_one_machine_are_counted_over_its_nodes() -> None:
    assert [rank_resources.place(info) for info in infos([], 2, 2)] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert rank_resources.share(8, 1, 4) == [2, 3]
    assert rank_resources.share(1, 0, 2) == []


def test_nccl_takes_the_interface_of_the_pool_and_warns_where_nobody_has_settled_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_DEBUG")

    def prepared(count: int = 2, accelerators: int = 1, **env: str) -> list[str | None]:
        with monkeypatch.context() as patch:
            for name in names:
                # (What was not set is removed again at the end.)
                patch.setenv(name, "")
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            rank_resources.prepare_nccl(replace(infos([], count)[0], accelerators=accelerators))
            return [os.environ.get(name) for name in names]

    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    lo = f"={rank_resources.interface('127.0.0.1')}"
    assert prepared() == [lo, None, "WARN"]
    assert prepared(accelerators=0) == [lo, None, None]
    assert prepared(count=1) == [None, None, None]
    assert prepared(NCCL_SOCKET_IFNAME="eth1", NCCL_DEBUG="INFO") == ["eth1", None, "INFO"]
    (tmp_path / "nccl.conf").write_text("# NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME==ens1f0\n")
    assert prepared() == [None, None, "WARN"]


def test_the_line_that_nccl_begins_with_is_noise_and_its_warnings_are_not() -> None:
    noise = re.compile(rank_resources.NCCL_NOISE)
    assert noise.fullmatch("NCCL version 2.28.9+cuda13.0")
    assert noise.fullmatch("gpu1:2311:2311 [0] NCCL version 2.27.5+cuda12.9")
    assert not noise.fullmatch("gpu1:2311:2399 [0] socket.c:540 NCCL WARN Net : Connection refused")


def test_the_interface_of_an_address_is_found_by_the_address() -> None:
    loopback = [name for name, found in psutil.net_if_addrs().items() if "127.0.0.1" in [a.address for a in found]]
    assert rank_resources.interface("127.0.0.1") == rank_resources.interface("127.0.0.9") == loopback[0]
    assert rank_resources.interface("192.0.2.1") is None


def test_proxies_are_passed_by_for_peers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "intern.example")
    monkeypatch.setenv("NO_PROXY", "")
    rank_resources.past_proxies(infos([], 2)[0])
    assert os.environ["no_proxy"] == "intern.example,127.0.0.1"
    assert os.environ["NO_PROXY"] == "127.0.0.1"


def test_a_coordinator_that_never_comes_is_named() -> None:
    port = free_port()
    with pytest.raises(SkyError, match=f"127.0.0.1:{port} could not be reached"):
        rank_resources.wait_for("127.0.0.1", port, 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        rank_resources.wait_for("127.0.0.1", server.getsockname()[1], 5)


def test_local_nodes_take_the_notebooks_own_jax_with_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(own: Image | None = None, **given: str) -> tuple[str, ...]:
        h100 = Accelerator.parse("H100")
        return PoolSpec(Local(), plugins=(plugins.jax(**given),), accelerator=h100, image=own or Image()).full_image.pip

    assert asked() == ("jax[cuda13]" if sys.version_info >= (3, 11) else "jax[cuda12]",)
    # As an environment has it that takes CUDA's libraries from the system.
    (tmp_path / "jax_cuda12_plugin").mkdir()
    (tmp_path / "jax_cuda12_plugin" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert asked() == asked(cuda="cu128") == ("jax",)
    assert asked(cuda="cu130") == ("jax[cuda13]",)
    assert asked(own=Image(python="3.13")) == ("jax[cuda13]",)
