"""A look at identities tells whether a function, with what it reads, is as it was; where it cannot, it says so."""

from __future__ import annotations

from typing import Any

import pytest

from sky_jupyter.capture.unchanged_functions import Unchanged


def made(code: str, **names: Any) -> dict[str, Any]:
    """A notebook's namespace in which code has run."""
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    exec(code, namespace)
    return namespace


@pytest.mark.parametrize("change", ["rate = 3", "def helper(x): return x", "f.__defaults__ = (2,)", "f.more = 1"])
def test_a_change_of_a_function_or_of_what_it_reads_is_seen(change: str) -> None:
    namespace = made("rate = 2\ndef helper(x): return x * rate\ndef f(x=1): return helper(x)")
    unchanged = Unchanged.of(namespace["f"], ["helper", "rate", "lacking"], namespace)
    assert unchanged is not None
    assert unchanged.holds(namespace)
    exec(change, namespace)
    assert not unchanged.holds(namespace)


def test_a_name_that_was_lacking_and_is_there_is_a_change() -> None:
    namespace = made("def f(): return later")
    unchanged = Unchanged.of(namespace["f"], ["later"], namespace)
    assert unchanged is not None
    namespace["later"] = 1
    assert not unchanged.holds(namespace)


def test_a_cell_of_a_closure_that_was_changed_is_seen() -> None:
    namespace = made(
        "def make(n):\n    def f(): return n\n    def add():\n        nonlocal n\n        n += 1\n    return f, add"
    )
    inner, add = namespace["make"](1)
    unchanged = Unchanged.of(inner, [], namespace)
    assert unchanged is not None
    assert unchanged.holds(namespace)
    add()
    assert not unchanged.holds(namespace)


def test_an_alias_of_a_type_is_as_it_was_and_one_of_a_class_that_may_change_is_not_told() -> None:
    namespace = made("Pair = tuple[int, str]\nclass Thing: pass\nThings = list[Thing]\ndef f(pair: Pair): return pair")
    unchanged = Unchanged.of(namespace["f"], ["Pair"], namespace)
    assert unchanged is not None
    assert unchanged.holds(namespace)
    exec("Pair = tuple[int, int]", namespace)
    assert not unchanged.holds(namespace)
    assert Unchanged.of(namespace["f"], ["Things"], namespace) is None


@pytest.mark.parametrize("code", ["things = [1]", "things = {}", "class things: pass", "things = (1, [2])"])
def test_identities_do_not_suffice_for_what_changes_in_place(code: str) -> None:
    namespace = made(f"{code}\ndef f(): return things")
    assert Unchanged.of(namespace["f"], ["things"], namespace) is None
