"""Copies from node to node by real agents: the tree, sources and nodes that fail, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from sky_jupyter.errors import NodeLost
from sky_jupyter.node.files import staging
from sky_jupyter.node.files.file_manifest import ManifestEntry, digest_of, hashed, pack, to_wire, walk
from sky_jupyter.node.protocol import rpc
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer import broadcast_tree as spread
from sky_jupyter.pool.transfer.broadcast_tree import BroadcastTree, NodePath
from tests.pool.pools import local_pool

pytestmark = pytest.mark.usefixtures("separate_agents")
PATIENCE = 60.0
NODES = 5


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Agents that share this machine's files; each is given folders of its own."""
    with local_pool(nodes=NODES) as made:
        yield made


def listing_of(source: Path) -> list[ManifestEntry]:
    entries = walk(source)
    return hashed(source, entries, range(len(entries)), lambda size: None)


class Copies:
    """A thing of the first node's, and the others' places for it."""

    def __init__(self, pool: Pool, folder: Path, size: int) -> None:
        self.pool, self.folder, self.size = pool, folder, size
        self.source = self.place(0)
        self.source.mkdir(parents=True)
        (self.source / "large").write_bytes(os.urandom(1 << 20) * (size >> 20))
        (self.source / "small").write_text("small")
        self.told: list[dict[int, int]] = []
        self.sources: set[int | None] = set()

    def spread(self) -> BroadcastTree:
        """A spread of it, not begun."""
        assert self.pool.control is not None
        places = {node: NodePath(to_wire(str(self.place(node)))) for node in range(self.pool.spec.nodes)}
        made = BroadcastTree(
            self.pool.control, secrets.token_hex(4), pack(listing_of(self.source)), self.size, places, self.tell
        )
        take = made._take

        async def taken(node: int, source: int | None) -> None:
            self.sources.add(source)
            await take(node, source)

        made._take = taken  # type: ignore[method-assign]
        self.made = made
        return made

    def place(self, node: int) -> Path:
        return self.folder / f"node{node}" / "thing"

    def tell(self, there: Mapping[int, int]) -> None:
        self.told.append(dict(there))

    async def whole(self, holders: Iterable[int] = (0,), others: Iterable[int] = range(1, NODES)) -> dict[int, str]:
        """The failures of a whole spread, by their kinds."""
        made = self.spread()
        try:
            await made.begin()
            failures = await made.run(holders, others)
            print(failures)  # for who reads of a test that failed
            return {node: failure.kind for node, failure in failures.items()}
        finally:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(made.close(), 10)

    def run(self, **nodes: Iterable[int]) -> dict[int, str]:
        """The same, waited for."""
        return loop().call(self.whole(**nodes), timeout=PATIENCE)

    def right(self) -> list[int]:
        """Nodes whose copy is that of the source."""
        wanted = listing_of(self.source)
        return [n for n in range(NODES) if self.place(n).exists() and listing_of(self.place(n)) == wanted]


@pytest.fixture
def copies(pool: Pool, tmp_path: Path) -> Copies:
    return Copies(pool, tmp_path, 20 << 20)


def wait_until(condition: object) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_all_nodes_have_it_and_who_has_it_serves(copies: Copies) -> None:
    assert copies.run() == {}
    assert copies.right() == list(range(NODES))
    assert copies.told[-1] == dict.fromkeys(range(1, NODES), copies.size + 5)
    assert len(copies.sources) > 1


def test_a_node_that_has_it_already_asks_for_nothing(copies: Copies) -> None:
    copies.run(others=(1,))
    os.utime(copies.place(1) / "large")
    before = (copies.place(1) / "large").stat().st_ino
    assert copies.run(others=(1,)) == {}
    assert (copies.place(1) / "large").stat().st_ino == before


def test_a_source_that_lacks_it_is_replaced_by_another(copies: Copies) -> None:
    # It said that it had it.
    assert copies.run(holders=(1, 0), others=(2, 3, 4)) == {}
    assert copies.right() == [0, 2, 3, 4]


def test_where_no_source_has_it_the_nodes_are_named(copies: Copies) -> None:
    assert copies.run(holders=(1, 2), others=(3, 4)) == {3: "source", 4: "source"}


