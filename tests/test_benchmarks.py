"""The benchmarks run, their rows hold ratios, and nothing of them is left; how fast it was is no test's business."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import report, training, way
from benchmarks.__main__ import SUBJECTS
from benchmarks.measure import HEAD, Options, Row, by_turns, mean_ratio, rows

ROOT = Path(__file__).resolve().parent.parent
MARK = "SKY_BENCHMARK"
PATIENCE = 60.0
RATIO = re.compile(r"\d+\.\d{3} \((\d+\.\d\d-\d+\.\d\d|too few turns)\)")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder whose path is short enough for unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="b-") as path:
        yield Path(path)


def run(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the benchmarks with their temporary files in the folder; also the mark that their processes carry."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, MARK: mark, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done, mark


def marked(mark: str) -> list[str]:
    """Processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["import", "cell", "output", "capture", "training", pytest.param("many", marks=pytest.mark.long)]
)
def test_a_quick_run_prints_ratios_and_leaves_nothing(name: str, folder: Path) -> None:
    done, mark = run(folder, name, "--quick", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    head = next(line for line in lines if line.split()[:2] == ["what", "ours"])
    assert all(column in head for column in HEAD)
    with_ratio = [line for line in lines if RATIO.search(line)]
    assert len(with_ratio) >= 2, done.stdout
    end = time.monotonic() + PATIENCE
    while left := marked(mark):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert [path.name for path in folder.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "process", "number"),
    [
        ("training", "by_hand.py", signal.SIGTERM),
        ("start", "ipykernel_launcher", signal.SIGINT),
        ("start", "sky_jupyter.node.host", signal.SIGTERM),
    ],
)
def test_a_run_that_a_signal_ends_leaves_nothing(name: str, process: str, number: int, folder: Path) -> None:
    mark = uuid.uuid4().hex
    # A shell's background has SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command = [sys.executable, "-m", "benchmarks", name, "--quick", "--repeat", "1"]
        env = {**os.environ, MARK: mark, "TMPDIR": str(folder)}
        running = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with running:
        while not any(process in line for line in marked(mark)):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(number)
        _, told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + number, told
    assert marked(mark) == []
    assert [path.name for path in folder.iterdir()] == []


def test_an_unknown_benchmark_is_refused_with_those_there_are(folder: Path) -> None:
    done, _ = run(folder, "cells")
    assert done.returncode == 2
    assert "no benchmark cells" in done.stderr
    assert all(name in done.stderr for name in SUBJECTS)


def test_the_page_has_a_row_for_each_benchmark() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(SUBJECTS)


def test_only_benchmarks_as_they_are_are_saved(folder: Path) -> None:
    done, _ = run(folder, "cell", "--save", "--quick")
    assert done.returncode == 2
    assert "--save is for benchmarks as they are" in done.stderr


def test_jobs_take_turns_and_none_always_comes_first() -> None:
    order: list[str] = []
    jobs = {name: (lambda name=name: order.append(name) or {"s": float(len(order))}) for name in "abc"}
    samples = by_turns(jobs, 3)
    assert order == [*"abc", *"bca", *"cab"]
    assert samples["a"]["s"] == [1.0, 6.0, 8.0]


def test_the_budget_stands_with_the_best_peer() -> None:
    samples = {"ours": {"s": [2.0, 2.0]}, "slow": {"s": [8.0, 8.0]}, "fast": {"s": [1.0, 1.0]}}
    first, second = rows("x", samples, "s", ours="ours", best=1.5)
    assert (first.peer_name, first.ratio, first.budget, first.within) == ("fast", 2.0, "1.5 x", False)
    assert (second.peer_name, second.ratio, second.budget, second.within) == ("slow", 0.25, "", None)
    assert first.cells[-1] == "1.5 x OVER"
    own = rows("x", samples, "s", ours="ours", most=2.0)[0]
    assert (own.budget, own.within) == ("2 s", True)


