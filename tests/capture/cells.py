"""Cells for property tests: any statements over a few names, and a namespace that notes what they look up."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

NAMES = "abcdefgh"
# A cell that calls itself in a `try` ends soon.
_DEPTH = 15


class Initial(int):
    """A value that can be called, iterated, entered, indexed and used as a decorator."""

    def __call__(self, *given: Any) -> Any:
        return given[0] if given and callable(given[0]) else Initial(1)

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2][: int(self)])

    def __enter__(self) -> int:
        return 1

    def __exit__(self, *_: object) -> bool:
        return True

    def __getitem__(self, key: object) -> Any:
        return Initial(2)

    def __setitem__(self, key: object, value: object) -> None: ...


def initial() -> dict[str, Any]:
    """The first value of each name."""
    return {name: Initial(index % 3) for index, name in enumerate(NAMES)}


class Builtins(dict):  # type: ignore[type-arg]
    """Where Python looks for a name that the globals do not have; a class body comes here past `Globals`.

    Python asks an exact dict without a method; of a mapping of another type it calls ``__getitem__``, in
    functions too.
    """

    def __init__(self, found: Globals) -> None:
        super().__init__(vars(builtins))
        self.found = found

    def __missing__(self, name: str) -> Any:
        return self.found.__missing__(name)


class Globals(dict):  # type: ignore[type-arg]
    """A namespace that notes which of its first values are looked up, however: it hands them out itself."""

    def __init__(self, first: dict[str, Any]) -> None:
        self.first = first
        self.read: set[str] = set()
        self.gone: set[str] = set()
        super().__init__(__name__="__main__")
        dict.__setitem__(self, "__builtins__", Builtins(self))

    def __missing__(self, name: str) -> Any:
        if name not in self.first or name in self.gone:
            raise KeyError(name)
        self.read.add(name)
        return self.first[name]

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def get(self, name: Any, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __delitem__(self, name: str) -> None:
        if not dict.__contains__(self, name):
            self[name]
            self.gone.add(name)
            return
        self.gone.add(name)
        super().__delitem__(name)

    def holds(self, name: str) -> bool:
        """Whether it still has its first value."""
        return not dict.__contains__(self, name) and name not in self.gone


@contextmanager
def shallow() -> Iterator[None]:
    """Few calls may be nested inside, so that nothing goes on for long."""
    frame, depth, before = sys._getframe(), 0, sys.getrecursionlimit()
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    sys.setrecursionlimit(depth + _DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def block(text: str) -> str:
    """Text as the body of a statement."""
    return "\n".join("    " + line for line in text.splitlines())


name = st.sampled_from(NAMES)


def drawn(form: str, **kinds: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A form in which ``$`` stands for a name, ``%`` for an expression and ``&`` for a body, each drawn by itself."""
    given = {"$": name, "%": kinds.get("expression"), "&": kinds.get("body")}
    pieces = [given[part] if part in given else st.just(part) for part in re.split(r"([$%&])", form)]
    return st.tuples(*pieces).map("".join)  # type: ignore[arg-type]


