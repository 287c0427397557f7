"""What ranks share by name: dicts, sets, counters, queues, locks and barriers, on cells, functions and the notebook."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.node.dask.shared_state import MOST_VALUE
from sky_jupyter.node.shared.shared_types import SharedQueue
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, RankInterrupted
from sky_jupyter.pool.runs.run import Run
from tests.pool.pools import asks_directly, begin, wait_until
from tests.pool.test_faults import scheduler_of


@pytest.fixture(scope="module")
def compute() -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=2, ranks_per_node=2, name="shared") as made:
        yield made


@pytest.fixture
def pool(compute: sky.Compute) -> Pool:
    assert compute.pool is not None
    return compute.pool


def started(pool: Pool, code: str, **options: Any) -> Run:
    return begin(pool, f"import sky_jupyter as sky\n{code}", **options)


def cell(pool: Pool, code: str) -> list[Any]:
    return pool.attend(started(pool, code)).values


def test_each_rank_knows_who_it_is_and_what_its_pool_looks_like(compute: sky.Compute) -> None:
    @sky.function
    def told() -> tuple[dict[str, Any], list[int]]:
        info = sky.instance_info()
        names = (
            "node rank total_nodes world_size ranks_per_node local_rank is_head head_addr head_port job_id peers addr"
        )
        names += " accelerators accelerator hostname nodes worker workers_per_node total_workers global_worker_index"
        return {name: getattr(info, name) for name in names.split()}, sky.shard(list(range(10)))

    all_told = told() @ compute
    assert [shard for _, shard in all_told] == [list(range(rank, 10, 4)) for rank in range(4)]
    first = all_told[0][0]
    for rank, (info, _) in enumerate(all_told):
        expected = {"rank": rank, "node": rank // 2, "local_rank": rank % 2, "is_head": rank == 0}
        expected |= {"total_nodes": 2, "world_size": 4, "ranks_per_node": 2, "hostname": socket.gethostname()}
        expected |= {"worker": rank % 2, "global_worker_index": rank, "nodes": 2, "workers_per_node": 2}
        assert info.items() >= {**expected, "total_workers": 4}.items()
        assert len(info["peers"]) == 2
        assert info["addr"] == info["peers"][rank // 2]
        assert info["head_addr"] == info["peers"][0]
        assert (info["job_id"], info["head_port"]) == (first["job_id"], first["head_port"])
        assert 0 < info["head_port"] < 65536
        assert info["job_id"]
        assert (info["accelerator"] is None) == (info["accelerators"] == 0)


def test_a_dict_is_the_same_on_all_ranks_and_in_the_notebook(pool: Pool, compute: sky.Compute) -> None:
    code = """
