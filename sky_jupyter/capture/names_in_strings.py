"""Names in strings: shell lines, magics, format strings, annotations, ``eval``.

They are guesses: a string may mean something else.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")
_AT = re.compile(r"@([A-Za-z_]\w*)")


def words(text: str) -> set[str]:
    """Return all words that could be names, without attributes."""
    return set(_WORD.findall(text))


def at_names(text: str) -> set[str]:
    """Return names in an expression for pandas, as in ``column > @name``."""
    return set(_AT.findall(text))


def code_names(text: str) -> set[str]:
    """Return all names in Python code; none if it is invalid."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def fields(text: str) -> set[str]:
    """Return names in the braces of a format string."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        expressions = re.findall(r"\{([^{}]+)\}", text)
    else:
        expressions = [part for _, field, spec, _ in parts for part in (field, spec) if part]
    return {name for expression in expressions for name in code_names(expression) or words(expression)}


def expansions(text: str) -> set[str]:
    """Return names that IPython expands in a shell line: ``{expression}``, ``$name``."""
    return fields(text) | set(_DOLLAR.findall(text))


def annotation_names(annotations: Iterable[object]) -> set[str]:
    """Return names in annotations that are strings or contain strings."""
    names: set[str] = set()
    for annotation in annotations:
        if isinstance(annotation, str):
            try:
                annotation = ast.parse(annotation.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError):
                continue
            names.update(node.id for node in _types(annotation) if isinstance(node, ast.Name))
        if isinstance(annotation, ast.expr):
            constants = (node.value for node in _types(annotation) if isinstance(node, ast.Constant))
            names |= annotation_names(text for text in constants if isinstance(text, str))
    return names


def _types(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an annotation that are types: those of ``Literal`` are not."""
    yield node
    for part in ast.iter_child_nodes(node):
        if isinstance(node, ast.Subscript) and part is node.slice:
            name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if name == "Literal":
                continue
            if name == "Annotated" and isinstance(part, ast.Tuple):
                part = part.elts[0]
        yield from _types(part)


def plain(text: str) -> str:
    """Return code as IPython transforms it, with magics and shell lines as calls."""
    from IPython.core.inputtransformer2 import TransformerManager

    transformed: str = TransformerManager().transform_cell(text)
    return transformed
