"""The catalogue of accelerators: texts that are read, names that drivers have, and the packages that suit them."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import SpecError
from sky_jupyter.spec import accelerators
from sky_jupyter.spec.accelerators import CATALOGUE, recognised

PAGE = Path(__file__).parent.parent / "docs" / "accelerators.md"


@pytest.mark.parametrize(
    ("text", "same", "written"),
    [
        ("A100", sky.accelerators.A100(), "A100"),
        ("A100:8", sky.accelerators.A100(count=8), "A100:8"),
        (" a100-40gb:4 ", sky.accelerators.A100(4, memory="40GB"), "A100-40GB:4"),
        ("H100-80GB", sky.accelerators.H100(memory=80), "H100-80GB"),
        ("A100 80 GiB", sky.accelerators.A100(memory="80"), "A100-80GB"),
        ("RTX 4090", sky.accelerators.RTX_4090(), "RTX_4090"),
        ("rtx-4070-ti-super:2", sky.accelerators.RTX_4070_Ti_SUPER(count=2), "RTX_4070_Ti_SUPER:2"),
        # It is made with one size only.
        ("T4-16GB", sky.accelerators.T4(), "T4"),
        ("a6000", sky.accelerators.RTX_A6000(), "RTX_A6000"),
        ("trn2:16", sky.accelerators.Trainium2(16), "Trainium2:16"),
        ("TPU-v5e", sky.accelerators.TPUv5e(), "TPUv5e"),
        ("custom:Quadro K2200:2", sky.accelerators.Custom("Quadro K2200", count=2), "custom:Quadro K2200:2"),
        ("custom:Quadro P6000-24GB", sky.accelerators.Custom("Quadro P6000", memory=24), "custom:Quadro P6000-24GB"),
    ],
)
def test_a_text_and_a_call_make_the_same(text: str, same: sky.Accelerator, written: str) -> None:
    read = sky.Accelerator.parse(text)
    assert read == same
    assert hash(read) == hash(same)
    assert str(read) == written
    assert sky.Accelerator.parse(written) == read == pickle.loads(pickle.dumps(read))


def test_all_names_are_read_again_and_have_what_is_asked_of_them() -> None:
    for name in accelerators.names():
        one = sky.Accelerator.parse(name)
        assert str(one) == name
        assert one.memory
        assert (one.capability is not None) is (one.maker == "NVIDIA")
        if one.maker == "NVIDIA":
            # For processors by Arm PyTorch begins with Ampere.
            assert one.torch in ("cu126", "cu130") or name == "T4G"
            assert one.jax in ("jax[cuda12]", "jax[cuda13]")
        model = getattr(sky.accelerators, one.name)
        assert model().name == one.name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A1000", "unknown accelerator 'A1000'; did you mean 'A100'?"),
        ("RTX 4091", "did you mean 'RTX_4090'?"),
        ("trainum2", "did you mean 'Trainium2'?"),
        ("Imaginary", "another one of NVIDIA's is custom:NAME"),
        ("H100-70GB", "H100 has 80 or 94 GB, not 70; leave the size out"),
        ("T4-32GB", "T4 has 16 GB, not 32"),
        ("A100:0", "is not NAME or NAME:COUNT"),
        ("A100:two", "is not NAME or NAME:COUNT"),
        ("A100:2000", "count must be a whole number from 1 to 1024, not 2000"),
        ("", "is not NAME or NAME:COUNT"),
        ("custom:", "is not NAME or NAME:COUNT"),
        ("custom:a/b", "is not custom: and a name of letters"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=re.escape(told)):
        sky.Accelerator.parse(text)


def test_calls_refuse_what_cannot_be() -> None:
    with pytest.raises(SpecError, match=r"must be an Accelerator, such as sky.accelerators.A100\(count=8\)"):
        sky.Compute(accelerator=sky.accelerators.A100)  # type: ignore[arg-type]
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(SpecError, match="count must be a whole number"):
            sky.accelerators.A100(count=wrong)  # type: ignore[arg-type]
    for size in ("forty", "40TB", 0, True):
        with pytest.raises(SpecError, match="memory must be in GB, such as 40 or '40GB'"):
            sky.accelerators.A100(memory=size)
    with pytest.raises(SpecError, match="an accelerator must be a name such as 'A100', not 5"):
        sky.Accelerator(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "model", "memory"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", 80),
        ("NVIDIA A100-PCIE-40GB", "A100", 40),
        ("NVIDIA A100 80GB PCIe", "A100", 80),
        ("MIG slice of NVIDIA A100-SXM4-40GB", "A100", 40),
        ("NVIDIA A10G", "A10G", 24),
        ("Tesla V100-SXM2-32GB", "V100", 32),
        ("Tesla T4", "T4", 16),
        ("NVIDIA L40S", "L40S", 48),
        ("NVIDIA H100 80GB HBM3", "H100", 80),
        ("NVIDIA H100 PCIe", "H100", 80),
        ("NVIDIA H100 NVL", "H100", 94),
        ("NVIDIA GH200 480GB", "GH200", None),
        ("NVIDIA GH200 144G HBM3e", "GH200", None),
        ("NVIDIA B200", "B200", None),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX_4070_Ti_SUPER", 16),
        ("NVIDIA GeForce RTX 3080", "RTX_3080", None),
        ("NVIDIA RTX 6000 Ada Generation", "RTX_6000_Ada", 48),
        ("Quadro RTX 6000", "Quadro_RTX_6000", 24),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX_PRO_6000", 96),
        ("Quadro K2200", None, None),
        ("", None, None),
    ],
)
def test_a_drivers_name_is_recognised(name: str, model: str | None, memory: int | None) -> None:
    assert recognised(name) == (model, memory)


@pytest.mark.parametrize(
    ("asked", "name", "fits"),
    [
        ("A100", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("H100-94GB", "NVIDIA H100 PCIe", False),
        ("RTX 3080", "NVIDIA GeForce RTX 3080 Ti", False),
        ("RTX_3080-12GB", "NVIDIA GeForce RTX 3080", True),
        ("custom:quadro k2200", "Quadro K2200", True),
        ("custom:K2200", "Quadro K2200", True),
        ("custom:K220", "Quadro K2200", False),
    ],
)
def test_a_device_fits_by_what_its_driver_calls_it(asked: str, name: str, fits: bool) -> None:
    assert sky.Accelerator.parse(asked).fits(name) is fits


def test_type_checkers_and_completion_have_the_names_of_the_catalogue() -> None:
    tree = ast.parse(Path(accelerators.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    named = [ast.unparse(name) for node in block.body if isinstance(node, ast.Assign) for name in node.targets]
    assert named == list(CATALOGUE)
    assert set(named) < set(dir(sky.accelerators))
    assert all(getattr(accelerators, name) is model for name, model in CATALOGUE.items())


def test_the_page_has_the_whole_catalogue() -> None:
    # `python -m tests.test_accelerators` writes it.
    assert accelerators_table() in PAGE.read_text(encoding="utf-8")


def accelerators_table() -> str:
    """The table of the page."""
    lines = ["| name | memory, GB | capability | torch | JAX |", "|---|---|---|---|---|"]
    for model in CATALOGUE.values():
        one = model()
        capability = ".".join(map(str, one.capability)) if one.capability else one.maker
        sizes = ", ".join(map(str, model.memories))
        jax = f"`{one.jax}`" if one.jax else ""
        lines.append(f"| {model.name} | {sizes} | {capability} | {', '.join(one.torch_builds())} | {jax} |")
    return "\n".join([*lines, "<!-- end -->"])


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(old[: old.index("| name |")] + accelerators_table() + "\n" + old.partition("<!-- end -->\n")[2])