info = sky.instance_info()
d = sky.dict("d")
d[info.rank] = {"rank": info.rank, "times": lambda n, rank=info.rank: n * rank}
d.update({("pair", info.rank): info.rank, "last": None})
sky.barrier("d").wait()
sorted(value for key, value in d.items() if isinstance(key, tuple)), len(d), d[3 - info.rank]["times"](2)
"""
    values = cell(pool, code)
    assert values == [([0, 1, 2, 3], 9, 2 * (3 - rank)) for rank in range(4)]
    here = sky.dict("d")
    assert ("pair", 2) in here
    assert here == compute.dict("d")
    assert here.get("last", "default") is None
    assert here.get("absent", "default") == "default"
    assert here.setdefault("last", 3) is None
    assert here.setdefault("new", 3) == 3
    assert here.pop("new") == 3
    assert here.pop("new", 4) == 4
    del here["last"]
    with pytest.raises(KeyError, match="last"):
        here["last"]
    here.clear()
    assert list(here) == here.keys() == here.values() == []


def test_keys_are_told_apart_as_a_dict_does(compute: sky.Compute) -> None:
    keyed = compute.dict("keys")
    keyed[1] = "one"
    keyed["1"] = "text"
    keyed[b"1"] = "bytes"
    keyed[1.5, None] = "pair"
    assert (keyed[True], keyed[1.0], keyed["1"], keyed[b"1"], keyed[1.5, None]) == (
        "one",
        "one",
        "text",
        "bytes",
        "pair",
    )
    assert keyed.keys() == [1, "1", b"1", (1.5, None)]
    with pytest.raises(sky.SpecError, match="not frozenset"):
        keyed[frozenset()] = 1


def test_a_value_that_is_too_large_is_refused_with_the_limit(compute: sky.Compute) -> None:
    with pytest.raises(sky.SpecError, match=r"can have 16 MB, and this bytes has 16\.8 MB"):
        compute.dict("large")["x"] = bytes(MOST_VALUE)
    compute.dict("large")["x"] = bytes(MOST_VALUE - 1000)
    assert len(compute.dict("large").pop("x")) == MOST_VALUE - 1000


def test_a_counter_loses_nothing_where_all_ranks_count(pool: Pool) -> None:
    counted = cell(pool, 'c = sky.counter("c")\n[c.increment() for _ in range(100)]')
    assert sorted(itertools.chain.from_iterable(counted)) == list(range(1, 401))
    counter = sky.counter("c")
    assert (int(counter), counter.value, counter.get(), counter.add(5), counter.decrement(2)) == (
        400,
        400,
        400,
        405,
        403,
    )
    assert counter.reset() == 403
    assert int(counter) == 0


def test_of_several_ranks_that_add_the_same_to_a_set_one_is_told_that_it_was_new(pool: Pool) -> None:
    news = cell(pool, 's = sky.set("s")\nsky.barrier("s").wait()\n[s.add(n) for n in range(20)]')
    assert [sum(told) for told in zip(*news, strict=True)] == [1] * 20
    there = sky.set("s")
    assert sorted(there) == list(range(20))
    assert 3 in there
    there.discard(3)
    there.discard(3)
    with pytest.raises(KeyError):
        there.remove(3)
    assert (3 in there, len(there)) == (False, 19)
    there.clear()
    assert not there.items()


def test_a_key_that_equals_another_is_the_same_key(pool: Pool) -> None:
    class Name(str, enum.Enum):
        FIRST = "first"

    there = sky.dict("equal keys")
    there[Name.FIRST] = 1
    assert (there["first"], Name.FIRST in there, len(there)) == (1, True, 1)


def test_a_set_and_a_dict_share_nothing_whatever_their_names(pool: Pool) -> None:
    names = ["plain", "set:plain", "dict:set:plain"]
    for name in names:
        sky.set(name).add(f"of set {name}")
        sky.dict(name)[f"of dict {name}"] = 1
    assert [list(sky.set(name)) for name in names] == [[f"of set {name}"] for name in names]
    assert [list(sky.dict(name)) for name in names] == [[f"of dict {name}"] for name in names]


def test_each_item_of_a_queue_goes_to_one_rank(pool: Pool) -> None:
    tasks = sky.queue("tasks")
    for number in range(40):
        tasks.put(number)
    taken = cell(
        pool, 'q = sky.queue("tasks")\nout = []\nwhile (t := q.get(timeout=0.2)) is not None: out.append(t)\nout'
    )
    assert sorted(task for mine in taken for task in mine) == list(range(40))  # type: ignore[attr-defined]
    assert tasks.empty()
    assert tasks.poll() is None


def test_a_full_queue_makes_its_writers_wait(compute: sky.Compute) -> None:
    small = compute.queue("small", maxsize=2)
    assert (small.offer(1), small.offer(2), small.offer(3)) == (True, True, False)
    assert small.full()
    with pytest.raises(queue.Full, match="no room"):
        small.put(3, timeout=0.05)
    writer = threading.Thread(target=small.put, args=(3,))
    writer.start()
    assert [small.get(), small.get(), small.get()] == [1, 2, 3]
    writer.join()
    with pytest.raises(sky.SpecError, match="of at most 2 items"):
        compute.queue("small", maxsize=3).put(1)
    small.put(4)
    small.clear()
    assert small.qsize() == 0


def test_a_rank_that_is_interrupted_in_a_wait_takes_no_item_with_it(pool: Pool, compute: sky.Compute) -> None:
    current = started(pool, 'sky.queue("later").get()')
    wait_until(lambda: "ranks 0-3 are at `sky.queue(" in str(pool.where()))
    pool.interrupt(current)
    with pytest.raises(CellError) as caught:
        pool.attend(current)
    assert isinstance(caught.value.errors[0], RankInterrupted)
    assert "waiting for an item of queue 'later'" in str(caught.value.errors[0])
    later = compute.queue("later")
    for number in range(3):
        later.put(number)
    assert [later.get(timeout=60) for _ in range(3)] == [0, 1, 2]


def test_a_wait_in_the_notebook_can_be_interrupted(compute: sky.Compute) -> None:
    waited = compute.queue("waited")
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt, match="waiting for an item of queue 'waited'"):
        waited.get()
    waited.put(1)
    assert waited.get(timeout=60) == 1


def test_a_lock_is_held_by_one_rank_at_a_time(pool: Pool) -> None:
    code = """
