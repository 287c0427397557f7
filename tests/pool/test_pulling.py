"""Variables of two local nodes, pulled into the notebook, and whose value counts afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sky_jupyter.capture.collect import collect
from sky_jupyter.errors import PoolError, SpecError
from sky_jupyter.node.serialization import sharded_arrays
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer import pull_variable
from tests.pool.pools import local_pool, run

MAKE = """
import numpy, threading, sky_jupyter as sky
rank = sky.instance_info().rank
array = numpy.full((2, 3), rank)
ragged = numpy.full((rank + 1, 3), rank)
items, number, lock = ['a', 'b'][: rank + 1], rank / 2, {'in': [threading.Lock()]}
losses, large = [], numpy.full(300_000, rank)
if rank: only = rank
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as pool:
        run(pool, MAKE)
        yield pool


def test_of_several_ranks_a_list_comes_and_of_one_the_value_itself(pool: Pool) -> None:
    assert pool.pull("number") == [0.0, 0.5]
    assert pool.pull("number", [1]) == 0.5
    assert [int(array[-1]) for array in pool.pull("large")] == [0, 1]
    assert [*pool.hosts[0].blobs.rglob("value-*"), *pool.hosts[0].folder.rglob("value-*")] == []


def test_arrays_and_numbers_are_stacked_and_what_has_a_first_axis_is_joined(pool: Pool) -> None:
    assert pool.pull("array", how="stack").tolist() == [[[0] * 3] * 2, [[1] * 3] * 2]
    assert pool.pull("number", how="stack").tolist() == [0.0, 0.5]
    assert pool.pull("ragged", how="concat").tolist() == [[0] * 3, [1] * 3, [1] * 3]
    assert pool.pull("items", how="concat") == ["a", "a", "b"]
    assert pool.pull("array", [1], how="stack").shape == (1, 2, 3)


def test_tensors_and_tables_are_put_together_as_such() -> None:
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    tables = [pandas.DataFrame({"x": [rank]}) for rank in (0, 1)]
    assert joined(tables, "concat")["x"].tolist() == [0, 1]
    tensors = [torch.full((2,), float(rank), requires_grad=True) for rank in (0, 1)]
    assert joined(tensors, "concat").tolist() == [0.0, 0.0, 1.0, 1.0]
    stacked = joined(tensors, "stack")
    assert (stacked.shape, stacked.requires_grad) == ((2, 2), False)
    with pytest.raises(SpecError, match=r"'x' cannot be stacked: it is pandas.*DataFrame; without --stack it is"):
        joined(tables, "stack")
    with pytest.raises(SpecError, match=r"'x' cannot be joined: it is list and torch.Tensor"):
        joined([tensors[0], [1]], "concat")


def joined(values: list[Any], how: str) -> Any:
    return pull_variable.together("x", values, how)


def test_what_does_not_fit_together_is_refused_with_the_reason(pool: Pool) -> None:
    shapes = r"shapes differ: \(1, 3\) on rank 0; \(2, 3\) on rank 1. --concat joins"
    with pytest.raises(SpecError, match=shapes):
        pool.pull("ragged", how="stack")
    with pytest.raises(SpecError, match=r"'items' cannot be stacked: it is list; without --stack it is a list"):
        pool.pull("items", how="stack")
    with pytest.raises(SpecError, match=r"'number' cannot be joined: it is float"):
        pool.pull("number", how="concat")
    with pytest.raises(SpecError, match=r"did you mean 'stack'\?"):
        pool.pull("number", how="stak")


def test_names_that_are_not_there_are_told_with_the_nearest_or_with_the_ranks_that_have_them(pool: Pool) -> None:
    with pytest.raises(SpecError, match=r"no rank has 'loses'; did you mean 'losses'\?; `%sky names` lists"):
        pool.pull("loses")
    with pytest.raises(SpecError, match=r"rank 0 has no 'loses'"):
        pool.pull("loses", [0])
    with pytest.raises(SpecError, match=r"rank 0 lacks 'only'; give the ranks that have it: --on 1"):
        pool.pull("only")
    assert pool.pull("only", [1]) == 1
    with pytest.raises(SpecError, match="not the name of a variable"):
        pool.pull("a.b")
    with pytest.raises(SpecError, match="has ranks 0 to 1, not 2"):
        pool.pull("array", [2])


