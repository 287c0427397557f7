"""Functions on a pool through the library API: every rank, one rank, their errors and output."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.util.text import plain

FACTOR = 10


@sky.function
def scaled(value: int) -> tuple[int, int]:
    """The value times this module's factor, and the rank."""
    return value * FACTOR, sky.instance_info().rank


@sky.function
def failing(rank: int) -> str:
    if sky.instance_info().rank == rank:
        raise FileNotFoundError(2, "not there", "data.csv")
    return "fine"


@sky.function
def who_am_i() -> int:
    import os

    return os.getpid()


@sky.stdout(only="head")
@sky.function
def loud() -> None:
    print("heard from", sky.instance_info().rank)


@sky.function
@sky.stdout(only=lambda info: info.rank == 1)
def loud_below() -> None:
    print("heard below from", sky.instance_info().rank)


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=2, name="calls") as compute:
        yield compute


def test_a_broadcast_gives_a_list_in_rank_order(pool: sky.Compute) -> None:
    assert scaled(4) @ pool == [(40, 0), (40, 1)]


def test_one_rank_gives_its_value(pool: sky.Compute) -> None:
    value, rank = scaled(5) >> pool
    assert value == 50
    assert rank in (0, 1)


def test_an_error_on_one_rank_keeps_its_type_and_names_the_rank(pool: sky.Compute) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        sky.function(lambda: os.stat("/no/such/file"))() >> pool
    assert "raised on rank" in caught.value.__notes__[0]


def test_a_file_that_a_function_runs_and_that_raises_is_its_error(pool: sky.Compute, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('lost')\n")

    @sky.function
    def train(path: str) -> None:
        from IPython import get_ipython

        get_ipython().run_line_magic("run", path)

    with pytest.raises(ValueError, match="lost"):
        train(str(tmp_path / "bad.py")) >> pool


def test_a_failure_that_a_function_shows_is_output(pool: sky.Compute, capsys: pytest.CaptureFixture[str]) -> None:
    @sky.function
    def show() -> None:
        from IPython import get_ipython

        get_ipython().run_cell("1/0")

    show() @ pool
    assert "ZeroDivisionError: division by zero" in "".join(map(plain, capsys.readouterr()))


def test_an_error_in_a_broadcast_keeps_the_other_ranks_results(pool: sky.Compute) -> None:
    with pytest.raises(sky.CellError) as caught:
        failing(1) @ pool
    assert isinstance(caught.value.errors[1], FileNotFoundError)
    assert caught.value.result[0] == "fine"


def test_calls_from_threads_are_spread_over_the_ranks(pool: sky.Compute) -> None:
    @sky.function
    def slow() -> int:
        # Each waits until the other is on.
        sky.barrier("two calls").wait()
        return sky.instance_info().rank

    ranks: list[int] = []
    threads = [threading.Thread(target=lambda: ranks.append(slow() >> pool)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ranks) == [0, 1]


def test_functions_run_in_the_same_processes_as_cells(pool: sky.Compute) -> None:
    assert pool.pool is not None
    pids = [facts["pid"] for node in pool.pool.status().values() for facts in node["ranks"].values()]
    assert sorted(who_am_i() @ pool) == sorted(pids)


@pytest.mark.parametrize(("call", "seen"), [(loud, "heard from 0"), (loud_below, "heard below from 1")])
def test_output_can_be_shown_from_some_ranks_only(
    pool: sky.Compute, capsys: pytest.CaptureFixture[str], call: object, seen: str
) -> None:
    call() @ pool  # type: ignore[operator]
    printed = capsys.readouterr().out
    assert seen in printed
    assert printed.count("heard") == 1


def test_equal_lines_of_several_ranks_are_printed_once(pool: sky.Compute, capsys: pytest.CaptureFixture[str]) -> None:
    sky.function(lambda: print("all of us"))() @ pool
    assert capsys.readouterr().out == "[0-1] all of us\n"


def test_a_result_over_a_megabyte_comes_back_from_one_rank_and_from_all(pool: sky.Compute) -> None:
    large = sky.function(lambda: bytes(3_000_000))
    assert len(large() >> pool) == 3_000_000
    assert [len(value) for value in large() @ pool] == [3_000_000] * 2


def test_a_variable_of_the_ranks_is_pulled(pool: sky.Compute) -> None:
    @sky.function
    def bind() -> None:
        vars(sys.modules["__main__"])["there"] = [sky.instance_info().rank]

    bind() @ pool
    assert pool.pull("there") == [[0], [1]]
    assert pool.pull("there", on=1) == [1]
    assert pool.pull("there", on=[1, 0], how="concat") == [0, 1]


def test_a_wrong_call_is_refused_before_anything_runs() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        scaled()


def test_a_call_on_a_pool_that_is_not_started_says_so() -> None:
    with pytest.raises(sky.PoolError, match="not started"):
        scaled(1) @ sky.Compute(nodes=2)


def test_a_spec_that_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(sky.SpecError, match="nodes must be a whole number from 1"):
        sky.Compute(nodes=0)
    with pytest.raises(sky.SpecError, match="jax"):
        sky.Compute(plugins=["jaxx"])
    with pytest.raises(sky.SpecError, match="A100"):
        sky.Compute(accelerator="A100:0")


def test_a_cell_that_runs_again_takes_the_pool_that_it_has_started(pool: sky.Compute) -> None:
    again = sky.Compute(provider=sky.Local(), nodes=2, name="calls").start()
    assert again.pool is pool.pool
    with pytest.raises(sky.PoolError, match="is running with another spec: nodes"):
        sky.Compute(nodes=3, name="calls").start()


@pytest.mark.slow
def test_a_pool_of_another_spec_is_ended_first_where_that_is_asked_for() -> None:
    first = sky.Compute(name="started").start()
    other = sky.Compute(ranks_per_node=2, name="started").start(anew=True)
    try:
        assert first.pool is not None
        assert first.pool.state == "ended"
        assert len(who_am_i() @ other) == 2
    finally:
        other.close()
    assert pools.get("started") is None


def test_two_pools_of_one_name_are_refused(pool: sky.Compute) -> None:
    with pytest.raises(sky.PoolError, match="'calls' is running with another spec"), sky.Compute(nodes=1, name="calls"):
        pass