d, c, lock = sky.dict("locked"), sky.counter("inside"), sky.lock("one")
most = 0
for _ in range(5):
    with lock:
        most = max(most, c.increment())
        d["sum"] = d.get("sum", 0) + 1
        c.decrement()
most
"""
    assert cell(pool, code) == [1] * 4
    assert sky.dict("locked")["sum"] == 20
    assert not sky.lock("one").locked()


def test_a_lock_that_is_held_can_be_asked_for_in_vain(compute: sky.Compute, pool: Pool) -> None:
    lock = compute.lock("held")
    assert lock.acquire()
    cell(pool, 'lock = sky.lock("held", timeout=0.05)')
    assert cell(pool, "lock.acquire(blocking=False), lock.acquire(timeout=0.05), lock.acquire()") == [(False,) * 3] * 4
    with pytest.raises(CellError, match="all 4 ranks") as caught:
        cell(pool, "with lock: pass")
    assert isinstance(caught.value.errors[0], TimeoutError)
    with pytest.raises(CellError) as caught:
        cell(pool, "lock.release()")
    assert isinstance(caught.value.errors[0], RuntimeError)
    lock.release()
    assert cell(pool, "lock.timeout = 30\nwith lock: pass\n1") == [1] * 4


def test_a_rank_that_is_killed_holds_no_lock_any_more(pool: Pool, compute: sky.Compute) -> None:
    holding = """
import os, time
if sky.instance_info().rank == 2:
    sky.lock("mortal").acquire()
    sky.dict("mortal")["pid"] = os.getpid()
    time.sleep(600)
else:
    sky.lock("mortal").acquire()
    sky.lock("mortal").release()
    sky.counter("mortal").add()
"""
    current = started(pool, holding)
    wait_until(lambda: "pid" in compute.dict("mortal") or compute.counter("mortal").get() == 3)
    wait_until(lambda: "pid" in compute.dict("mortal"))
    waiting = compute.lock("mortal")
    assert not waiting.acquire(timeout=0.1)
    os.kill(compute.dict("mortal")["pid"], signal.SIGKILL)
    assert waiting.acquire(timeout=60)
    waiting.release()
    with pytest.raises(CellError, match="rank 2"):
        pool.attend(current)


def test_others_who_wait_at_a_barrier_are_ended_when_a_rank_fails_and_say_where_they_were(
    pool: Pool, tmp_path: Path
) -> None:
    code = f"""
import os, time
sky.counter("epoch").get()
if sky.instance_info().rank == 1:
    while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.02)
    1 / 0
sky.barrier("epoch").wait()
"""
    run = started(pool, code, grace=0.2)
    others = 'ranks 0, 2-3 are at `sky.barrier("epoch").wait()`'
    wait_until(lambda: (text := str(pool.where())).startswith(others) and "direct_requests.py" in text)
    (tmp_path / "go").touch()
    with pytest.raises(CellError) as caught:
        pool.attend(run)
    assert isinstance(caught.value.errors[1], ZeroDivisionError)
    assert "waiting at barrier 'epoch' for 4 in all" in str(caught.value.errors[3])
    # Nobody of them is counted any more.
    assert sorted(cell(pool, 'sky.barrier("epoch").wait(timeout=60)')) == [0, 1, 2, 3]


def test_a_barrier_can_have_fewer_than_all_and_a_limit(pool: Pool, compute: sky.Compute) -> None:
    assert set(cell(pool, 'r = sky.instance_info().rank\nsky.barrier(f"half {r % 2}", n=2).wait()')) == {0, 1}
    alone = compute.barrier("alone", n=2)
    with pytest.raises(TimeoutError, match="not all 2 arrived"):
        alone.wait(timeout=0.05)
    first = threading.Thread(target=alone.wait)
    first.start()
    assert alone.wait(timeout=60) in (0, 1)
    first.join()


def test_those_who_wait_for_different_numbers_of_others_are_told(pool: Pool) -> None:
    code = """
def wait(n, **options):
    try: return sky.barrier("odd", n=n).wait(**options)
    except (TimeoutError, sky.SpecError) as error: return error

