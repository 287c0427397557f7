"""What a rank keeps as it works on and on: no more than it can still be asked for."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.capture.collect import collect_value
from sky_jupyter.pool.runs.result import CellError, ValueNotHere
from sky_jupyter.util.text import plain
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import eventually, scheduler_of


def test_a_rank_keeps_nothing_of_what_its_cells_printed_showed_and_raised() -> None:
    with local_pool(nodes=1) as pool:
        run(
            pool,
            "from IPython.display import HTML, display\nfor i in range(3): print(i); display(HTML('<b>')); 7",
            count=1,
        )
        with pytest.raises(CellError):
            run(pool, "print('before'); 1 / 0", count=2)
        kept = "history = get_ipython().history_manager\n[len(getattr(history, name, ())) for name in {names}]"
        names = ("outputs", "exceptions", "output_hist_reprs", "db_input_cache")
        # The last is of this cell.
        assert run(pool, kept.format(names=names), count=3).head == [0, 0, 0, 1]


@pytest.mark.slow
def test_a_rank_keeps_the_values_of_its_last_sixteen_cells_in_out_as_for_a_fetch() -> None:
    with local_pool(nodes=1) as pool:
        results = [run(pool, f"bytearray({2 << 20})", count=number) for number in range(1, 21)]
        assert run(pool, "sorted(Out), '_4' in globals(), len(_20)", count=21).head == ([*range(5, 21)], False, 2 << 20)
        # The last cell's own value is one of the sixteen.
        assert len(results[-1].head) == 2 << 20
        with pytest.raises(ValueNotHere, match="made way for those of 16 newer runs"):
            assert results[0].head


def test_a_rank_lets_go_of_the_values_of_older_cells() -> None:
    with local_pool(nodes=1) as pool:
        run(pool, "import weakref\nclass Value: pass\nmade = []", count=1)
        for number in range(2, 42):
            run(pool, "value = Value(); made.append(weakref.ref(value)); value", count=number)
        assert run(pool, "import gc; gc.collect(); sum(one() is not None for one in made)", count=42).head == 16


def test_a_rank_keeps_the_source_of_its_newest_cells_and_of_functions_that_live() -> None:
    with local_pool(nodes=1) as pool:
        run(
            pool,
            "import linecache\nfrom sky_jupyter.node.kernel import history_trim\nhistory_trim.KEEP_SOURCES = 5",
            count=1,
        )
        run(pool, "def lives(): return 1 / 0", count=2)
        run(pool, "class Lives:\n    def method(self): return lives()", count=3)
        for number in range(4, 40):
            run(pool, f"gone = lambda: {number}", count=number)
        cells = "[key for key in linecache.cache if 'sky-cells' in key]"
        kept = (
            f"len({cells}), len(get_ipython().compile._filename_map), len(In), '_i5' in globals(), '_i39' in globals()"
        )
        sources, named, inputs, old, new = run(pool, kept, count=40).head
        # Up to ten of the newest, and the two that live.
        assert sources <= 13
        assert named <= 13
        assert inputs <= 7
        assert (old, new) == (False, True)
        with pytest.raises(CellError) as caught:
            run(pool, "Lives().method()", count=41)
        shown = plain("\n".join(caught.value._render_traceback_()))
        assert "def lives(): return 1 / 0" in shown
        assert "return lives()" in shown


def test_what_a_rank_forgets_asks_no_object_of_the_user_for_its_class() -> None:
    asked = "class Asks:\n    @property\n    def __class__(self): asked.append(1); return int\nasked = []; one = Asks()"
    with local_pool(nodes=1) as pool:
        run(pool, f"from sky_jupyter.node.kernel import history_trim\nhistory_trim.KEEP_SOURCES = 2\n{asked}", count=1)
        run(pool, "asked.clear()", count=2)
        for number in range(3, 12):
            run(pool, "pass", count=number)
        assert run(pool, "len(asked)", count=12).head == 0


@pytest.mark.slow
def test_tracebacks_of_calls_leave_nothing_in_a_rank() -> None:
    def fails() -> None:
        from pathlib import Path

        Path("/nowhere").read_text()

    with local_pool(nodes=1) as pool:
        count = "import gc; gc.collect(); len(gc.get_objects())"
        counts = []
        for _ in range(4):
            for _ in range(8):
                blob, capture = collect_value((fails, (), {}), {}, pool.ledger, label="call")
                with pytest.raises(CellError):
                    pool.attend(pool.submission.begin_call(blob, capture))
            counts.append(run(pool, count, count=1).head)
        # Not as many as there were calls; each would leave its code and syntax tree.
        # (What the shell makes once may come in between.)
        assert min(counts[3] - counts[2], counts[2] - counts[1]) < 8


@pytest.mark.slow
def test_an_agent_keeps_nothing_of_a_place_that_it_lost(tmp_path: Path) -> None:
    told = tmp_path / "members"

    @contextlib.contextmanager
    def counting(info: object) -> Iterator[None]:
        import gc
        import signal

        def tell(*_: object) -> None:
            gc.collect()
            count = sum(type(item).__name__ == "AgentWorker" for item in gc.get_objects())
            told.with_suffix(".new").write_text(str(count))
            told.with_suffix(".new").rename(told)

        signal.signal(signal.SIGURG, tell)
        yield

    with local_pool(nodes=1, plugins=(sky.plugins.Plugin("counting", around_app=counting),)) as pool:
        for number in range(4):
            scheduler = scheduler_of(pool)
            scheduler.kill()
            assert eventually(lambda: not scheduler.is_running())  # noqa: B023
            run(pool, str(number), count=number)
        agent = psutil.Process(pool.status()[0]["pid"])

        def count() -> int:
            told.unlink(missing_ok=True)
            agent.send_signal(signal.SIGURG)
            assert eventually(told.exists)
            return int(told.read_text())

        # The one that it has, and maybe the one before; on a busy machine others are still closing.
        assert eventually(lambda: count() <= 2)


@pytest.mark.slow
def test_broken_collectives_leave_no_threads_and_no_connections() -> None:
    pytest.importorskip("torch")
    blocked = (
        "import torch, torch.distributed as dist\nif {rank} == dist.get_rank(): 1 / 0\ndist.all_reduce(torch.ones(1))"
    )
    with local_pool(plugins=(sky.plugins.torch(),)) as pool:
        held = []
        for number in range(12):
            with contextlib.suppress(CellError):
                pool.attend(begin(pool, blocked.format(rank=number % 2), grace=0.1))
            pool.settle()
            rank = psutil.Process(pool.status()[0]["ranks"][0]["pid"])
            held.append((rank.num_threads(), rank.num_fds()))
        assert pool.take_restarted() == set()
        # Of the last two breaks there may be something left, in the tracebacks that can still be asked for.
        assert max(held[6:])[0] <= max(held[:4])[0]
        assert max(fds for _, fds in held[6:]) <= max(fds for _, fds in held[:4])
