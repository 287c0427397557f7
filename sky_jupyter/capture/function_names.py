"""Names that a function's code writes, has as attributes, or may read by strings."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

from ..node.serialization.global_names import nested_code, read_here
from .names_in_strings import at_names, code_names, expansions, fields, words

_MAGICS = {"run_line_magic", "run_cell_magic"}
_NAMESPACES = {"globals"}
_EVALUATORS = {"eval", "exec"}
PANDAS = {"query", "eval"}
"""Methods that read ``@name`` from their caller's frame."""
_ASKING = {"get_ipython", *_NAMESPACES, *_EVALUATORS, *PANDAS}


def code_guesses(code: types.CodeType) -> set[str]:
    """Return global names in a function's strings that it may read by them."""
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
