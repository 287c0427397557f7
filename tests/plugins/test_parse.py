"""Plugins as people write them, and what is said of those that cannot be."""

from __future__ import annotations

import subprocess
import sys

import cloudpickle
import pytest

from sky_jupyter import plugins
from sky_jupyter.errors import SpecError
from sky_jupyter.plugins import Plugin, parse_plugins, validate_order


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jax,keras", [plugins.jax(), plugins.keras()]),
        (" jax , keras(backend=jax) ", [plugins.jax(), plugins.keras(backend="jax")]),
        ("keras(backend=torch),torch", [plugins.keras(backend="torch"), plugins.torch()]),
        ("torch,keras(backend=torch)", [plugins.torch(), plugins.keras(backend="torch")]),
        ("jax(cuda=cu128)", [plugins.jax(cuda="cu128")]),
        ('"jax(cuda=cu128)"', [plugins.jax(cuda="cu128")]),
        ("'jax,keras'", [plugins.jax(), plugins.keras()]),
        ("jax(cuda='cu128', devices=2)", [plugins.jax(cuda="cu128", devices=2)]),
        ("jax(cuda=None)", [plugins.jax()]),
        ("jax,keras(quiet=false)", [plugins.jax(), plugins.keras(quiet=False)]),
        ("torch(version=2.10, timeout=20)", [plugins.torch(version="2.10", timeout=20.0)]),
        ("", []),
    ],
)
def test_texts_are_read_as_the_plugins_they_name(text: str, expected: list[Plugin]) -> None:
    assert list(parse_plugins(text)) == expected


def test_what_a_plugin_says_of_itself_can_be_read_again() -> None:
    given = (plugins.jax(cuda="cu130", devices=3), plugins.keras(quiet=False), plugins.torch(version="2.10"))
    assert parse_plugins(",".join(str(plugin) for plugin in given)) == given


def test_texts_and_values_may_be_mixed() -> None:
    mine = Plugin.create("mine")
    assert parse_plugins([plugins.jax(), "keras", mine]) == (plugins.jax(), plugins.keras(), mine)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kera", ["unknown plugin 'kera'", "jax, keras, torch", "did you mean 'keras'?"]),
        ("jax,numpy", ["unknown plugin 'numpy'", "jax, keras, torch"]),
        ("keras,jax", ["must come after the plugin jax", "--plugins jax,keras"]),
        ("torch,keras,jax(cuda=cu12)", ['--plugins "torch,jax(cuda=cu12),keras"']),
        ("jax,jax", ["jax is given 2 times"]),
        ("jax(cud=cu128)", ["no argument 'cud'", "cuda, devices", "did you mean 'cuda'?"]),
        ("jax(cu128)", ["jax(cuda=cu128)"]),
        ("jax(cuda=cu118)", ["cu118", "cu12x", "cu13x"]),
        ("jax(cuda=12.4)", ["did you mean 'cu124'?"]),
        ("jax(cuda=cu124,cuda=cu128)", ["cuda is given twice"]),
        ("jax(devices=two)", ["devices=two", "int"]),
        ("jax(devices=0)", ["above 0"]),
        ("jax(cuda=)", ["value is missing"]),
        ("jax(cuda='cu128", ["closing ' is missing"]),
        ("jax(", ["closing ) is missing"]),
        ("jax)", ["too many"]),
        ("jax,keras(backend=jaxx)", ["did you mean 'jax'?"]),
        ("jax,keras(quiet=2)", ["quiet=2", "bool"]),
        ("torch(backend=ncl)", ["gloo, nccl", "did you mean 'nccl'?"]),
        ("torch(cuda=12.8)", ["cu128"]),
        ("torch(timeout=0)", ["above 0"]),
        ("torch(version=new)", ["2.13.0"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_right_spelling(text: str, says: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        parse_plugins(text)
    for part in says:
        assert part in str(refused.value)


def test_values_are_held_to_the_same_order() -> None:
    with pytest.raises(SpecError, match="--plugins jax,keras"):
        parse_plugins([plugins.keras(), plugins.jax()])
    with pytest.raises(SpecError, match=r"write sky\.plugins\.jax\(\)"):
        parse_plugins([plugins.jax])  # type: ignore[list-item]
    validate_order([plugins.jax(), plugins.keras()])


@pytest.mark.parametrize("text", ["jax,keras", "keras(backend=torch),torch"])
def test_plugins_travel_and_import_no_framework_on_the_way(text: str) -> None:
    code = (
        "import sys, cloudpickle; from sky_jupyter.plugins import parse_plugins\n"
        f"data = cloudpickle.dumps(parse_plugins({text!r}))\n"
        f"assert cloudpickle.loads(data) == parse_plugins({text!r})\n"
        "print([name for name in ('jax', 'keras', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "[]", done.stderr
    copies = cloudpickle.loads(cloudpickle.dumps(parse_plugins(text)))
    assert [plugin.around_process is not None for plugin in copies] == [True, True]
