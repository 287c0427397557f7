"""Work in the background is held until it is done; calls in threads all run, whichever fails."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from sky_jupyter.util.tasks import BackgroundTasks, results, run_all


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


def test_calls_run_at_once_and_all_of_them_though_one_fails() -> None:
    meeting = threading.Barrier(3, timeout=60)

    def fail() -> int:
        meeting.wait()
        raise ValueError("one of them")

    def work() -> int:
        meeting.wait()
        return 1

    futures = run_all([work, fail, work], "test")
    assert [future.done() for future in futures] == [True] * 3
    assert [future.exception() is None for future in futures] == [True, False, True]
    with pytest.raises(ValueError, match="one of them"):
        results([fail, work, work], "test")
    assert results([work] * 3, "test") == [1, 1, 1]
    assert results([], "test") == []


def test_no_more_calls_run_at_once_than_may() -> None:
    names = results([lambda: threading.current_thread().name] * 9, "few", most=1)
    assert set(names) == {"few_0"}
