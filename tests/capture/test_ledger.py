"""The rule of the last writer: which value of a name the nodes are to see."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sky_jupyter.capture.cell_names import analyse
from sky_jupyter.capture.collect import collect
from sky_jupyter.capture.ledger import Ledger


class Notebook:
    """A notebook and one node, each a namespace, that run cells as the magics would."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.node: dict[str, Any] = {}
        self.ledger = Ledger()

    def plain(self, source: str) -> None:
        exec(source, self.namespace)
        self.ledger.notebook_ran(analyse(source), self.namespace)

    def sky(self, source: str) -> set[str]:
        """Run a cell on the node; the names that it was sent."""
        capture = collect(source, self.namespace, self.ledger)
        for one in capture.bindings:
            self.node[one.name] = eval(repr(one.value))
        capture.commit(self.ledger)
        exec(source, self.node)
        self.ledger.nodes_wrote(capture.names.writes, self.namespace, capture.names.uses)
        return {one.name for one in capture.bindings}


@pytest.mark.parametrize("writers", [*itertools.product(["notebook", "nodes"], repeat=4)])
def test_the_last_cell_that_assigned_a_name_wins_wherever_it_ran(writers: tuple[str, ...]) -> None:
    notebook = Notebook()
    expected = None
    for turn, writer in enumerate(writers):
        # Few values, so that a later one is often what was sent before.
        expected = turn % 2
        (notebook.plain if writer == "notebook" else notebook.sky)(f"x = {expected}")
        notebook.sky("seen = x")
        assert notebook.node["seen"] == expected


def test_a_value_is_sent_once_and_again_when_it_changes() -> None:
    notebook = Notebook()
    notebook.plain("x = [1]")
    assert notebook.sky("x") == {"x"}
    assert notebook.sky("x") == set()
    notebook.namespace["x"].append(2)
    assert notebook.sky("x") == {"x"}
    assert notebook.node["x"] == [1, 2]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda v: v[1].append(3)),
        ({"a": {1}}, lambda v: v["a"].add(2)),
        (np.zeros(10_000), lambda v: v.__setitem__(9_999, 1)),
        (np.zeros((100, 100))[:, ::2], lambda v: v.__setitem__((0, 0), 1)),
        (pd.DataFrame({"a": range(9), "s": list("abcdefghi")}), lambda v: v.insert(0, "b", 1)),
        (pd.DataFrame({"a": np.zeros(10_000)}), lambda v: v.__setitem__("a", 1.0)),
    ],
)
def test_a_change_in_place_is_seen(value: Any, change: Any) -> None:
    ledger, namespace = Ledger(), {"x": value}
    collect("x", namespace, ledger).commit(ledger)
    assert collect("x", namespace, ledger).bindings == ()
    change(value)
    capture = collect("x", namespace, ledger)
    assert [one.name for one in capture.bindings] == ["x"]
    # The same once the nodes own the name.
    ledger.nodes_wrote(["x"], namespace)
    assert collect("x", namespace, ledger).bindings == ()
    change(value) if isinstance(value, list) else namespace.update(x=[value])
    assert [one.name for one in collect("x", namespace, ledger).bindings] == ["x"]


def test_a_value_assigned_again_with_equal_content_is_bound_again() -> None:
    notebook = Notebook()
    notebook.plain("x = [1]")
    notebook.sky("x.append(2)")
    assert notebook.node["x"] == [1, 2]
    notebook.plain("x = [1]")
    assert notebook.sky("x") == {"x"}
    assert notebook.node["x"] == [1]


def test_a_branch_not_taken_in_the_notebook_writes_nothing() -> None:
    notebook = Notebook()
    notebook.plain("x = [1]")
    notebook.sky("x.append(2)")
    notebook.plain("if not x:\n    x = [1]")
    assert notebook.sky("x") == set()
    notebook.sky("x = [3]")
    notebook.plain("try:\n    x\nexcept NameError:\n    x = [1]")
    assert notebook.sky("x") == set()
    assert notebook.node["x"] == [3]


def test_a_function_that_assigns_a_global_unseen_is_noticed() -> None:
    notebook = Notebook()
    notebook.plain("x = 1\ndef f():\n    global x\n    x = [1]")
    notebook.sky("x = 2")
    notebook.plain("f()")
    assert notebook.sky("x") == {"x"}