def test_what_cannot_be_pickled_is_not_pulled_and_the_part_is_named(pool: Pool) -> None:
    with pytest.raises(
        PoolError, match=r"'lock' of rank 0 cannot be brought here: lock\['in'\]\[0\]: _thread.lock cannot"
    ):
        pool.pull("lock")


def test_arrays_that_only_some_ranks_have_are_not_taken_for_the_whole() -> None:
    put = sharded_arrays.ShardAssembler()
    with put.reading():
        sharded_arrays.part((4,), [((0,), np.arange(2))])
    assert put.missing == 2
    with pytest.raises(ValueError, match="do not have the same arrays"), put.reading():
        sharded_arrays.part((6,), [((0,), np.arange(2))])
    with pytest.raises(ValueError, match="do not have the same arrays"), put.reading():
        pass


# Whose value counts.


def pulled(pool: Pool, name: str, namespace: dict[str, Any], **how: Any) -> None:
    """As `%sky pull` does it."""
    namespace[name] = pool.pull(name, **how)
    pull_variable.note(pool.ledger, name, namespace, pool.spec.world_size)


def sends(pool: Pool, code: str, namespace: dict[str, Any]) -> set[str]:
    """The names that a cell is sent; it runs."""
    capture = collect(code, namespace, pool.ledger)
    pool.attend(pool.submission.begin_cell(code, capture))
    return {binding.name for binding in capture.bindings}


def notebook_runs(pool: Pool, code: str, namespace: dict[str, Any]) -> Any:
    """A cell of the nodes, told to the ledger as the magics do."""
    run = pool.submission.begin_cell(code, collect(code, namespace, pool.ledger))
    result = pool.attend(run)
    pool.note_writes(run, namespace)
    return result


def test_ranks_keep_their_own_after_a_pull_until_the_notebook_changes_the_value(pool: Pool) -> None:
    namespace: dict[str, Any] = {}
    notebook_runs(pool, "mine = [rank]", namespace)
    pulled(pool, "mine", namespace)
    assert namespace["mine"] == [[0], [1]]
    assert sends(pool, "mine", namespace) == set()
    assert run(pool, "mine", namespace).values == [[0], [1]]
    namespace["mine"].append("more")
    assert run(pool, "mine", namespace).values == [[[0], [1], "more"]] * 2


def test_what_the_nodes_changed_in_place_of_the_notebooks_is_not_sent_back(pool: Pool) -> None:
    namespace: dict[str, Any] = {"data": np.zeros(1000)}
    notebook_runs(pool, "data[0] = 7", namespace)
    pulled(pool, "data", namespace, ranks=[1])
    assert namespace["data"][0] == 7
    assert sends(pool, "data[0]", namespace) == set()
    assert [one.origin for one in pool.ledger.facts(namespace) if one.name == "data"] == ["notebook"]
    namespace["data"][1] = 8
    assert sends(pool, "data[1]", namespace) == {"data"}


def test_a_rank_that_lacks_a_name_is_given_what_was_pulled(pool: Pool) -> None:
    namespace: dict[str, Any] = {}
    notebook_runs(pool, "if rank: partly = 'of one'", namespace)
    pulled(pool, "partly", namespace, ranks=[1])
    (fact,) = [one for one in pool.ledger.facts(namespace) if one.name == "partly"]
    assert fact.ranks == {1}
    assert run(pool, "partly", namespace).values == ["of one"] * 2


def test_a_function_that_was_pulled_still_has_what_it_reads_sent(pool: Pool) -> None:
    namespace: dict[str, Any] = {"base": 1, "__name__": "__main__"}
    notebook_runs(pool, "base\ndef add(x):\n    return base + x", namespace)
    pulled(pool, "add", namespace, ranks=[0])
    namespace["base"] = 10
    pool.ledger.notebook_wrote(["base"])
    assert run(pool, "add(1)", namespace).values == [11, 11]
