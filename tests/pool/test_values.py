"""What cells are sent: once in memory, not again where it is still there, each rank its part where that is asked."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sky_jupyter.capture.collect import collect
from sky_jupyter.errors import CaptureError
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.runtime.shard import indices, take
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import Event, NoticeEvent, ProgressEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer import send_values
from tests.conftest import pool_folders
from tests.pool.pools import local_pool, run

MB = 1_000_000
PATIENCE = 60.0
# The proportional and the private bytes of what a rank has mapped of blobs.
MAPPED = """
import re
def mapped():
    found = {"Pss": 0, "Private_Dirty": 0}
    blob = False
    for line in open("/proc/self/smaps"):
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            blob = "/sky-" in line
        elif blob and (match := re.match(r"(Pss|Private_Dirty):\\s+(\\d+) kB", line)):
            found[match[1]] += int(match[2]) * 1024
    return found
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two nodes of two ranks, for tests that leave them as they are."""
    with local_pool(nodes=2, ranks_per_node=2) as made:
        yield made


@pytest.fixture
def told() -> list[Event]:
    """What was told of the values' way."""
    return []


def files(pool: Pool) -> list[Path]:
    """The large files that a pool keeps."""
    folder = pool.hosts[0].blobs / "kept"
    return list(folder.iterdir()) if folder.exists() else []


def kept(pool: Pool) -> dict[str, int]:
    """The names of the large files that a pool keeps, with their inodes."""
    return {path.name: path.stat().st_ino for path in files(pool)}


def written(told: list[Event]) -> int:
    """Bytes of large values that were written."""
    return sum(event.total for event in told if isinstance(event, ProgressEvent) and event.there <= 32 << 20)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def fresh(size: int = 16 * MB) -> np.ndarray[Any, Any]:
    return np.random.default_rng(time.time_ns()).integers(0, 255, size, dtype="u1")


def test_an_array_is_in_memory_once_whatever_holds_it_and_who_writes_has_those_pages_for_itself(pool: Pool) -> None:
    pandas = pytest.importorskip("pandas")
    numbers = np.random.default_rng(time.time_ns()).random(2 * MB)
    frame = pandas.DataFrame({"numbers": numbers, "when": np.arange(2 * MB).astype("M8[s]")})
    names = {"x": numbers, "inside": {"deep": [numbers]}, "frame": frame}
    run(pool, MAPPED)
    run(pool, "(x.sum(), inside['deep'][0].sum(), frame.numbers.sum(), frame.when.max())", names)
    before = run(pool, "mapped()").values
    # What three names hold is one file still, and the dates are one more.
    size = 2 * numbers.nbytes
    assert size * 0.95 < sum(found["Pss"] for found in before) < size * 1.05
    run(pool, "import sky_jupyter as sky\nif sky.instance_info().rank == 1: x[:125_000] = 0")
    after = run(pool, "(mapped()['Private_Dirty'], x[0], x[-1])").values
    assert after[1][0] - before[1]["Private_Dirty"] == pytest.approx(MB, abs=2e5)
    assert [first for _, first, _ in after] == [numbers[0], 0, numbers[0], numbers[0]]
    assert {last for _, _, last in after} == {numbers[-1]}
    assert all(after[rank][0] < 2e5 for rank in (0, 2, 3))


def test_what_was_sent_is_not_sent_again_in_another_cell_in_new_kernels_or_in_another_pool(
    pool: Pool, told: list[Event]
) -> None:
    value = fresh()
    assert run(pool, "x[-1]", {"x": value}, on_send=told.append).values == [value[-1]] * 4
    assert written(told) == pytest.approx(value.nbytes, rel=0.01)
    (name,) = [name for name in kept(pool) if (pool.hosts[0].blobs / "kept" / name).read_bytes() == value.tobytes()]
    told.clear()
    run(pool, "y['a'].sum()", {"y": {"a": value}}, on_send=told.append)
    pool.restart()
    pool.ledger.forget_nodes({})
    assert run(pool, "x[-1]", {"x": value}, on_send=told.append).values == [value[-1]] * 4
    second = fresh()
    with local_pool(nodes=1) as other:
        assert run(other, "x[-1]", {"x": value}, on_send=told.append).values == [value[-1]]
        assert kept(other)[name] == kept(pool)[name]
        assert not told
        run(other, "y[-1]", {"y": second})
        run(pool, "y[-1]", {"y": second}, on_send=told.append)
    # The pool that sent it has ended, and has taken nothing from this one.
    assert not pool_folders(other.id)
    assert (
        run(pool, "(w[-1], z[-1])", {"w": value, "z": second}, on_send=told.append).values
        == [(value[-1], second[-1])] * 4
    )
    assert not told


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_values_are_read_or_written_leaves_nothing_of_them(pool: Pool) -> None:
    value, before = fresh(80 * MB), kept(pool)
    with pytest.raises(KeyboardInterrupt):
        collect("x", {"x": value}, pool.ledger, tell=stop)
    with pytest.raises(KeyboardInterrupt):
        run(pool, "x[-1]", {"x": value}, tick=stop)
    assert kept(pool) == before
    assert not [path for path in pool.hosts[0].blobs.iterdir() if path.name != "kept"]
    assert run(pool, "x[-1]", {"x": value}).values == [value[-1]] * 4