def test_a_name_deleted_on_the_nodes_stays_deleted_until_the_notebook_writes_it() -> None:
    notebook = Notebook()
    notebook.plain("x = 1")
    notebook.sky("del x")
    assert collect("x", notebook.namespace, notebook.ledger).bindings == ()
    notebook.plain("x = 1")
    assert notebook.sky("x") == {"x"}


def test_a_name_deleted_in_the_notebook_is_left_to_the_nodes() -> None:
    notebook = Notebook()
    notebook.plain("x = 1")
    notebook.sky("x")
    notebook.plain("del x")
    assert notebook.sky("x") == set()
    assert notebook.node["x"] == 1
    notebook.plain("x = 1")
    assert notebook.sky("x") == {"x"}


def test_a_name_that_the_notebook_gets_only_later_wins() -> None:
    notebook = Notebook()
    notebook.sky("x = 1")
    notebook.namespace["x"] = 2
    assert notebook.sky("x") == {"x"}


def test_after_a_restart_all_is_sent_again_and_what_is_lost_is_named() -> None:
    notebook = Notebook()
    notebook.plain("x, y = 1, 2")
    notebook.sky("z = x\ny = 3")
    assert notebook.ledger.nodes_own == {"y", "z"}
    assert notebook.ledger.forget_nodes(notebook.namespace) == {"z"}
    assert notebook.sky("x, y") == {"x", "y"}


def test_a_pickle_that_is_never_the_same_is_not_a_change() -> None:
    class Restless:
        count = itertools.count()

        def __reduce__(self) -> Any:
            return int, (next(self.count),)

    ledger, namespace = Ledger(), {"x": Restless()}
    collect("x", namespace, ledger).commit(ledger)
    assert collect("x", namespace, ledger).bindings == ()
    namespace["x"] = Restless()
    assert collect("x", namespace, ledger).bindings


def test_what_a_function_made_on_the_nodes_reads_is_sent_when_it_is_used() -> None:
    notebook = Notebook()
    notebook.plain("x = 1\ny = [0]")
    assert notebook.sky("def f():\n    return x, g()\ndef g():\n    return y") == {"x", "y"}
    notebook.plain("x = 2")
    notebook.namespace["y"].append(1)
    assert notebook.sky("z = f()") == {"x", "y"}
    assert notebook.node["z"] == (2, [0, 1])


def test_the_ledger_keeps_no_big_value_alive() -> None:
    ledger, namespace = Ledger(), {"x": np.zeros(10_000), "y": np.ones(10_000)}
    gone = [weakref.ref(value) for value in namespace.values()]
    collect("x", namespace, ledger).commit(ledger)
    ledger.nodes_wrote(["y"], namespace)
    namespace.clear()
    gc.collect()
    assert [one() for one in gone] == [None, None]
    namespace["x"] = None
    assert collect("x", namespace, ledger).bindings


def test_internal_names_are_never_the_nodes_own() -> None:
    ledger = Ledger()
    ledger.nodes_wrote(["_", "_i3", "__", "In", "x"], {})
    assert ledger.nodes_own == {"x"}


def test_facts_tell_where_each_value_comes_from() -> None:
    ledger, namespace = Ledger(), {"x": np.zeros(1000), "y": [1], "np": np}
    collect("x, y, np", namespace, ledger).commit(ledger)
    ledger.nodes_wrote(["z", "y"], namespace, ranks={"z": [1]}, world_size=2, sizes={"z": 8})
    facts = {one.name: one for one in ledger.facts(namespace)}
    assert list(facts) == ["np", "x", "y", "z"]
    assert [one.origin for one in facts.values()] == ["module", "notebook", "nodes", "nodes"]
    assert 8000 < (facts["x"].size or 0) < 9000
    assert (facts["z"].ranks, facts["z"].size, facts["z"].gone) == (frozenset({1}), 8, False)
    assert (facts["y"].ranks, facts["y"].gone) == (None, True)
    assert not any(one.stale for one in facts.values())
    ledger.notebook_wrote(["x", "y"])
    assert [one.name for one in ledger.facts(namespace) if one.stale] == ["x", "y"]
    assert not any(one.stale for one in ledger.facts({}))


def wrote(ledger: Ledger, namespace: dict[str, Any], *ranks: int) -> None:
    ledger.nodes_wrote(["x"], namespace, ranks={"x": ranks}, world_size=2, sizes={"x": None})


