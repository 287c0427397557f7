"""Which names of the notebook the code of its functions and classes reads and writes."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from ..node.payload import main_namespace
from .texts import at_names, code_names, expansions, fields, words

_MAGICS = {"run_line_magic", "run_cell_magic"}
_NAMESPACES = {"globals"}
_EVALUATORS = {"eval", "exec"}
PANDAS = {"query", "eval"}
"""Methods that read ``@name`` from where they are called."""


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """`code` and all code objects inside it: nested functions, class bodies, comprehensions."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested_code(const)


def code_reads(code: types.CodeType) -> set[str]:
    """Global names that a function's code may read or delete, nested code included."""
    return {name for inner in nested_code(code) for name in _read_here(inner)}


def _read_here(code: types.CodeType) -> set[str]:
    # A class body reads by LOAD_NAME; opcodes for type parameters end in ..._OR_GLOBALS.
    return {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_NAME", "DELETE_GLOBAL") or ("LOAD" in step.opname and "GLOBAL" in step.opname)
    }


def code_guesses(code: types.CodeType) -> set[str]:
    """Global names that stand in texts of a function's code, and that it may read by them."""
    guesses: set[str] = set()
    for inner in nested_code(code):
        reads, attributes = _read_here(inner), set(inner.co_names)
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
    """Names that a function's code declares global and assigns or deletes."""
    operations = ("STORE_GLOBAL", "DELETE_GLOBAL")
    steps = (step for inner in nested_code(code) for step in dis.get_instructions(inner))
    return {step.argval for step in steps if step.opname in operations}


def code_attributes(code: types.CodeType) -> set[str]:
    """All names in a function's code, those of attributes among them."""
    return {name for inner in nested_code(code) for name in inner.co_names}


def global_reads(obj: Any, namespace: dict[str, Any] | None = None) -> set[str]:
    """The names of the notebook that `obj` reads when it is called or used.

    Parameters
    ----------
    obj : Any
        A function, method, class, partial, property or instance, or a container of such. What it
        wraps, its defaults, closure, attributes and bases are searched too.
    namespace : dict, optional
        The notebook's namespace, by default this process's ``__main__``: only functions made there
        count.
    """
    namespace = main_namespace() if namespace is None else namespace
    reads: set[str] = set()
    met: dict[int, Any] = {}
    left = [obj]
    while left:
        value = left.pop()
        if id(value) in met:
            continue
        met[id(value)] = value
        if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            reads |= code_reads(value.__code__)
        left.extend(_related(value, namespace))
    return reads


def _related(value: Any, namespace: dict[str, Any]) -> Iterator[Any]:
    """What belongs to a callable and may hold functions of the notebook."""
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        if value is not namespace:
            yield from value.values()
    elif isinstance(value, type):
        if value.__module__ == namespace.get("__name__", "__main__"):
            yield from [*vars(value).values(), *value.__bases__, type(value)]
    elif isinstance(value, types.CellType):
        try:
            yield value.cell_contents
        except ValueError:
            return
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        yield from (value.__func__, getattr(value, "__self__", None))
    elif isinstance(value, functools.cached_property):
        yield value.func
    else:
        yield type(value)
        if callable(value) or type(value).__module__ == namespace.get("__name__", "__main__"):
            names = ("__closure__", "__defaults__", "__kwdefaults__", "__dict__", "__wrapped__")
            yield from (getattr(value, name, None) for name in names)
