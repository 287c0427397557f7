"""Attachment to a pool that outlived its manager."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sky_jupyter.pool.lifecycle.lifecycle import PoolLifecycle
from sky_jupyter.pool.pool import Pool
from tests.pool.pools import local_pool, run


def test_an_interrupted_attachment_goes_no_further_and_asks_the_nodes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[PoolLifecycle] = []
    ended = threading.Event()

    async def hang(pool: PoolLifecycle) -> None:
        connected.append(pool)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def press() -> None:
        if connected:
            raise KeyboardInterrupt

    with local_pool(nodes=1, keep=True, name="left") as first:
        run(first, "kept = 7")
        first.release()
        row = first.registry.pool(first.id)
        assert row is not None
        try:
            with monkeypatch.context() as patch:
                patch.setattr(PoolLifecycle, "meet_pythons", hang)
                with pytest.raises(KeyboardInterrupt):
                    Pool.attach(row, tick=press)
            assert connected[0].control.client is None
            assert connected[0].control.closing
            assert ended.wait(60)
        finally:
            later = Pool.attach(row)
            try:
                assert run(later, "kept").values == [7]
            finally:
                later.down()
