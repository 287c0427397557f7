"""What functions and classes are found to read, through all that wraps them."""

from __future__ import annotations

import functools
import types

from sky_jupyter.node.serialization.global_names import global_reads


def notebook(source: str) -> dict[str, object]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace


def test_a_functions_globals_are_found_through_what_wraps_it() -> None:
    ns = notebook(
        "import functools\n"
        "def deco(f):\n"
        "    @functools.wraps(f)\n"
        "    def inner(*a):\n        return hidden(f, *a)\n"
        "    return inner\n"
        "@deco\ndef f(x, y=lambda: default):\n    def nested():\n        return [deep for _ in x]\n    return nested\n"
        "part = functools.partial(f, key=lambda: keyword)\n"
        "class Base:\n    def m(self):\n        return base\n"
        "class A(Base):\n"
        "    @property\n    def p(self):\n        return prop\n"
        "    @staticmethod\n    def s():\n        return static\n"
        "    @functools.cached_property\n    def c(self):\n        return cached\n"
        "    @functools.lru_cache\n    def l(self):\n        return lru\n"
        "a = A()\n"
    )
    wrapped = {"hidden", "default", "deep"}
    assert global_reads(ns["f"], ns) == wrapped
    assert global_reads(ns["part"], ns) == {*wrapped, "keyword"}
    of_class = {"base", "prop", "static", "cached", "lru"}
    for key in ("A", "a"):
        assert global_reads(ns[key], ns) == of_class
    assert global_reads(ns["a"].m, ns) == of_class  # type: ignore[attr-defined]


def test_what_is_large_or_does_not_let_itself_be_looked_at_is_left() -> None:
    ns = notebook(
        "class A:\n    def __getattr__(self, name):\n        raise ValueError\n    def m(self):\n        return x\n"
        "large = [A(), *range(100_000), lambda: y]"
    )
    assert global_reads(ns["large"], ns) == {"x", "ValueError"}


def test_functions_of_modules_read_nothing_from_the_notebook() -> None:
    assert global_reads(functools.wraps, notebook("")) == set()
    assert global_reads(types.SimpleNamespace(a=1), notebook("")) == set()