def test_a_ratio_with_an_interval_is_judged_only_where_all_of_the_interval_agrees() -> None:
    def row(*ours: float) -> Row:
        return Row("x", ours, [1.0] * len(ours), "a peer", "s", most_ratio=1.02, sure=True)

    assert row(*[1.0] * 10).cells[-2:] == ("1.000 (1.000-1.000, 95 %)", "1.02 x kept")
    assert row(*[1.03] * 10).cells[-2:] == ("1.030 (1.030-1.030, 95 %)", "1.02 x OVER")
    noisy = row(1.3, 1.0, 0.8, 1.1, 1.4, 0.7, 1.0, 0.9, 1.2, 1.0)
    assert (noisy.within, noisy.cells[-1]) == (None, "1.02 x not told")
    few = row(1.0, 1.0)
    assert few.cells[-2:] == ("1.000 (too few turns)", "1.02 x not told")


def test_the_interval_is_students_and_what_coming_first_does_cancels() -> None:
    # Scipy's bounds of the same ten pairs' logarithms.
    first, second = [1.1, 1.2, 1.0, 1.3, 1.1, 1.2, 0.9, 1.0, 1.1, 1.2], 0.9
    ours = [value for pair in first for value in (pair, second)]
    middle, low, high = mean_ratio(ours, [1.0] * len(ours))
    assert (round(middle, 3), round(low, 3), round(high, 3)) == (0.997, 0.958, 1.037)
    assert mean_ratio([1.2, 1 / 1.2] * 5, [1.0] * 10) == pytest.approx((1.0, 1.0, 1.0))
    assert math.isnan(mean_ratio([1.0] * 8, [1.0] * 8)[1])


def test_each_rank_is_pinned_with_all_its_threads() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not pin processes")
    code = "import threading; threading.Thread(target=input).start(); print(flush=True); threading.main_thread().join()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        training.pin([process.pid])
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        assert len(threads) == 2
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {
            frozenset({min(os.sched_getaffinity(0))})
        }
        process.communicate(b"\n")


def test_a_turn_of_training_counts_the_slowest_rank_and_the_processors_of_all() -> None:
    assert training.figures([(0.5, 0.4), (0.6, 0.3)]) == pytest.approx({"wall": 0.6, "processor": 0.7})


def test_saved_figures_take_the_place_of_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    sections = "### start\n\nkept\n\n### cell\n\nold\n\n"
    readme.write_text(f"# before\n{report.BEGIN}\n{sections}{report.END}\nafter\n")
    monkeypatch.setattr(report, "README", readme)
    rows = [Row("x = 1", [8.0], [10.0], "a peer", "ms", most_ratio=1.0)]
    for _ in range(2):
        report.save("cell", rows, took=1.0)
    text = readme.read_text()
    assert text.startswith("# before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    # Those of other benchmarks stay.
    assert text.index("### start\n\nkept\n") < text.index("### cell\n\n20")
    assert (
        text.count("| x = 1 | 8.00 (8.00-8.00) ms | a peer | 10.0 (10.0-10.0) ms | 0.800 (0.80-0.80) | 1 x kept |") == 1
    )
    assert "cores" in text


def test_quick_and_repeat_choose_the_number_of_repetitions() -> None:
    assert Options().times(300, quick=60) == 300
    assert Options(quick=True).times(300, quick=60) == 60
    assert Options(quick=True, repeat=1).times(300, quick=60) == 1


SOURCE = """
class A:
    def __init__(self, x):
        self.x = x

    @property
    def y(self):
        return make(self.x)

    def get(self):
        return self.x

    def do(self):
        def inner():
            return 1
        return call(inner)

def go(a):
    while a:
        a -= 1
"""


def test_the_way_of_a_cell_counts_what_a_reader_opens(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    found = way.functions(str(path))
    assert [name for _, _, name in found] == ["", "", "", "A.do", "go"]
    # What is written within a function is read with it.
    line = SOURCE.splitlines().index("        def inner():") + 1
    assert [name for first, last, name in found if first <= line <= last] == ["A.do"]


def test_a_coroutine_that_a_loop_begins_belongs_to_the_file_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text("def near():\n    pass\n\ndef far():\n    loop.start(near)\n")
    made: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), made)
    near, far = made["near"].__code__, made["far"].__code__
    assert [way.is_own(near, ""), way.is_own(far, "")] == [True, False]
    assert [way.is_own(far, str(path)), way.is_own(near, "another.py")] == [True, False]
