"""The documentation has every public name, and says of each what it takes, returns and raises.

That it builds without a warning, and that docstrings agree with the code, `python3 dev.py check` sees.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.plugins.parse import FACTORIES

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^\.\. auto(?:class|function|data|exception|module):: (\S+)$", PAGE, re.MULTILINE)
PACKAGE = Path(sky.__file__).parent
LONGEST_SUMMARY = 79
# What these take is in the docstrings of the same names in the standard library.
INHERITED = {"Future.add_done_callback", "Future.done", "Future.cancelled", "CellError.derive", "BroadcastError.derive"}


def test_the_api_reference_has_every_public_name_once() -> None:
    public = [*sky._HOMES, "sky_jupyter.spec.accelerators", "sky_jupyter.plugins.Step", "sky_jupyter.plugins.Secret"]
    public.append("sky_jupyter.node.runtime.interruption.PoolInterruption")
    assert sorted(NAMES) == sorted([*public, *(f"sky_jupyter.plugins.{name}" for name in FACTORIES)])


def _public() -> Iterator[tuple[str, Any]]:
    """Yield each public function, class, method and property with its name."""
    faces = {name: getattr(sky, name) for name in sky._HOMES}
    faces.update({f"plugins.{name}": factory for name, factory in FACTORIES.items()})
    for name, face in faces.items():
        if inspect.isclass(face) or inspect.isfunction(face):
            yield name, face
        # What a provider's methods take is in their contract, `Provider`.
        if inspect.isclass(face) and face not in (sky.AWS, sky.Kubeflow, sky.Kubernetes, sky.Local, sky.SSH, sky.Slurm):
            for member, value in inspect.getmembers(face):
                ours = getattr(getattr(value, "fget", value), "__module__", None) or ""
                if not member.startswith("_") and ours.startswith("sky_jupyter"):
                    yield f"{name}.{member}", value


PUBLIC = {name: value for name, value in _public() if name not in INHERITED}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_takes_and_returns(name: str) -> None:
    value = PUBLIC[name]
    text = inspect.getdoc(value) or ""
    assert text, "it has no docstring"
    summary, *rest = text.splitlines()
    assert len(summary) <= LONGEST_SUMMARY
    assert not rest or not rest[0], "the summary is one line, with an empty one after it"
    if isinstance(value, property):
        return
    if not inspect.isclass(value) or dataclasses.is_dataclass(value):
        described = re.findall(r"^(\*{0,2}\w+)(?: :|$)", _section(text, "Parameters"), re.MULTILINE)
        assert [item.lstrip("*") for item in described] == _parameters(value)
    if not inspect.isclass(value) and inspect.signature(value).return_annotation not in ("None", None):
        assert _section(text, "Returns")


def test_every_docstring_begins_with_one_short_line() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                if len(summary) > LONGEST_SUMMARY:
                    found.append(f"{path.relative_to(PACKAGE)}: {summary}")
    assert found == []


def _parameters(value: Any) -> list[str]:
    names = [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]
    # Functions that give a shape to overloads take them by position.
    return [name for name in names if not name.startswith("_")]


def _section(text: str, title: str) -> str:
    """Return a numpydoc section's text; empty where there is none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n-+$|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_the_files_that_contributing_names_exist() -> None:
    root = Path(__file__).parent.parent
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text[text.index("## Where things are") : text.index("## Tiers")])
    named = [path for path in paths if "NAME" not in path and path.count("/") + path.count(".") > 1]
    assert named
    missing = [path for path in named if not (root / path).exists() and not (root / "sky_jupyter" / path).exists()]
    assert missing == []