EXPRESSIONS = [
    "(% + %)",
    "(% and %)",
    "(% or %)",
    "(% if % else %)",
    "(% < % < %)",
    "($ := %)",
    "$()",
    "$(%)",
    "$(*$, k=%)",
    "[%, *$]",
    "{1: %, %: %, **{}}",
    "$[%]",
    "$[%:$]",
    "f'{%}'",
    "f'{$!r:>{$}}'",
    "f'{$:{$}}{f\"{$}\"}'",
    "(lambda $=%: $)()",
    "(lambda $: %)",
    "(lambda: %)()",
    "(lambda *$, **_: [$ for $ in $])()",
    "[$ for $ in $ if $]",
    "{$: $ for $ in $ for $ in $}",
    "[% for $ in $]",
    "{% for _ in [1]}",
    "list(% for $ in $)",
    "[[$ for $ in $] for $ in $]",
    "[(lambda: $)() for $ in $]",
    "[($ := $) for _ in $]",
    "eval('$')",
    "eval('$ + %')",
    "globals()['$']",
    "globals().get('$')",
    "('$' in globals() and $)",
]
expression = st.recursive(
    st.one_of(name, name, st.just("1"), st.just("0")),
    lambda inner: st.one_of([drawn(form, expression=inner) for form in EXPRESSIONS]),
    max_leaves=4,
)
SIMPLE = [
    "$ = %",
    "$ = $ = %",
    "$ += %",
    "$[%] = %",
    "$[%] += %",
    "$[$] += ($ := %)",
    "$.x = %",
    "$: % = %",
    "$: $",
    "($): $ = %",
    "$, $ = %, %",
    "$, *$ = %, %",
    "($, [$]) = %, [%]",
    "for $ in $: pass",
    "del $",
    "del $, $",
    "del $[%]",
    "import os.path as $",
    "from os import path as $",
    "from os.path import *",
    "assert %, %",
    "if %: raise ValueError($)",
    "if '$' not in globals(): $ = %",
    "exec('$ = $')",
    "%",
]
simple = st.one_of([drawn(form, expression=expression) for form in SIMPLE])
COMPOUND = [
    "if %:\n&\nelse:\n&",
    "if %:\n&\nelif %:\n&",
    "for $ in $:\n&\nelse:\n&",
    "for $ in [0, 1]:\n&\n    if $: break\n&",
    "for $ in [0, 1]:\n&\n    if $: continue\n&",
    "for $[%] in [0]:\n&",
    "while %:\n&\n    break\nelse:\n&",
    "with $ as $:\n&",
    "with $ as $, $ as $:\n&",
    "with $ as ($, $), $:\n&",
    "with $ as $[$]:\n&",
    "try:\n&\nexcept Exception as $:\n&\nfinally:\n&",
    "try:\n&\nexcept TypeError:\n&\nelse:\n&",
    "try:\n&\nexcept (NameError, ValueError):\n&",
    "try:\n    $\nexcept NameError:\n    $ = %",
    "def $($=1):\n&\n    return $",
    "def $(*, $=$, **k):\n    return $",
    "def $(k: $ = $) -> $:\n    return $",
    "def $():\n    global h\n&",
    "def $():\n    global $\n    $ = %",
    "def $():\n    k = $\n    def $():\n        nonlocal k\n        k = $\n        return $\n    return $()",
    "def $():\n    def $(k=$):\n        return $\n    return $",
    "def $():\n    class $:\n        $ = $\n        $ = $\n    return $",
    "@$\ndef $(k=0):\n&",
    "@(lambda k: k)\ndef $():\n&",
    "def $():\n    yield $\n    return $",
    "class $:\n&",
    "class $:\n&\n    def m(self):\n        return [%, $]",
    "class $:\n    def $(self=0):\n        return $\n&",
    "class $:\n    $ = $\n    $ = [$ for $ in $]\n    class $:\n        $ = $",
    "class $:\n    global $\n    $ = $\n    k = $",
    "class $:\n    k = staticmethod(lambda: $)\n    $ = k()",
    "@$\nclass $:\n    $ = $",
    "class $($, metaclass=$):\n    $ = $",
    "match %:\n    case $.x:\n        pass\n    case $ if $:\n        $",
    "match [%, %]:\n    case [$, 1]:\n        $\n    case [$, *$] as $:\n        $ = $",
    "match {'k': %}:\n    case {'k': $, **$} if $:\n        $",
    "match %:\n    case int($) | [$, _]:\n        $",
    "&\n&",
]
GENERICS = [
    "def $[$: $](k: $ = $) -> $:\n    return $",
    "class $[$: $, *k]:\n    $ = $\n    def m(self):\n        return $",
    "type k = $\nk.__value__",
    "type k[$] = $[$]\nk.__value__",
]


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Statements around statements."""
    body = inner.map(block)
    forms = [*COMPOUND, *(GENERICS if sys.version_info >= (3, 12) else ())]
    return st.one_of([drawn(form, expression=expression, body=body) for form in forms])


statement = st.recursive(simple, compound, max_leaves=6)
cell = st.lists(statement, min_size=1, max_size=5).map("\n".join)
"""A cell over `NAMES`, not always one that compiles."""

DEFINITIONS = [
    "def $(*_):\n    return [$, $]",
    "def $(k=$, *_):\n    def inner():\n        return $\n    return [inner() for _ in [1] if $]",
    "def $(*_):\n&",
    "def $(*_):\n    return eval('$')",
    "def $(*_) -> '$':\n    return typing.get_type_hints($)",
    "def $(*_):\n    return f'{$:{$}}', (lambda: $)()",
    "def $(*_):\n    class Inner:\n        k = $\n        def m(self): return $\n    return Inner().m()",
    "def outer(k):\n    def inner(*_):\n        return k, $\n    return inner\n$ = outer($)",
    "def outer(k):\n    @functools.wraps(k)\n    def inner(*_):\n        return k(), $\n    return inner\n"
    "@outer\ndef $(*_): return $",
    "class $:\n    def __init__(self, *_): self.k = $\n    def m(self): return $\n"
    "    @property\n    def p(self): return $",
    "class $:\n    k = staticmethod(lambda: $)\n    @classmethod\n    def m(cls): return cls.k(), $\n$ = $()",
    "class $:\n    @functools.cached_property\n    def p(self): return $\n"
    "    @functools.lru_cache\n    def m(self): return $",
    "@functools.lru_cache\ndef $(*_):\n    return $",
    "@functools.singledispatch\ndef $(*_):\n    return $\n$.register(int, lambda *_: $)",
    "$ = functools.partial($, k=lambda: $)",
    "$ = lambda *_, k=lambda: $: ($, k())",
    "$ = {'k': [$, (lambda: $)]}",
    "$.k = $",
    "$ = $",
]
CALLS = [
    "$()",
    "$($)",
    "$().m()",
    "$.m()",
    "$.p",
    "$().p",
    "$.k()",
    "$['k'][1]()",
    "[$() for _ in [1]]",
    "$(*[$])",
    "k = $\nk()",
]
definitions = st.lists(st.one_of([drawn(form, body=simple.map(block)) for form in DEFINITIONS]), min_size=1, max_size=6)
"""What a notebook defines in its cells, one each."""
calls = st.lists(
    st.one_of([drawn(form).map(lambda text: f"try:\n{block(text)}\nexcept Exception:\n    pass") for form in CALLS]),
    min_size=1,
    max_size=3,
).map("\n".join)
"""A cell that uses what a notebook has defined."""
