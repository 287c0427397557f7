"""Work in the background is held until it is done; calls in threads all run, whichever fails."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from sky_jupyter.util.background_tasks import BackgroundTasks, map_all, run_all


def test_a_task_is_held_until_it_is_done() -> None:
    async def main() -> None:
        tasks, done = BackgroundTasks(), asyncio.Event()

        async def work() -> str:
            await done.wait()
            return "done"

        task = tasks.start(work())
        gc.collect()
        assert tasks == {task}
        done.set()
        assert await task == "done"
        await asyncio.sleep(0)
        assert not tasks

    asyncio.run(main())


def test_work_runs_for_all_items_at_once_though_it_fails_for_one() -> None:
    meeting = threading.Barrier(3, timeout=60)

    def work(item: int) -> float:
        meeting.wait()
        return 6 / item

    futures = run_all(work, [1, 0, 2], "test")
    assert [future.done() for future in futures] == [True] * 3
    assert [future.exception() is None for future in futures] == [True, False, True]
    with pytest.raises(ZeroDivisionError):
        map_all(work, [0, 1, 2], "test")
    assert map_all(work, [1, 2, 3], "test") == [6, 3, 2]
    assert map_all(work, [], "test") == []


def test_no_more_run_at_once_than_may() -> None:
    names = map_all(lambda _: threading.current_thread().name, range(9), "few", most=1)
    assert set(names) == {"few_0"}