def test_a_place_that_cannot_be_written_fails_on_that_node_only(copies: Copies) -> None:
    copies.place(2).parent.mkdir(parents=True)
    copies.place(2).write_text("in the way")
    assert copies.run() == {2: "error"}
    assert copies.right() == [0, 1, 3, 4]


@pytest.mark.slow
def test_a_source_whose_agent_dies_is_replaced_and_it_gets_its_own_copy_yet(tmp_path: Path) -> None:
    with local_pool(nodes=NODES) as pool:
        copies = Copies(pool, tmp_path, 80 << 20)
        status = pool.status()
        hit = []

        def tell(there: Mapping[int, int]) -> None:
            # The first that takes it from the head dies in the middle, and is revived.
            if not hit and any(0 < size < copies.size for size in there.values()):
                hit.append(min(there))
                os.kill(status[hit[0]]["pid"], signal.SIGKILL)

        copies.tell = tell  # type: ignore[method-assign]
        assert copies.run() == {}
        assert hit
        assert copies.right() == list(range(NODES))


@pytest.mark.slow
def test_a_node_that_stands_still_is_named_and_the_others_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_pool(nodes=NODES) as pool:
        copies = Copies(pool, tmp_path, 80 << 20)
        monkeypatch.setattr(spread, "_SILENCE", 4.0)
        agent = psutil.Process(pool.status()[1]["pid"])

        def tell(there: Mapping[int, int]) -> None:
            # It stands still, and so is neither revived nor heard of.
            if any(0 < size < copies.size for size in there.values()):
                agent.suspend()

        copies.tell = tell  # type: ignore[method-assign]
        try:
            assert copies.run() == {1: "lost"}
            with pytest.raises(NodeLost, match="node 1 does not answer"):
                copies.run()
            assert copies.right() == [0, 2, 3, 4]
        finally:
            agent.resume()


@pytest.mark.slow
def test_agents_answer_while_they_copy_and_hold_little_of_it(pool: Pool, tmp_path: Path) -> None:
    copies = Copies(pool, tmp_path, 80 << 20)
    agents = [psutil.Process(facts["pid"]) for facts in pool.status().values()]
    before, most = [agent.memory_info().rss for agent in agents], [0] * NODES
    future = loop().submit(copies.whole())
    answers = 0
    while not future.done():
        assert len(pool.status()) == NODES
        answers += 1
        most = [max(peak, agent.memory_info().rss) for peak, agent in zip(most, agents, strict=True)]
    assert future.result() == {}
    # The copy takes seconds: who had to wait for its end would have one answer.
    assert answers > 2
    assert max(peak - size for peak, size in zip(most, before, strict=True)) < 40 << 20


@pytest.mark.slow
def test_an_interrupted_copy_ends_on_the_nodes_and_the_next_goes_on(pool: Pool, tmp_path: Path) -> None:
    copies = Copies(pool, tmp_path, 80 << 20)
    (large,) = [entry for entry in listing_of(copies.source) if entry.name == "large"]
    part = staging.beside(copies.place(1)) / f"{large.token}.part"
    source = psutil.Process(pool.status()[0]["pid"])

    def stands_in_the_middle() -> bool:
        """Let its source go on for a moment, then hold that still: no more comes, however fast this machine is."""
        source.resume()
        time.sleep(0.003)
        source.suspend()
        return part.exists() and part.stat().st_size > 1 << 20

    future = loop().submit(copies.whole())
    try:
        wait_until(stands_in_the_middle)
        future.cancel()
        wait_until(lambda: not loop().call(_jobs(copies, [1])))
    finally:
        source.resume()
    wait_until(lambda: not loop().call(_jobs(copies)))
    size = part.stat().st_size
    assert size < copies.size
    assert copies.run() == {}
    assert digest_of(copies.place(1) / "large") == digest_of(copies.source / "large")


async def _jobs(copies: Copies, nodes: Iterable[int] = range(NODES)) -> list[str]:
    """Jobs that agents still know."""
    control, names = copies.made._control, copies.made._names
    answers = await asyncio.wait_for(control.ask(rpc.TRANSFER_STATUS, nodes, jobs=names), PATIENCE)
    return [name for answer in answers.values() for name in answer]
