"""joblib's parallel loops and scikit-learn's searches, of a notebook, on a pool's ranks."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy
import pytest
from joblib import Parallel, delayed

import sky_jupyter as sky
import sky_jupyter.api  # shows what loops print
from sky_jupyter.errors import PoolError, RankDied, SpecError
from sky_jupyter.pool.execution.parallel_loops import PoolExecutor
from sky_jupyter.pool.pool import Pool
from tests.plugins.world import needs
from tests.pool.pools import local_pool, run, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(plugins=(sky.plugins.sklearn(),)) as made:
        yield made


def where(number: int) -> tuple[int, int, int]:
    return number, sky.instance_info().rank, os.getpid()


def test_a_loop_runs_on_all_ranks_and_its_results_are_in_order(pool: Pool) -> None:
    done = Parallel(n_jobs=-1)(delayed(where)(number) for number in range(12))
    assert [number for number, _, _ in done] == list(range(12))
    assert {rank for _, rank, _ in done} == {0, 1}
    assert os.getpid() not in {pid for _, _, pid in done}
    # The namespace of the ranks is a notebook's, and no loop is in its way.
    assert run(pool, "1").values == [1, 1]
    assert list(Parallel(n_jobs=2, return_as="generator")(delayed(abs)(-number) for number in range(5))) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_loop_of_one_job_stays_here(pool: Pool) -> None:
    assert Parallel(n_jobs=1)(delayed(os.getpid)() for _ in range(2)) == [os.getpid()] * 2
    with joblib.parallel_config(backend="threading"):
        assert set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(2))) == {os.getpid()}


def test_what_a_loop_prints_on_the_ranks_is_shown(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    def talk(number: int) -> int:
        print("heard of", number)
        return number

    assert Parallel(n_jobs=-1)(delayed(talk)(number) for number in range(6)) == list(range(6))
    shown = capfd.readouterr().out
    assert sorted(re.findall(r"heard of (\d)", shown)) == list("012345")
    # A silent loop shows nothing.
    Parallel(n_jobs=-1)(delayed(abs)(number) for number in range(6))
    assert capfd.readouterr().out == ""


def test_an_error_keeps_its_type_and_ends_the_loop(pool: Pool) -> None:
    class OfTheCell(ValueError):
        pass

    def fail(number: int) -> int:
        if number == 3:
            raise OfTheCell(number)
        time.sleep(0.05)
        return number

    with pytest.raises(OfTheCell) as caught:
        Parallel(n_jobs=-1)(delayed(fail)(number) for number in range(50))
    assert any("raise OfTheCell(number)" in note for note in caught.value.__notes__)
    # What was on its way is stopped, and the next loop finds the ranks free.
    assert Parallel(n_jobs=-1)(delayed(abs)(-number) for number in range(4)) == [0, 1, 2, 3]


def test_a_loop_in_a_loop_runs_on_its_rank_alone(pool: Pool) -> None:
    def inner(number: int) -> tuple[int, int]:
        return os.getpid(), threading.get_ident()

    def outer(number: int) -> list[tuple[int, int]]:
        return Parallel(n_jobs=-1)(delayed(inner)(one) for one in range(3))  # type: ignore[no-any-return]

    for places in Parallel(n_jobs=-1)(delayed(outer)(number) for number in range(4)):
        assert len(set(places)) == 1


def test_large_arguments_are_brought_to_each_rank_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    begin_one = pool.submission.begin_one

    def counting(blob: Any, *rest: Any, **more: Any) -> Any:
        sent.append(blob.size)
        return begin_one(blob, *rest, **more)

    monkeypatch.setattr(pool.submission, "begin_one", counting)
    array, other = numpy.ones(1 << 20), numpy.zeros(1 << 20)

    def total(values: Any, number: int, more: Any = None) -> float:
        return float(values.sum() + more.sum())

    loop = Parallel(n_jobs=2, batch_size=1)
    assert loop(delayed(total)(array, number, more=array) for number in range(12)) == [2.0 * (1 << 20)] * 12
    # With the first call, and then to each rank that does any of the others.
    assert 2 <= sum(size > 8 << 20 for size in sent) <= 3
    # A new kernel is brought it again; what other loops had is let go of there.
    pool.restart()
    sent.clear()
    assert loop(delayed(total)(array, number, more=other) for number in range(6)) == [1.0 * (1 << 20)] * 6
    held = "from sky_jupyter.plugins.joblib import shared_values as shared\nlen(shared._held)"
    assert run(pool, held, {}).values == [2, 2]
    # Parts of a whole are not kept.
    sent.clear()
    assert len(loop(delayed(numpy.sum)(numpy.ones(1 << 18)) for _ in range(6))) == 6
    assert sum(size > 1 << 20 for size in sent) == 6
    assert run(pool, held, {}).values == [2, 2]


def test_a_kernel_that_dies_fails_the_loop_and_the_next_one_works(pool: Pool) -> None:
    array = numpy.ones(1 << 20)

    def end(values: Any, number: int) -> int:
        if number == 5:
            os._exit(7)
        return number

    with pytest.raises(RankDied, match="exit status 7"):
        Parallel(n_jobs=2, batch_size=1)(delayed(end)(array, number) for number in range(12))
    assert Parallel(n_jobs=2, batch_size=1)(delayed(end)(array, 0) for _ in range(6)) == [0] * 6


def test_a_call_whose_node_is_lost_is_made_again_and_the_loop_goes_on(pool: Pool, tmp_path: Path) -> None:
    array, mark = numpy.ones(1 << 20), tmp_path / "mark"

    def total(values: Any, number: int) -> float:
        if number == 5:
            with mark.open("a") as file:
                file.write(f"{sky.instance_info().node}\n")
            while len(mark.read_text().split()) < 2:
                time.sleep(0.05)
        return float(values.sum()) + number

    def kill() -> None:
        wait_until(mark.exists)
        wait_until(mark.read_text)
        os.kill(pool.status()[int(mark.read_text())]["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    results = Parallel(n_jobs=2, batch_size=1)(delayed(total)(array, number) for number in range(12))
    killer.join()
    assert results == [(1 << 20) + float(number) for number in range(12)]
    assert len(mark.read_text().split()) == 2
    wait_until(lambda: len(pool.status()) == 2)
    pool.settle()


def test_an_interrupt_ends_what_the_ranks_are_at(pool: Pool) -> None:
    timer = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        Parallel(n_jobs=2)(delayed(time.sleep)(250) for _ in range(4))
    assert Parallel(n_jobs=2)(delayed(abs)(-number) for number in range(4)) == [0, 1, 2, 3]


class Stub:
    """The pool of an executor alone: one call runs at a time on each of two nodes, and ``begin`` begins it."""

    def __init__(self, begin: Any) -> None:
        options = SimpleNamespace(retry_on_interruption=3)
        self.spec = SimpleNamespace(world_size=2, ranks_per_node=1, name="p", options=options)
        self.control = SimpleNamespace(silent=set(), lost=set())
        self.submission = SimpleNamespace(begin_one=begin)

    def finish(self, run: Any) -> None:
        raise AssertionError("no run ends here by itself")


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoolExecutor, "_pack", lambda self, function, *args: (None, None))


@pytest.mark.usefixtures("unpacked")
def test_very_many_calls_that_cannot_begin_all_fail() -> None:
    go = threading.Event()

    def refuse(*args: Any, **more: Any) -> Any:
        go.wait()
        raise PoolError("the pool is broken")

    executor = PoolExecutor(Stub(refuse))  # type: ignore[arg-type]
    calls = [executor.submit(lambda: 1, {}) for _ in range(2000)]
    go.set()
    assert {str(call.exception(60)) for call in calls} == {"the pool is broken"}
    executor.close()


@pytest.mark.usefixtures("unpacked")
def test_a_call_that_was_requeued_fails_as_the_pool_ends() -> None:
    runs: list[Any] = []

    def begin(*args: Any, **more: Any) -> Any:
        outcome = SimpleNamespace(status="lost", failed=True, end={}, rank=0, node=0)
        runs.append(SimpleNamespace(task=Future(), outcome=outcome, outcomes={0: outcome}))
        return runs[-1]

    pool = Stub(begin)
    executor = PoolExecutor(pool)  # type: ignore[arg-type]
    first, second = (executor.submit(lambda: 1, {}) for _ in range(2))
    wait_until(lambda: len(runs) == 2)
    pool.control.lost = {0}
    runs[0].task.set_result(None)
    wait_until(lambda: executor._waiting)
    executor.close()
    assert [str(call.exception(60)) for call in (first, second)] == ["pool 'p' has ended"] * 2


def test_a_call_that_is_packed_as_the_pool_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = PoolExecutor(Stub(None))  # type: ignore[arg-type]

    def pack(function: Any, *args: Any) -> tuple[None, None]:
        executor.close()
        return None, None

    monkeypatch.setattr(executor, "_pack", pack)
    with pytest.raises(PoolError, match="has ended"):
        executor.submit(lambda: 1, {})


def test_what_cannot_be_sent_is_told_at_once(pool: Pool) -> None:
    lock = threading.Lock()
    with pytest.raises(sky.CaptureError, match="lock"):
        Parallel(n_jobs=-1)(delayed(id)(lock) for _ in range(2))


@pytest.mark.slow
def test_a_grid_search_is_as_it_is_here(pool: Pool) -> None:
    needs("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    class Ours(UserWarning):
        pass

    x, y = load_iris(return_X_y=True)

    def search(jobs: int) -> Any:
        grid = {"max_depth": [1, 2, 3], "min_samples_leaf": [1, 5]}
        return GridSearchCV(DecisionTreeClassifier(random_state=0), grid, n_jobs=jobs, cv=3).fit(x, y)

    here = search(1)
    with warnings.catch_warnings():
        # A class that no node could import.
        warnings.simplefilter("ignore", Ours)
        there = search(-1)
    assert there.best_params_ == here.best_params_
    assert list(there.cv_results_["mean_test_score"]) == list(here.cv_results_["mean_test_score"])
    assert (there.predict(x) == here.predict(x)).all()


@pytest.mark.slow
def test_loops_run_on_the_newest_pool_whichever_ends_first(pool: Pool) -> None:
    def rank(_: int) -> str:
        return sky.instance_info().job_id.partition("-")[0]

    def on() -> set[str]:
        return set(Parallel(n_jobs=-1)(delayed(rank)(number) for number in range(4)))

    assert on() == {pool.id}
    with local_pool(nodes=1, plugins=(sky.plugins.joblib(),), name="newer") as newer:
        assert on() == {newer.id}
    assert on() == {pool.id}


def test_versions_are_the_notebooks_unless_given() -> None:
    spec = sky.Compute(plugins=["sklearn"]).spec
    pins = spec.full_image.pip
    assert pins[0] == f"joblib=={joblib.__version__}"
    assert pins[1].startswith("scikit-learn==")
    assert sky.Compute(plugins=["joblib(version=1.4.2)"]).spec.full_image.pip == ("joblib==1.4.2",)
    with pytest.raises(SpecError, match="is not a release"):
        sky.plugins.joblib(version="new")
