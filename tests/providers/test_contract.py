"""The pool asks machines and providers by their contract, and never which kind they are."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import sky_jupyter

PACKAGE = Path(sky_jupyter.__path__[0])
# Classes of one kind of machine, provider or host: nobody but their own modules asks for them.
CLASSES = {"RemoteHost", "LocalMachine", "SSHMachine", "LinkMachine", "Local", "SSH", "AWS"}
KINDS = {"local", "ssh", "aws"}
OWN = {"machines/link/machine.py"}


@functools.cache
def nodes() -> Sequence[tuple[str, ast.expr]]:
    """All calls and comparisons of all modules, each with its module's path."""
    found: list[tuple[str, ast.expr]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(PACKAGE).as_posix()
        found += [(name, node) for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.Compare))]
    return found


def name_of(node: ast.AST) -> str:
    """The last word of a name: ``SSH`` of ``providers.SSH``."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def asks_for_a_class(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and name_of(node.func) == "isinstance" and len(node.args) == 2):
        return False
    return any(name_of(part) in CLASSES for part in ast.walk(node.args[1]))


def asks_for_a_kind(node: ast.expr) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    words = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
    return any(name_of(side) == "kind" for side in sides) and bool(words & KINDS)


def guesses_an_attribute(node: ast.expr) -> bool:
    """Whether a provider is asked by getattr for what the contract has."""
    if not (isinstance(node, ast.Call) and name_of(node.func) in ("getattr", "hasattr") and len(node.args) > 1):
        return False
    wanted = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
    return name_of(node.args[0]) == "provider" and wanted in ("kind", "provisions", "offline", "default_nodes")


@pytest.mark.parametrize("asks", [asks_for_a_class, asks_for_a_kind, guesses_an_attribute])
def test_nobody_asks_which_kind_of_machine_or_provider_it_is(asks: Callable[[ast.expr], bool]) -> None:
    assert [f"{path}:{node.lineno}" for path, node in nodes() if path not in OWN and asks(node)] == []


def test_one_function_makes_what_a_host_is_told() -> None:
    calls = [path for path, node in nodes() if isinstance(node, ast.Call) and name_of(node.func) == "HostConfig"]
    assert calls == ["pool/hosts/launch.py"]
