"""Files that are taken over: listings, what stands there, pieces, breaks, and what is wrong at the source."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sky_jupyter.node.files import file_writer, manifest_diff, piece_transfer, staging
from sky_jupyter.node.files.file_manifest import ManifestEntry, hashed, pack, unpack, walk
from sky_jupyter.node.files.piece_transfer import PIECE, FileTransfer, LocalSource, Want

LARGE = 3 * PIECE + 5
# Root may write everywhere, so it becomes another user once a first transfer has imported all that there is.
READ_ONLY = """
import os, tempfile
from pathlib import Path
from tests.node.test_taking import LocalSource, listed, take

def put(name):
    data.chmod(0o755)
    (data / name).write_text(name)
    data.chmod(0o555)
    return take(target, listed(data.parent), LocalSource(data.parent))

with tempfile.TemporaryDirectory() as folder:
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    data, target = Path(folder, "source", "data"), Path(folder, "target")
    data.mkdir(parents=True)
    put("a")
    if os.geteuid() == 0:
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, 65534, 65534)
        os.seteuid(65534)
    done = put("b")
    print(done.state, done.why, sorted(os.listdir(target / "data")), oct((target / "data").stat().st_mode & 0o777))
    for path in (data, target / "data"):
        path.chmod(0o755)
    if os.getuid() == 0:
        os.seteuid(0)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with small, large and empty files, a link, an empty folder, and a name that is no text."""
    root = tmp_path / "source"
    (root / "inner" / "empty").mkdir(parents=True)
    (root / "large").write_bytes(os.urandom(LARGE))
    (root / "inner" / "small").write_text("small")
    (root / "inner" / "nothing").touch()
    (root / os.fsdecode(b"not \xff text\n")).write_bytes(b"odd")
    (root / "program").write_text("#!")
    (root / "program").chmod(0o750)
    (root / "link").symlink_to("inner/small")
    os.utime(root / "inner", (1e9, 1e9))
    return root


def listed(root: Path) -> list[ManifestEntry]:
    """A listing with all hashes, as it comes out of a message."""
    entries = walk(root)
    return unpack(pack(hashed(root, entries, range(len(entries)), lambda size: None)))


def take(
    target: Path, entries: Sequence[ManifestEntry], source: piece_transfer.PieceSource | None, spool: Path | None = None
) -> FileTransfer:
    """A take that has ended."""
    made = FileTransfer(target, entries, source, spool)
    asyncio.run(made.run())
    return made


def left(folder: Path) -> list[Path]:
    """What lies about of transfers."""
    return list(folder.rglob(".sky-*"))


class Counting(LocalSource):
    """Counts what is asked for, and fails from the n-th piece on."""

    def __init__(self, root: Path, good: int = 1 << 30) -> None:
        super().__init__(root)
        self.wants: list[Want] = []
        self.good = good

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        self.wants.extend(wants)
        if len(self.wants) > self.good:
            raise OSError("the other end is gone")
        return await super().pieces(wants)


def test_a_folder_is_taken_over_with_all_that_is_in_it(source: Path, tmp_path: Path) -> None:
    entries, target = listed(source), tmp_path / "to" / "target"
    done = take(target, entries, LocalSource(source))
    assert (done.state, done.why, done.there) == ("done", "", done.total)
    # Modes, times, links and contents: nothing tells them apart.
    assert listed(target) == entries
    assert left(tmp_path) == []


def test_a_read_only_folder_takes_what_is_new_in_it() -> None:
    told = subprocess.run([sys.executable, "-c", READ_ONLY], capture_output=True, text=True, timeout=60, check=False)
    assert (told.stdout, told.stderr[-500:]) == ("done  ['a', 'b'] 0o555\n", "")


def test_a_file_is_taken_over(source: Path, tmp_path: Path) -> None:
    done = take(tmp_path / "target", listed(source / "large"), LocalSource(source / "large"))
    assert done.state == "done"
    assert (tmp_path / "target").read_bytes() == (source / "large").read_bytes()


def test_what_is_there_already_is_not_asked_for(source: Path, tmp_path: Path) -> None:
    entries, target = listed(source), tmp_path / "target"
    take(target, entries, LocalSource(source))
    (target / "program").write_text("ab")
    os.utime(target / "large")
    again = Counting(source)
    assert take(target, entries, again).state == "done"
    # The time of the large one was another, and its content the same.
    assert [name for name, _, _ in again.wants] == ["program"]
    assert listed(target) == entries


def test_looking_reads_no_content_and_says_what_is_not_sure(source: Path, tmp_path: Path) -> None:
    entries, target = walk(source), tmp_path / "target"
    found = manifest_diff.diff(target, entries)
    assert (len(found.absent), found.doubtful, found.clash) == (len(entries), [], "")
    assert found.needs == sum(entry.size for entry in entries) <= found.free
    take(target, listed(source), LocalSource(source))
    found = manifest_diff.diff(target, entries)
    assert found == manifest_diff.ManifestDiff(free=found.free)
    os.utime(target / "large")
    (target / "inner" / "small").write_text("other")
    found = manifest_diff.diff(target, entries)
    names = [[entries[index].name for index in indices] for indices in (found.absent, found.doubtful)]
    assert names == [[], ["large", "inner/small"]]


def test_what_another_thing_stands_in_the_place_of_is_told(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "large").mkdir(parents=True)
    clash = manifest_diff.diff(target, walk(source)).clash
    assert clash == f"{target}/large is a folder: a file cannot take its place"
    clash = manifest_diff.diff(source / "large" / "x", walk(source)).clash
    assert clash == f"{source}/large is not a folder: nothing can be put into it"


def test_a_broken_copy_goes_on_where_it_was(source: Path, tmp_path: Path) -> None:
    entries, target = listed(source / "large"), tmp_path / "target"
    broken = take(target, entries, Counting(source / "large", good=2))
    assert (broken.state, broken.kind, broken.why) == ("failed", "source", "the other end is gone")
    assert not target.exists()
    again = Counting(source / "large")
    assert take(target, entries, again).state == "done"
    assert again.wants == [("", 2 * PIECE, PIECE), ("", 3 * PIECE, 5)]
    assert target.read_bytes() == (source / "large").read_bytes()


def test_what_was_left_of_something_else_is_begun_anew(source: Path, tmp_path: Path) -> None:
    entries, target = listed(source / "large"), tmp_path / "target"
    staging.beside(target).mkdir(mode=0o700)
    (staging.beside(target) / f"{entries[0].token}.part").write_bytes(b"other" * 1000)
    assert take(target, entries, LocalSource(source / "large")).state == "done"
    assert target.read_bytes() == (source / "large").read_bytes()


@pytest.mark.parametrize("name", ["large", "inner/small"])
def test_a_wrong_content_is_not_believed(source: Path, tmp_path: Path, name: str) -> None:
    entries, target = listed(source / name), tmp_path / "target"
    data = bytearray((source / name).read_bytes())
    data[-1] ^= 1
    (source / name).write_bytes(data)
    failed = take(target, entries, LocalSource(source / name))
    assert (failed.state, failed.kind) == ("failed", "source")
    assert "another hash" in failed.why
    assert not target.exists()


def test_a_source_that_became_shorter_fails(source: Path, tmp_path: Path) -> None:
    entries = listed(source / "large")
    os.truncate(source / "large", PIECE)
    assert take(tmp_path / "target", entries, LocalSource(source / "large")).kind == "source"


def test_a_full_disk_is_told_and_not_kept_full(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_writer, "write", full)
    failed = take(tmp_path / "target", listed(source / "large"), LocalSource(source / "large"))
    assert (failed.state, failed.kind) == ("failed", "full")
    assert "No space left" in failed.why
    assert left(tmp_path) == []


def test_two_do_not_write_one_file(source: Path, tmp_path: Path) -> None:
    entries, target = listed(source / "large"), tmp_path / "target"

    class Nested(LocalSource):
        async def pieces(self, wants: Sequence[Want]) -> bytes:
            if not others:
                others.append(FileTransfer(target, entries, LocalSource(source / "large")))
                await others[0].run()
            return await super().pieces(wants)

    others: list[FileTransfer] = []
    assert take(target, entries, Nested(source / "large")).state == "done"
    assert (others[0].kind, others[0].why) == ("error", f"{target}: another transfer is writing it")
    assert target.read_bytes() == (source / "large").read_bytes()


def test_what_came_by_another_way_is_put_in_place(source: Path, tmp_path: Path) -> None:
    entries, target, spool = listed(source), tmp_path / "target", tmp_path / "spool"
    spool.mkdir()
    token = {entry.name: entry.token for entry in entries}
    (spool / token["large"]).write_bytes((source / "large").read_bytes())
    (spool / token["inner/small"]).write_text("wrong")
    part = take(target, entries, None, spool)
    missing = {entries[index].name for index in part.missing}
    assert (part.state, missing) == (
        "done",
        {entry.name for entry in entries if entry.size} - {"large"} | {"inner/nothing"},
    )
    assert spool.exists()
    assert take(target, entries, LocalSource(source), spool).state == "done"
    assert not spool.exists()
    assert listed(target) == entries


def test_many_small_files_come_in_few_pieces(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(700):
        (tmp_path / "source" / f"{number:03}").write_text(str(number))
    counting, calls = Counting(tmp_path / "source"), []
    ask = counting.pieces

    async def pieces(wants: Sequence[Want]) -> bytes:
        calls.append(len(wants))
        return await ask(wants)

    counting.pieces = pieces  # type: ignore[method-assign]
    assert take(tmp_path / "target", listed(tmp_path / "source"), counting).state == "done"
    assert len(calls) == 2
    assert (tmp_path / "target" / "042").read_text() == "42"


def test_an_interrupted_take_leaves_its_part(source: Path, tmp_path: Path) -> None:
    class Stuck(LocalSource):
        async def pieces(self, wants: Sequence[Want]) -> bytes:
            if wants[0][1] == 2 * PIECE:
                await asyncio.sleep(3600)
            return await super().pieces(wants)

    async def interrupt() -> None:
        made = FileTransfer(tmp_path / "target", listed(source / "large"), Stuck(source / "large"))
        task = asyncio.ensure_future(made.run())
        while made.there < 2 * PIECE:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    (part,) = staging.beside(tmp_path / "target").iterdir()
    assert part.stat().st_size == 2 * PIECE


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_a_name_that_leads_out_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        unpack(pack([ManifestEntry(name, "file")]))


def test_what_can_be_no_file_is_refused_here(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="neither file nor folder"):
        walk(tmp_path)


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda name: b"/" not in name and b".." not in name)))
def test_any_name_survives_a_message(names: list[bytes]) -> None:
    entries = [replace(ManifestEntry("", "file"), name=os.fsdecode(name)) for name in names]
    assert unpack(pack(entries)) == entries


def test_what_comes_is_beside_its_place_or_in_it_where_it_can_be_nowhere_else(tmp_path: Path) -> None:
    assert staging.beside(tmp_path / "new").parent == tmp_path
    assert staging.beside(tmp_path / "new") == staging.beside(tmp_path / "new") != staging.beside(tmp_path / "other")
    # Beside a mount point is another file system.
    assert staging.beside(Path("/proc")).parent == Path("/proc")


def test_a_staging_folder_that_others_can_write_to_is_not_used(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    staging.beside(target).mkdir()
    staging.beside(target).chmod(0o777)
    failed = take(target, listed(source), LocalSource(source))
    assert (failed.kind, "another user may write there" in failed.why) == ("error", True)