told, rank = None, sky.instance_info().rank
if rank == 0:
    while not isinstance(wait(2, timeout=60), int): pass
elif rank == 1:
    while not isinstance(told, sky.SpecError): told = wait(3, timeout=0.01)
    while not isinstance(wait(2, timeout=60), int): pass
str(told)
"""
    assert cell(pool, code)[1] == "barrier 'odd' is waited at by others for 2 in all, not 3"


def test_functions_share_as_cells_do(compute: sky.Compute) -> None:
    @sky.function
    def count(items: list[int]) -> int:
        done = sky.counter("functions")
        for _ in sky.shard(items):
            done.increment()
        sky.barrier("functions", parties=sky.instance_info().world_size).wait()
        return int(done)

    assert count(list(range(10))) @ compute == [10] * 4


def test_a_rank_that_is_killed_in_a_wait_leaves_the_item_to_others(pool: Pool, compute: sky.Compute) -> None:
    code = """
import os
sky.dict("fatal")["pid"] = os.getpid()
sky.queue("fatal").get()
"""
    run = started(pool, code, ranks=[1])
    wait_until(lambda: "pid" in compute.dict("fatal") and "rank 1 is at `sky.queue(" in str(pool.where()))
    os.kill(compute.dict("fatal")["pid"], signal.SIGKILL)
    with pytest.raises(CellError, match="killed by SIGKILL"):
        pool.attend(run)
    fatal = compute.queue("fatal")
    fatal.put("item")
    assert fatal.get(timeout=60) == "item"


def test_threads_of_a_rank_wait_beside_each_other(pool: Pool) -> None:
    code = """
import threading
rank = sky.instance_info().rank
mine, got = sky.queue(f"threads-{rank}"), []
threads = [threading.Thread(target=lambda: got.append(mine.get())) for _ in range(8)]
for thread in threads: thread.start()
for number in range(8): mine.put(number)
for thread in threads: thread.join()
sorted(got)
"""
    assert cell(pool, code) == [list(range(8))] * 4


def test_ranks_and_notebook_ask_the_scheduler_of_their_machine_by_its_socket(pool: Pool, compute: sky.Compute) -> None:
    def connections() -> int:
        """Return how many there are, without the socket that listens."""
        found = scheduler_of(pool).net_connections("unix")
        return sum(one.laddr.endswith("/names") for one in found) - 1

    assert (Path(pool.hosts[0].folder) / "names").stat().st_mode & 0o777 == 0o600
    cell(pool, 'sky.counter("directly").add()\nsky.counter("directly").add()')
    compute.counter("directly").add()
    assert compute.counter("directly").add() == 10
    assert connections() >= 5
    scheduler_of(pool).kill()
    with pytest.raises(sky.PoolError, match="was restarted"):
        compute.counter("directly").get()
    assert compute.counter("directly").add() == 1
    assert compute.counter("directly").add() == 2
    with pytest.raises(CellError, match="was restarted"):
        cell(pool, 'sky.counter("directly").add()')
    cell(pool, 'sky.counter("directly").add()\nsky.counter("directly").add()')
    assert compute.counter("directly").add() == 11
    assert connections() >= 5


def test_a_subprocess_of_a_rank_is_told_that_it_is_none(pool: Pool) -> None:
    code = """
import subprocess, sys
program = "import sky_jupyter as sky; sky.counter('x').get()"
subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr.splitlines()[-1]
"""
    assert "only the rank's own process can ask its pool" in str(cell(pool, code)[0])


def test_a_rank_has_neither_keys_nor_dask(pool: Pool) -> None:
    code = """
