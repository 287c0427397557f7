"""Statements of a plain cell that change modules: attributes, seeds, switches.

Only statements in the cell itself are found, not those in its functions.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..node.serialization.process_settings import JAX

_LONGEST = 60
# Functions that set something in their process, by full name.
_SETTERS = re.compile(
    r"random\.seed|numpy\.random\.seed|torch\.manual_seed|torch\.cuda\.manual_seed(_all)?|torch\.use_deterministic_algorithms"
    r"|torch\.set_(?!default_dtype)\w+|keras\.utils\.set_random_seed|keras\.(config|mixed_precision|backend)\.set_\w+"
    r"|tensorflow\.random\.set_seed|jax\.config\.update|transformers\.set_seed|locale\.setlocale|sys\.setrecursionlimit"
)
# Changes that `Settings` detects.
_FOLLOWED = re.compile(r"os\.environ|pandas\.options\.|(matplotlib|pylab)(\.pyplot)?\.rcParams|warnings\.filters")


@dataclass(frozen=True)
class Statement:
    """Change of a module by a cell.

    Parameters
    ----------
    module : str
        Full name of the module.
    what : str
        Attribute or function, as the cell writes it.
    line : str
        The statement.
    """

    module: str
    what: str
    line: str


def statements(source: str, namespace: Mapping[str, Any]) -> list[Statement]:
    """Return a cell's changes of modules.

    ``source`` is the output of IPython's ``transform_cell``, ``namespace`` the notebook's after the cell.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    found = []
    for node in _outside_functions(tree):
        for holder, line in _changes(node):
            one = _of_module(holder, line, namespace)
            if one is not None and one not in found:
                found.append(one)
    return found


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _outside_functions(node)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield what a node sets or calls, with the node."""
    if isinstance(node, ast.Assign):
        yield from ((target, node) for target in node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        yield node.target, node
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield ast.Attribute(node.args[0], name.value, ast.Store()), node
        else:
            yield node.func, node


def _of_module(target: ast.expr, line: ast.AST, namespace: Mapping[str, Any]) -> Statement | None:
    """Return a change as a statement if its target is an attribute of a module."""
    inner = target.value if isinstance(target, ast.Subscript) else target
    names = _names(inner)
    if len(names) < 2 or not isinstance(module := namespace.get(names[0]), ModuleType):
        return None
    full = ".".join([module.__name__, *names[1:]])
    if isinstance(line, ast.Call) and not isinstance(inner.ctx, ast.Store):  # type: ignore[attr-defined]
        if not _SETTERS.fullmatch(full) or _is_followed(full, line):
            return None
    elif _FOLLOWED.match(full):
        return None
    holder: Any = module
    for name in names[1:-1]:
        holder = getattr(holder, name, None)
        module = holder if isinstance(holder, ModuleType) else module
    if not isinstance(holder, (ModuleType, type)) and not isinstance(line, ast.Call):
        return None
    text = ast.unparse(line)
    return Statement(module.__name__, ast.unparse(inner), text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _names(node: ast.expr) -> list[str]:
    """Return the names in ``a.b.c``; empty for another form."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _is_followed(full: str, call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return full == "jax.config.update" and isinstance(first, ast.Constant) and first.value in JAX
