"""What a rank keeps as it works on and on: no more than it can still be asked for."""

from __future__ import annotations

import contextlib

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.errors import PoolError
from sky_jupyter.pool.results import CellError
from tests.pool.pools import begin, local_pool, run


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


def test_a_rank_keeps_the_values_of_its_last_sixteen_cells_in_out_as_for_a_fetch() -> None:
    with local_pool(nodes=1) as pool:
        results = [run(pool, f"bytearray({2 << 20})", count=number) for number in range(1, 21)]
        assert run(pool, "sorted(Out), '_4' in globals(), len(_20)", count=21).head == ([*range(5, 21)], False, 2 << 20)
        # The last cell's own value is one of the sixteen.
        assert len(results[-1].head) == 2 << 20
        with pytest.raises(PoolError, match="no longer on this rank"):
            assert results[0].head


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