@pytest.mark.slow
def test_what_no_name_holds_is_dropped_where_it_is_too_much_and_sent_again_then(told: list[Event]) -> None:
    held, loose = fresh(), fresh()
    with local_pool(nodes=2, blob_limit=0) as small:
        run(small, "held[0], loose[0]", {"held": held, "loose": loose})
        run(small, "del loose")
        wait_until(lambda: len(kept(small)) == 1)
        # It is only looked for where it was: who has it still has it.
        assert run(small, "held.sum()", {"held": held}, on_send=told.append).values == [held.sum()] * 2
        run(small, "again = held_too[0]", {"held_too": held}, on_send=told.append)
        assert not told
        assert run(small, "other[-1]", {"other": loose}, on_send=told.append).values == [loose[-1]] * 2
        assert written(told) == pytest.approx(loose.nbytes, rel=0.01)


def test_what_no_name_holds_makes_room_where_memory_is_short(pool: Pool) -> None:
    held, loose = fresh(), fresh()
    before = set(kept(pool))
    run(pool, "held = x\nloose = y\n(held[0], loose[0])", {"x": held, "y": loose})
    own = kept(pool).keys() - before
    first = send_values.kept(pool)
    run(pool, "del loose, y")
    facts = send_values.kept(pool)
    assert facts is not None
    assert first is not None
    assert facts["kept"] == first["kept"] == sum(path.stat().st_size for path in files(pool))
    assert facts["loose"] - first["loose"] == loose.nbytes
    assert pool.control is not None
    loop().call(pool.control.ask(rpc.MAKE_ROOM, [0], size=1 << 60), timeout=PATIENCE)
    assert len(kept(pool).keys() & own) == 1
    # Its file has no name any more, and a new kernel is sent it anew.
    run(pool, "held[0]")
    run(pool, "del held, x")
    loop().call(pool.control.ask(rpc.MAKE_ROOM, [0], size=1 << 60), timeout=PATIENCE)
    assert not kept(pool).keys() & own
    pool.restart()
    pool.ledger.forget_nodes({})
    assert run(pool, "x[-1]", {"x": held}).values == [held[-1]] * 4


def shard(pool: Pool, code: str, namespace: dict[str, Any], *names: str, **options: Any) -> Any:
    """Run a cell that is sent parts of names."""
    capture = collect(code, namespace, pool.ledger, shard=names, ranks=pool.spec.world_size)
    return pool.attend(pool.submission.begin_cell(code, capture, **options))


def test_each_rank_is_sent_its_part_as_shard_cuts_it(pool: Pool, told: list[Event]) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"n": np.arange(10.0), "s": list("abcdefghij")})
    given = {
        "numbers": np.arange(40.0).reshape(10, 4),
        "words": [str(number) for number in range(10)],
        "pair": tuple(range(10)),
        "text": "abcdefghij",
        "span": range(0, 20, 2),
        "frame": frame,
    }
    code = f"(lambda: ({', '.join(given)}))()"
    result = shard(pool, code, given, *given, listener=told.append)
    for rank, found in enumerate(result.values):
        for value, mine in zip(given.values(), found, strict=True):
            wanted = take(value, indices(10, rank, 4))
            assert type(mine) is type(wanted)
            assert mine.equals(wanted) if value is frame else np.array_equal(mine, wanted)
    notices = [event.text for event in told if isinstance(event, NoticeEvent)]
    assert [text.partition(":")[0] for text in notices] == [
        f"--shard {','.join(given)} gives 2 of 4 ranks 3 items and the others 2"
    ]
    # Frameworks' arrays are cut in the same way, and bring nothing else along.
    on_one = shard(pool, "words", {"words": given["words"]}, "words", ranks=[2])
    assert on_one.values == [["2", "6"]]


