"""`shard`: the properties that training relies on, and every type that it keeps."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sky_jupyter.errors import NotInPoolError, SpecError
from sky_jupyter.node.runtime import shard as module
from sky_jupyter.node.runtime.instance_info import InstanceInfo
from sky_jupyter.node.runtime.shard import indices, part, shard, take

CASES = {
    "n": st.integers(0, 200),
    "world": st.integers(1, 12),
    "shuffle": st.booleans(),
    "seed": st.integers(-5, 2**40),
}


def pool(world: int) -> InstanceInfo:
    return InstanceInfo(
        node=0, rank=0, total_nodes=1, world_size=world, ranks_per_node=world, local_rank=0,
        head_addr="127.0.0.1", head_port=4000,
    )  # fmt: skip


@pytest.fixture
def on_rank(monkeypatch):
    """Makes this process rank `rank` of `world`."""
    monkeypatch.setattr(module, "_warned", set())

    def become(rank, world):
        monkeypatch.setenv("COMPUTE_POOL", replace(pool(world), rank=rank, local_rank=rank).to_json())

    return become


@given(**CASES)
def test_shards_are_disjoint_cover_everything_and_differ_by_at_most_one(n, world, shuffle, seed):
    shards = [indices(n, rank, world, shuffle, seed) for rank in range(world)]
    assert sorted(index for part in shards for index in part) == list(range(n))
    lengths = [len(part) for part in shards]
    assert max(lengths) - min(lengths) <= 1


@given(**CASES)
def test_with_drop_last_shards_are_disjoint_equal_and_leave_out_only_the_tail(n, world, shuffle, seed):
    shards = [indices(n, rank, world, shuffle, seed, drop_last=True) for rank in range(world)]
    taken = [index for part in shards for index in part]
    assert {len(part) for part in shards} == {n // world}
    assert len(set(taken)) == len(taken) == n - n % world
    assert set(taken) <= set(range(n))
    if not shuffle:
        assert taken == list(range(n - n % world))


@given(n=st.integers(0, 100), world=st.integers(1, 8), rank=st.integers(0, 7))
def test_without_shuffle_a_rank_has_the_items_of_its_remainder(n, world, rank):
    rank %= world
    assert list(indices(n, rank, world)) == [index for index in range(n) if index % world == rank]


@given(**CASES, drop_last=st.booleans())
@settings(max_examples=30)
def test_pairs_stay_aligned_and_types_stay(n, world, shuffle, seed, drop_last):
    x = np.arange(n * 3).reshape(n, 3)
    for rank in range(world):
        chosen = indices(n, rank, world, shuffle, seed, drop_last)
        parts = [take(array, chosen) for array in (x, list(range(n)), tuple(map(str, range(n))))]
        assert [type(part) for part in parts] == [np.ndarray, list, tuple]
        assert parts[0].shape == (len(chosen), 3)
        assert parts[0].dtype == x.dtype
        assert [(row[0] // 3, str(row[0] // 3)) for row in parts[0]] == list(zip(parts[1], parts[2], strict=True))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=4).filter(lambda lengths: len(set(lengths)) > 1))
def test_unequal_lengths_are_refused_with_their_numbers(lengths):
    with pytest.raises(SpecError, match=f"same index set for all.*{', '.join(map(str, lengths))}"):
        shard(*([0] * length for length in lengths))


def test_the_order_is_pinned_so_that_ranks_of_any_python_agree():
    assert indices(8, 0, 2, shuffle=True, seed=1) != indices(8, 0, 2, shuffle=True, seed=2)
    assert indices(8, 0, 1, shuffle=True, seed=0) == [4, 1, 5, 2, 0, 3, 7, 6]


MAKERS = {
    "list": lambda n: list(range(n)),
    "tuple": lambda n: tuple(range(n)),
    "range": range,
    "str": lambda n: "".join(chr(97 + index) for index in range(n)),
    "bytes": lambda n: bytes(range(n)),
    "numpy": lambda n: np.arange(n, dtype=np.float32),
    "torch": lambda n: pytest.importorskip("torch", reason="needs the extra torch").arange(n).reshape(n, 1),
    "jax": lambda n: pytest.importorskip("jax.numpy", reason="needs the extra jax").arange(n),
    "series": lambda n: pd.Series(range(n), index=[f"row{index}" for index in range(n)]),
    "frame": lambda n: pd.DataFrame({"a": range(n), "b": range(n)}),
}


def plain(value):
    value = value["a"] if hasattr(value, "columns") else value
    if isinstance(value, str):
        return [ord(letter) - 97 for letter in value]
    return [int(item) for item in value]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", [10, 2, 0])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("ignore:shard gives")
def test_every_type_is_kept_and_takes_the_same_items(on_rank, kind, n, shuffle, drop_last):
    on_rank(2, 4)
    expected = list(indices(n, 2, 4, shuffle, 0, drop_last))
    array = MAKERS[kind](n)
    part = shard(array, shuffle=shuffle, drop_last=drop_last)
    assert plain(part) == expected
    assert type(part) is (list if kind == "range" and shuffle else type(array))
    assert getattr(part, "dtype", None) == getattr(array, "dtype", None)


def test_datasets_are_asked_to_select(on_rank):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    on_rank(1, 2)
    data = datasets.Dataset.from_dict({"a": list(range(6))})
    part = shard(data)
    assert isinstance(part, datasets.Dataset)
    assert part["a"][:] == [1, 3, 5]
    x, part = shard(list(range(6)), data, shuffle=True, seed=3)
    assert part["a"][:] == x


def test_an_unshuffled_shard_copies_nothing(on_rank):
    on_rank(1, 2)
    x = np.arange(10)
    assert np.shares_memory(shard(x), x)
    assert np.shares_memory(shard(x, drop_last=True), x)


def test_several_arrays_give_a_tuple_and_one_gives_itself(on_rank):
    on_rank(0, 2)
    assert shard([1, 2, 3, 4]) == [1, 3]
    assert shard([1, 2, 3, 4], "abcd", drop_last=True) == ([1, 2], "ab")


def test_the_part_of_another_rank_can_be_asked_for_anywhere(on_rank):
    assert [shard("abcdefg", node=node, total_nodes=3) for node in range(3)] == ["adg", "be", "cf"]
    on_rank(1, 2)
    assert shard([1, 2, 3, 4], node=0) == [1, 3]
    assert shard([1, 2, 3, 4], total_nodes=4) == [2]
    for node, total in ((3, 3), (-1, 3), (True, 2), (0.5, 2), ("0", 2)):
        with pytest.raises(SpecError, match="has no part"):
            shard([1, 2, 3], node=node, total_nodes=total)


def test_uneven_lengths_are_warned_about_once_and_by_rank_0_only(on_rank):
    on_rank(0, 2)
    with pytest.warns(UserWarning, match=r"1 of 2 ranks 3 items and the others 2.*drop_last=True"):
        shard([1, 2, 3, 4, 5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shard([1, 2, 3, 4, 5])
        shard([1, 2, 3, 4])
        shard([1, 2, 3], drop_last=True)
        on_rank(1, 2)
        shard([1, 2, 3, 4, 5, 6, 7])


class Named(tuple):
    _fields = ("x", "y")


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (5, "builtins.int, has no length"),
        (iter([1]), "list_iterator, has no length or no items by number"),
        ({"a": 1}, "has no order by number"),
        ({1, 2}, "has no order by number"),
        (np.array(1.0), "has no length"),
    ],
)
def test_what_has_no_numbered_items_is_refused(array, word):
    with pytest.raises(SpecError, match=word):
        shard([1], array)


def test_what_cannot_be_indexed_so_is_refused_with_its_type(on_rank):
    class ByNumber:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if not isinstance(index, int):
                raise TypeError("numbers only")
            return index

    on_rank(0, 2)
    with pytest.raises(SpecError, match="ByNumber by a slice: numbers only"):
        shard(ByNumber())
    with pytest.raises(SpecError, match="whose items are fields"):
        shard(Named((1, 2)))


def test_bad_calls_are_refused(on_rank):
    with pytest.raises(SpecError, match="at least one array"):
        shard()
    with pytest.raises(NotInPoolError):
        shard([1, 2])
    on_rank(0, 2)
    with pytest.raises(SpecError, match="seed must be a whole number"):
        shard([1, 2], seed="a")


def test_a_part_that_is_cut_elsewhere_is_the_same_and_brings_nothing_else_along():
    numbers = np.arange(22.0).reshape(11, 2)
    values = [numbers, list(range(11)), tuple("abcdefghijk"), "abcdefghijk", b"abcdefghijk", range(3, 25, 2)]
    for value in values:
        for rank in range(3):
            mine, wanted = part(value, rank, 3), take(value, indices(11, rank, 3))
            assert type(mine) is type(wanted)
            assert np.array_equal(mine, wanted) if value is numbers else mine == wanted
    assert part(numbers, 1, 3).flags.c_contiguous
    assert part(numbers, 0, 1) is not None
    assert np.shares_memory(part(numbers, 0, 1), numbers)


def test_parts_of_frameworks_arrays_have_memory_of_their_own():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12.0, requires_grad=True)
    mine = part(tensor, 1, 4)
    assert torch.equal(mine, tensor[1::4])
    assert mine.requires_grad
    assert mine.untyped_storage().nbytes() == mine.nbytes
    jnp = pytest.importorskip("jax.numpy")
    assert (part(jnp.arange(12), 1, 4) == jnp.arange(12)[1::4]).all()
    frame = pytest.importorskip("pandas").DataFrame({"a": np.arange(12.0), "b": list("abcdefghijkl")})
    assert part(frame, 1, 4).equals(frame.iloc[1::4])
    assert part(frame.a, 1, 4).equals(frame.a.iloc[1::4])
    assert not np.shares_memory(part(frame, 1, 4).a.to_numpy(), frame.a.to_numpy())
