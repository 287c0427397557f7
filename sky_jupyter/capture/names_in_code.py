"""Names in code and strings: magics, shell lines, annotations, ``eval``.

Those in strings are guesses: a string may mean something else.
"""

from __future__ import annotations

import ast
import dis
import re
import string
import types
from collections.abc import Iterable, Iterator

from ..node.serialization.global_names import nested_code, read_here

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")
_AT = re.compile(r"@([A-Za-z_]\w*)")
_MAGICS = {"run_line_magic", "run_cell_magic"}
_NAMESPACES = {"globals"}
_EVALUATORS = {"eval", "exec"}
PANDAS = {"query", "eval"}
"""Methods that read ``@name`` from their caller's frame."""
_ASKING = {"get_ipython", *_NAMESPACES, *_EVALUATORS, *PANDAS}


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


def code_guesses(code: types.CodeType) -> set[str]:
    """Return global names that a function may read by way of its strings."""
    guesses: set[str] = set()
    for inner in nested_code(code):
        attributes = set(inner.co_names)
        if not attributes & _ASKING:
            continue
        reads = read_here(inner)
        texts = [text for const in inner.co_consts for text in _texts(const)]
        for text in texts:
            if "get_ipython" in reads:
                guesses |= words(text) if attributes & _MAGICS else expansions(text)
            if reads & _NAMESPACES:
                guesses |= {text} if text.isidentifier() else fields(text)
            if reads & _EVALUATORS:
                guesses |= code_names(text)
            if attributes & PANDAS:
                guesses |= at_names(text)
    return guesses


def _texts(const: object) -> Iterator[str]:
    if isinstance(const, str):
        yield const
    elif isinstance(const, (tuple, frozenset)):
        for part in const:
            yield from _texts(part)


def code_writes(code: types.CodeType) -> set[str]:
    """Return names that a function's code declares global and assigns or deletes."""
    operations = ("STORE_GLOBAL", "DELETE_GLOBAL")
    steps = (step for inner in nested_code(code) for step in dis.get_instructions(inner))
    return {step.argval for step in steps if step.opname in operations}


def code_attributes(code: types.CodeType) -> set[str]:
    """Return all names in a function's code, attributes included."""
    return {name for inner in nested_code(code) for name in inner.co_names}