def test_parts_of_an_array_take_as_much_memory_as_the_array_and_come_with_it_again(
    pool: Pool, told: list[Event]
) -> None:
    value, before = np.random.default_rng(time.time_ns()).random(2 * MB), set(kept(pool))
    namespace = {"x": value}
    assert shard(pool, "x.sum()", namespace, "x", on_send=told.append).values == [value[k::4].sum() for k in range(4)]
    assert written(told) == pytest.approx(value.nbytes, rel=0.01)
    sizes = [(pool.hosts[0].blobs / "kept" / name).stat().st_size for name in kept(pool).keys() - before]
    assert sizes == [value.nbytes // 4] * 4
    told.clear()
    # Unchanged, in the same kernels and in new ones.
    assert shard(pool, "len(x)", namespace, "x", on_send=told.append).values == [MB // 2] * 4
    (fact,) = [fact for fact in pool.ledger.facts(namespace) if fact.name == "x"]
    assert (fact.origin, fact.parts, fact.size) == ("notebook", 4, pytest.approx(value.nbytes, rel=0.01))
    pool.restart()
    pool.ledger.forget_nodes({})
    assert shard(pool, "len(x)", namespace, "x", on_send=told.append).values == [MB // 2] * 4
    assert not told
    # One element changes one part, and a cell that does not ask for parts reads all of it.
    value[1] = -1
    assert shard(pool, "x[0]", namespace, "x", on_send=told.append).values == [value[0], -1, value[2], value[3]]
    assert written(told) == pytest.approx(value.nbytes // 4, rel=0.01)
    assert run(pool, "len(x)", namespace).values == [2 * MB] * 4
    assert shard(pool, "x = x * 2\nlen(x)", namespace, "x").values == [MB // 2] * 4


def test_cutting_takes_the_memory_of_one_part(pool: Pool) -> None:
    value = np.random.default_rng(time.time_ns()).random((MB // 10, 80))

    def peak() -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5")  # from now on
    before = peak()
    shard(pool, "float(x.sum())", {"x": value}, "x")
    assert peak() - before < 1.5 * value.nbytes / 4


@pytest.mark.parametrize(
    ("code", "names", "message"),
    [
        ("x", ["x", "missing"], "'missing' cannot be sharded: the notebook has no such name"),
        ("x", ["x", "y"], "--shard x,y: shard takes the same index set .* lengths must be equal, not 3, 2"),
        ("n", ["n"], "--shard n: n, builtins.int, has no length or no items by number"),
        ("d", ["d"], "--shard d: d, builtins.dict, has no order by number"),
        ("x = 1\nx", ["x"], "'x' cannot be sharded: the cell assigns it without reading it"),
    ],
)
def test_what_cannot_be_cut_is_told_before_anything_runs(pool: Pool, code: str, names: list[str], message: str) -> None:
    namespace = {"x": [1, 2, 3], "y": [1, 2], "n": 5, "d": {"a": 1}}
    with pytest.raises(CaptureError) as caught:
        collect(code, namespace, pool.ledger, shard=names, ranks=4)
    assert re.search(message, str(caught.value))
    assert pool.current is None or not pool.current.left


def test_a_blob_folder_of_another_user_is_not_believed(pool: Pool, tmp_path: Path) -> None:
    from sky_jupyter.node.files.blob_cache import BlobCache

    name = "0" * 32
    theirs = tmp_path / "sky-theirs" / "kept"
    theirs.mkdir(parents=True)
    (theirs / name).write_bytes(b"x" * 10)
    mine = BlobCache([tmp_path / "sky-mine"])
    theirs.chmod(0o777)
    assert mine.link_into_run("01234567", {name: 10}) == [name]
    theirs.chmod(0o700)
    assert mine.link_into_run("01234567", {name: 11}) == [name]
    assert mine.link_into_run("01234567", {name: 10}) == []
    assert (tmp_path / "sky-mine" / "01234567" / name).samefile(theirs / name)
    assert (tmp_path / "sky-mine" / "kept" / name).samefile(theirs / name)