import os, sys
sky.counter("clean").add()
"distributed" in sys.modules, [k for k in os.environ if "TLS" in k], ".key" in "".join(os.environ.values())
"""
    assert cell(pool, code) == [(False, [], False)] * 4


def test_what_is_shared_is_gone_with_the_scheduler_and_each_rank_is_told_once(pool: Pool, compute: sky.Compute) -> None:
    kept = compute.dict("kept")
    kept["x"] = 1
    current = started(pool, 'sky.counter("up").add()\nsky.barrier("never", n=99).wait()')
    wait_until(lambda: compute.counter("up").get() == 4)
    scheduler_of(pool).kill()
    with pytest.raises(CellError, match="all 4 ranks") as caught:
        pool.attend(current)
    for error in caught.value.errors.values():
        # On a machine with much to do a node may have been given up meanwhile.
        assert isinstance(error, (sky.PoolError, sky.RankDied))
        assert "the pool's scheduler, which runs on the head, was restarted" in str(error) or "lost" in str(error)
    with pytest.raises(sky.PoolError, match="was restarted"):
        kept["x"]
    assert "x" not in kept
    assert sorted(cell(pool, 'sky.counter("again").add()')) == [1, 2, 3, 4]


def test_a_lock_of_an_agent_that_is_killed_is_free_when_its_node_is_back(pool: Pool, compute: sky.Compute) -> None:
    held = started(pool, 'sky.lock("agent").acquire()\nsky.dict("agent")["held"] = 1\nwhile 1: pass', ranks=[3])
    wait_until(lambda: "held" in compute.dict("agent"))
    psutil.Process(pool.status()[1]["pid"]).kill()
    assert compute.lock("agent").acquire(timeout=60)
    compute.lock("agent").release()
    with pytest.raises(CellError, match="only rank"):
        pool.attend(held)


def test_who_waits_in_the_notebook_is_told_that_the_pool_has_ended() -> None:
    told: list[str] = []

    def wait(waited: SharedQueue) -> None:
        try:
            waited.get()
        except sky.PoolError as error:
            told.append(str(error))

    with sky.Compute(provider=sky.Local(), nodes=1, name="ending") as made:
        waited = made.queue("never")
        assert waited.poll() is None
        waiting = threading.Thread(target=wait, args=(waited,))
        waiting.start()
        wait_until(lambda: asks_directly(waiting))
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(told) == 1


def test_without_a_pool_there_is_nothing_to_share() -> None:
    with pytest.raises(sky.SpecError, match="1 to 200 characters"):
        sky.dict("")


# The forms for functions that are coroutines.


def test_methods_are_awaited_while_the_other_tasks_of_a_function_go_on(compute: sky.Compute) -> None:
    @sky.function
    async def works() -> tuple[Any, ...]:
        rank = sky.instance_info().rank
        counter, lock, numbers = sky.counter("async"), sky.lock("async"), sky.set("async")
        async with lock:
            await counter.reset_async(await counter.value_async() + 1)
        own = sky.queue(f"async-{rank}", maxsize=1)
        waiting = asyncio.ensure_future(own.get_async())
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
        await own.put_async("item")
        got = [await waiting]
        # What was given up has taken nothing.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(own.get_async(), 0.1)
        await own.put_async("next")
        with pytest.raises(queue.Full):
            await own.put_async("too many", timeout=0.0)
        got.append(await own.get_async())
        shared = sky.dict("async")
        await shared.set_async(rank, {"rank": rank})
        added = [await numbers.add_async("same"), await numbers.contains_async("other")]
        place = await sky.barrier("async").wait_async()
        told = await shared.get_async(3 - rank), await shared.pop_async("none", None)
        await counter.increment_async(2)
        await counter.decrement_async()
        return got, added, place, told

    found = works() @ compute
    assert [got for got, *_ in found] == [["item", "next"]] * 4
    assert sorted(added for _, added, *_ in found) == [[False, False]] * 3 + [[True, False]]
    assert sorted(place for _, _, place, _ in found) == [0, 1, 2, 3]
    assert [told for *_, told in found] == [({"rank": 3 - rank}, None) for rank in range(4)]
    assert asyncio.run(compute.counter("async").value_async()) == 8


def test_a_rank_that_is_interrupted_as_it_awaits_takes_nothing_with_it(pool: Pool, compute: sky.Compute) -> None:
    run = started(pool, "await sky.queue('awaited').get_async()", ranks=[0])
    wait_until(lambda: run.since_began > 1.0)
    pool.interrupt(run)
    with pytest.raises(CellError) as caught:
        pool.attend(run)
    assert isinstance(caught.value.errors[0], RankInterrupted)
    awaited = compute.queue("awaited")
    awaited.put("item")
    assert awaited.get(60.0) == "item"


def test_awaiting_in_the_notebook_is_given_up_where_it_is_cancelled(compute: sky.Compute) -> None:
    async def wait() -> Any:
        here = compute.queue("here")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(here.get_async(), 0.2)
        await here.put_async("item")
        return await here.get_async(60.0)

    assert asyncio.run(wait()) == "item"
