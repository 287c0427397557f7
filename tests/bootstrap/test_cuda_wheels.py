"""What the catalogue says of packages is so in the registry: they resolve for every accelerator, with its CUDA.

Nothing is installed, and no GPU is needed. Without the registry these are skipped; so are PyTorch's own indexes
where only a mirror of the registry can be reached.
"""

from __future__ import annotations

import functools
import os
import subprocess

import pytest
import uv
from packaging.requirements import Requirement

from sky_jupyter import plugins
from sky_jupyter.bootstrap import local_environment
from sky_jupyter.spec.accelerators import CATALOGUE, NVIDIA
from sky_jupyter.spec.cuda_builds import TORCH
from sky_jupyter.spec.pool_spec import Accelerator, Image, PoolSpec

PYTHON = "3.12"
ARMS = {False: "x86_64-manylinux_2_28", True: "aarch64-manylinux_2_28"}
MODELS = [model for model in CATALOGUE.values() if model.maker == NVIDIA]


def image(plugin: str, accelerator: str, python: str = PYTHON) -> Image:
    given = plugins.parse_plugins(plugin)
    return PoolSpec(
        None, plugins=given, image=Image(python=python), accelerator=Accelerator.parse(accelerator)
    ).full_image


@functools.cache
def resolved(asked: tuple[str, ...], platform: str, torch: str | None = None) -> dict[str, str]:
    """What uv would install: names and versions."""
    env = {key: value for key, value in os.environ.items() if key not in ("UV_TORCH_BACKEND", "UV_OFFLINE")}
    # (Where they cannot be reached, to ask again takes minutes.)
    env |= {"UV_HTTP_RETRIES": "0"} if torch else {}
    command = [uv.find_uv_bin(), "pip", "compile", "-", "--no-header", "--no-annotate", "--only-binary=:all:"]
    command += [
        "--python-version",
        PYTHON,
        "--python-platform",
        platform,
        *(["--torch-backend", torch] if torch else []),
    ]
    done = subprocess.run(command, input="\n".join(asked), env=env, capture_output=True, text=True, timeout=200)
    if done.returncode and ("dns error" in done.stderr or "error sending request" in done.stderr):
        pytest.skip(f"needs {'the indexes of PyTorch' if torch else 'a package registry'}, which cannot be reached")
    assert done.returncode == 0, done.stderr
    assert "does not have an extra" not in done.stderr
    lines = (line.partition(" ;")[0].partition("==") for line in done.stdout.splitlines() if "==" in line)
    return {name.partition("[")[0]: version for name, _, version in lines}


def cuda_of(found: dict[str, str]) -> int:
    """The major number of the CUDA that packages bring."""
    return int(next(found[name] for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12") if name in found)[:2])


@pytest.mark.long
@pytest.mark.parametrize("arm", [False, True], ids=["x86_64", "aarch64"])
@pytest.mark.parametrize("extra", sorted({model().jax for model in MODELS} - {None}))
def test_jax_resolves_with_the_cuda_that_its_accelerators_take(extra: str, arm: bool) -> None:
    found = resolved((extra,), ARMS[arm])
    (name,) = Requirement(extra).extras
    assert found[f"jax-{name}-plugin"] == found["jax"]
    assert f"cuda{cuda_of(found)}" == name
    for model in MODELS:
        if model().jax == extra:
            assert model().takes_cuda(cuda_of(found)), model.name


@pytest.mark.long
@pytest.mark.parametrize("arm", [False, True], ids=["x86_64", "aarch64"])
def test_the_registrys_own_torch_and_jax_go_together(arm: bool) -> None:
    found = resolved(("torch", "jax[cuda13]"), ARMS[arm])
    assert cuda_of(found) == 13
    assert {"jax-cuda13-plugin", "torch"} <= set(found)
    release = tuple(int(part) for part in found["torch"].split(".")[:2])
    builds = [build for build in TORCH if build.is_in(release) and build.name.startswith("cu13")]
    assert builds, "a release of torch that the table does not know"


@pytest.mark.long
@pytest.mark.parametrize("arm", [False, True], ids=["x86_64", "aarch64"])
@pytest.mark.parametrize("build", sorted({build.name for build in TORCH}))
def test_each_build_of_torch_is_in_its_index(build: str, arm: bool) -> None:
    found = resolved(("torch",), ARMS[arm], build)
    assert found["torch"].endswith(f"+{build}")


def test_two_choices_of_cuda_never_share_an_environment() -> None:
    asked = ["jax(cuda=cu12)", "jax(cuda=cu13)", "torch(cuda=cu126)", "torch(cuda=cu130)", "torch(cuda=cu132)", "torch"]
    images = [image(text, "H100") for text in asked] + [image("torch", "V100"), image("torch", "H100", "3.13")]
    keys = [local_environment._key(one, []) for one in images]
    # (What is chosen and what is written are one environment where they are the same.)
    assert keys[5] == keys[3]
    assert keys[6] == keys[2]
    assert len(set(keys)) == len(keys) - 2