def test_a_rank_that_did_not_write_a_name_is_sent_the_notebooks() -> None:
    ledger, namespace = Ledger(), {"x": [1]}
    wrote(ledger, namespace, 1)
    (binding,) = collect("x", namespace, ledger).bindings
    assert binding.owners == {1}
    collect("x", namespace, ledger).commit(ledger)
    assert collect("x", namespace, ledger).bindings == ()
    assert ledger.nodes_own == {"x"}
    wrote(ledger, namespace, 0)
    assert collect("x", namespace, ledger).bindings == ()


def test_ranks_that_write_a_name_one_after_the_other_lack_nothing() -> None:
    ledger, namespace = Ledger(), {"x": [1]}
    wrote(ledger, namespace, 1)
    wrote(ledger, namespace, 0)
    assert collect("x", namespace, ledger).bindings == ()
    assert ledger.facts(namespace)[0].ranks is None


def test_a_rank_that_has_what_was_sent_is_not_sent_it_again() -> None:
    ledger, namespace = Ledger(), {"x": [1]}
    collect("x", namespace, ledger).commit(ledger)
    wrote(ledger, namespace, 1)
    assert collect("x", namespace, ledger).bindings == ()
    namespace["x"].append(2)
    assert not collect("x", namespace, ledger).bindings[0].owners


def test_a_new_kernel_is_sent_what_the_notebook_has_of_what_the_others_assigned() -> None:
    ledger, namespace = Ledger(), {"x": [1], "y": [2], "z": [3]}
    ledger.nodes_wrote(["x", "y", "z"], namespace, ranks={"y": [1]}, world_size=2, sizes={"x": None, "y": None})
    ledger = ledger.unsent([1], 2)
    capture = collect("x, y, z", namespace, ledger)
    assert {one.name: one.owners for one in capture.bindings} == {"x": {0}, "y": frozenset()}
    assert ledger.nodes_own == {"x", "z"}


def test_a_rank_that_had_a_name_before_the_notebook_wrote_it_does_not_keep_it() -> None:
    ledger, namespace = Ledger(), {"x": [1]}
    wrote(ledger, namespace, 0, 1)
    namespace["x"].append(2)
    wrote(ledger, namespace, 1)
    (binding,) = collect("x", namespace, ledger).bindings
    assert binding.owners == {1}


def test_new_kernels_import_what_the_old_ones_had_and_no_others_do() -> None:
    ledger = Ledger()

    def imported(name: str, ranks: set[int]) -> None:
        ledger.nodes_wrote([name], {}, ranks={name: ranks}, world_size=3, sizes={name: None})
        ledger.nodes_imported({name: "xml" if name == "x" else name}, ["xml.dom", "json"], 3)

    def again(source: str) -> dict[str, tuple[str, list[int]]]:
        capture = collect(source, {}, ledger)
        assert capture.imports == (("xml.dom",) if capture.bindings and "x" in source else ())
        capture.commit(ledger)
        return {one.name: (one.module, sorted(one.owners)) for one in capture.bindings}

    imported("x", {0, 1, 2})
    imported("json", {0})
    assert again("x, json") == {}
    for _ in range(2):
        ledger = ledger.unsent({2}, 3)
        assert again("x, json") == {"x": ("xml", [0, 1])}
        assert again("x") == {}
    ledger.forget_nodes({})
    assert again("x, json") == {"x": ("xml", []), "json": ("json", [1, 2])}
    ledger.forget_nodes({})
    ledger.notebook_wrote(["x"])
    assert again("x") == {}


def test_new_kernels_import_members_of_modules_again() -> None:
    ledger = Ledger()
    ledger.nodes_wrote(["root"], {}, world_size=2, sizes={"root": None})
    ledger.nodes_imported({}, ["math"], 2, {"root": ("math", "sqrt")})
    ledger = ledger.unsent({1}, 2)
    (binding,) = collect("root(4)", {}, ledger).bindings
    assert (binding.module, binding.member, sorted(binding.owners)) == ("math", "sqrt", [0])
    assert collect("root(4)", {}, ledger).manifest(str)["members"] == [["root", "math", "sqrt"]]
    ledger.nodes_wrote(["root"], {}, world_size=2, sizes={"root": None})
    assert not ledger.unsent({1}, 2).imported


def test_a_cell_says_what_its_imports_bind() -> None:
    source = "import a.b, c.d as e\nfrom f import g as h, i\nfrom j import *\nfrom . import k"
    bound = {("a", "a", ""), ("e", "c.d", ""), ("h", "f", "g"), ("i", "f", "i"), ("*", "j", "*")}
    assert set(collect(source, {}, Ledger()).bound) == bound
