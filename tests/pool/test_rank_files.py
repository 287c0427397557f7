"""The files of a rank as a file system of the notebook's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import io
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

import sky_jupyter as sky
from sky_jupyter.api import fsspec_files
from sky_jupyter.api.fsspec_files import RankFiles
from sky_jupyter.errors import CaptureError, PoolError, SpecError
from sky_jupyter.node.files import browsed_files
from sky_jupyter.node.files.file_calls import FileService
from sky_jupyter.pool import frontend_requests
from sky_jupyter.pool.base.events import ProgressEvent
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer import browse, rank_file_requests
from tests.pool.pools import local_pool, underway, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as made:
        pools.add(made)
        yield made
    pools.discard(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "loss.csv").write_text("step,loss\n0,0.5\n1,0.25\n")
    (tmp_path / "deep" / "data.bin").write_bytes(bytes(range(256)) * 4096 * 8)
    (tmp_path / "deep" / "er" / "ü \udcff.txt").write_text("ü")
    (tmp_path / "link").symlink_to("deep")
    (tmp_path / "lost").symlink_to("nowhere")
    return tmp_path


def test_a_folder_is_listed_with_sizes_times_and_links(pool: Pool, folder: Path) -> None:
    fs = sky.files(1)
    found = {entry["name"].rpartition("/")[2]: entry for entry in fs.ls(f"{folder}/")}
    assert {name: entry["type"] for name, entry in found.items()} == {
        "deep": "directory",
        "link": "directory",
        "loss.csv": "file",
        "lost": "link",
    }
    assert found["loss.csv"]["size"] == 23
    assert found["loss.csv"]["mtime"] == (folder / "loss.csv").stat().st_mtime
    assert found["link"]["destination"] == "deep"
    assert fs.ls(folder / "loss.csv", detail=False) == [str(folder / "loss.csv")]
    # Relative paths begin in the ranks' working folder, which for local nodes is this one.
    assert set(fs.ls("", detail=False)) == set(os.listdir("."))
    assert fs.modified(folder / "loss.csv").timestamp() == pytest.approx((folder / "loss.csv").stat().st_mtime)


def test_pandas_reads_a_file_and_others_read_parts_of_one(pool: Pool, folder: Path, tmp_path_factory) -> None:
    fs = sky.files(0, pool.spec.name)
    with fs.open(folder / "loss.csv") as file:
        assert list(pandas.read_csv(file)["loss"]) == [0.5, 0.25]
    assert fs.open(str(folder / "loss.csv"), "r").readline() == "step,loss\n"
    data = (folder / "deep" / "data.bin").read_bytes()
    name = f"{folder}/link/data.bin"
    assert fs.cat_file(name, 1000, 1003) == data[1000:1003]
    assert fs.cat_file(name, start=-5) == data[-5:]
    with fs.open(name, block_size=1 << 16) as file:
        file.seek(4 << 20)
        assert file.read(10) == data[4 << 20 :][:10]
    # More than one answer has.
    assert len(data) > browsed_files.MOST_BYTES
    assert fs.cat_file(name) == data
    here = tmp_path_factory.mktemp("here")
    fs.get(f"{folder}/deep", f"{here}/", recursive=True)
    assert (here / "deep" / "data.bin").read_bytes() == data
    assert fs.find(folder) == sorted(
        f"{folder}/{name}" for name in ("deep/data.bin", "deep/er/ü \udcff.txt", "link", "loss.csv", "lost")
    )
    assert fs.glob(f"{folder}/*.csv") == [f"{folder}/loss.csv"]


def test_how_far_a_file_has_been_read_is_shown_where_that_takes_long(
    pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    @contextlib.contextmanager
    def shown(title: str, done: str = "") -> Iterator[SimpleNamespace]:
        told.append(title)
        yield SimpleNamespace(on_event=lambda event: told.append(event.text), refresh=lambda: None)
        told.append(done)

    monkeypatch.setattr(pool, "shows", shown)
    name = str(folder / "deep" / "data.bin")
    with sky.files(0).open(name) as file:
        file.read(10)
    assert told == []
    monkeypatch.setattr(fsspec_files, "_LATE", 0.0)
    assert len(sky.files(0).cat_file(name)) == 8 << 20
    assert told == [f"read {name}", "4.2 MB of 8.4 MB", "8.4 MB of 8.4 MB", "done"]


def test_a_file_that_grows_while_the_rank_computes_is_read_as_far_as_it_is(pool: Pool, folder: Path) -> None:
    """The agent answers: the rank is in a loop that ends only with the reading."""
    fs, path, enough = sky.files(0), folder / "log", folder / "enough"
    loop = f"""
import os
with open({str(path)!r}, "a", buffering=1) as log:
    while not os.path.exists({str(enough)!r}):
        log.write("line\\n")
"""
    run = underway(pool, loop, ranks=[0])
    try:
        wait_until(path.exists)
        sizes = [len(fs.cat_file(path)) for _ in range(3)]
        with fs.open(path) as file:
            # What has come since it was opened is not in it.
            assert len(file.read()) == file.size
    finally:
        enough.touch()
        pool.attend(run)
    assert sizes == sorted(sizes)
    path.write_bytes(b"short")
    assert fs.cat_file(path) == b"short"


def test_what_cannot_be_read_is_told_as_the_system_tells_it(pool: Pool, folder: Path) -> None:
    fs = sky.files(1)
    with pytest.raises(FileNotFoundError, match="on rank 1"):
        fs.open(folder / "missing")
    with pytest.raises(FileNotFoundError):
        fs.ls(folder / "lost")
    with pytest.raises(NotADirectoryError):
        fs.info(folder / "loss.csv" / "inner")
    with pytest.raises(IsADirectoryError):
        fs.open(folder / "deep")
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        browse.read_range(pool, 0, str(folder / "pipe"), 0, 1)
    with pytest.raises(OSError, match="null"):
        fs.ls("a\0b")
    assert not fs.exists(folder / "missing")
    assert fs.isdir(folder / "link")


def test_files_that_do_not_tell_their_size_are_read_and_pipes_are_not_opened(pool: Pool, folder: Path) -> None:
    fs = sky.files(1)
    assert fs.cat_file("/proc/version") == fs.open("/proc/version").read() == Path("/proc/version").read_bytes()
    (folder / "empty").touch()
    assert fs.open(f"{folder}/empty").read() == b""
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="it is not a regular file") as told:
        fs.open(f"{folder}/pipe")
    assert told.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("~", "~"),
        ("~/", "~"),
        ("~/.", "~"),
        ("~/..", "~/.."),
        ("~/a/../../x/", "~/../x"),
        ("~//a", "~/a"),
        ("a/..", ""),
    ],
)
def test_a_path_below_the_home_stays_there_until_the_node_knows_it(path: str, plain: str) -> None:
    assert RankFiles._strip_protocol(path) == plain


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_the_account_may_not_read_is_refused(pool: Pool, folder: Path) -> None:
    (folder / "loss.csv").chmod(0)
    with pytest.raises(PermissionError):
        sky.files(0).cat_file(folder / "loss.csv")


def test_the_answer_to_a_forbidden_file_is_a_permission_error(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is forbidden: the agent's answer is given by hand."""

    async def refuse(*_: object, **__: object) -> dict[int, object]:
        return {0: {"error": [errno.EACCES, "Permission denied"]}}

    monkeypatch.setattr(browse, "ask", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        sky.files(0).open("secret")


def test_nothing_is_changed_through_it_and_it_does_not_travel(pool: Pool, folder: Path) -> None:
    fs = sky.files(0)
    before = sorted(folder.rglob("*"))
    for change in (
        lambda: fs.open(folder / "new", "wb"),
        lambda: fs.rm(str(folder / "loss.csv")),
        lambda: fs.mkdir(str(folder / "new")),
        lambda: fs.pipe(str(folder / "new"), b""),
        lambda: fs.put(str(folder / "loss.csv"), str(folder / "new")),
        lambda: fs.mv(str(folder / "loss.csv"), str(folder / "new")),
    ):
        with pytest.raises(OSError, match="%sky put") as raised:
            change()
        assert raised.value.errno == errno.EROFS
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(CaptureError, match="by their paths"):
        pickle.dumps(fs)


def test_what_is_no_rank_or_pool_is_refused_at_once(pool: Pool) -> None:
    for rank in (2, -1):
        with pytest.raises(SpecError, match="ranks 0 to 1"):
            sky.files(rank)
    for rank in ("0", True):
        with pytest.raises(SpecError, match="a rank's number"):
            sky.files(rank)  # type: ignore[arg-type]
    with pytest.raises(PoolError, match="there is no pool"):
        sky.files(0, "nowhere")
    assert isinstance(sky.files(1, pool), RankFiles)  # type: ignore[arg-type]


def test_a_large_folder_comes_in_pages_and_one_that_is_too_large_not_at_all(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1100):
        (tmp_path / f"{number:04}").touch()
    fs = sky.files(0)
    names = [f"{tmp_path}/{number:04}" for number in range(1100)]
    assert fs.ls(tmp_path, detail=False) == names
    page = browse.list_folder(pool, 0, str(tmp_path), "0003", 2)
    assert ([entry.name for entry in page.entries], page.more) == (["0004", "0005"], 1094)
    monkeypatch.setattr("sky_jupyter.api.fsspec_files._MOST_ENTRIES", 1000)
    with pytest.raises(OSError, match="more than 1,000 entries"):
        fs.ls(tmp_path)
    monkeypatch.setattr(browsed_files, "_MOST_NAMES", 10)
    with pytest.raises(OSError, match="more than 10 entries"):
        browsed_files.page(str(tmp_path))


def test_a_file_is_read_through_a_text_wrapper_of_the_users(pool: Pool, folder: Path) -> None:
    with sky.files(0).open(folder / "loss.csv", "rb") as file:
        assert io.TextIOWrapper(file).read().splitlines()[0] == "step,loss"


# -- as the side panel has them --------------------------------------------------------------------


def ask(action: str, **more: object) -> dict[str, Any]:
    return frontend_requests.answer({"action": action, **more})


def test_the_panel_lists_a_folder_and_shows_text_and_pictures_in_bounds(pool: Pool, folder: Path) -> None:
    listed = ask("files", rank=1, path=str(folder))
    assert (listed["path"], listed["ranks"], listed["more"]) == (str(folder), 2, 0)
    assert [(row["name"], row["kind"], row["link"]) for row in listed["entries"]] == [
        ("deep", "directory", None),
        ("link", "directory", "deep"),
        ("loss.csv", "file", None),
        ("lost", "link", "nowhere"),
    ]
    assert [row["name"] for row in ask("files", path=str(folder), after="link")["entries"]] == ["loss.csv", "lost"]
    shown = ask("file", path=str(folder / "loss.csv"), **{"from": -9})
    assert (shown["kind"], shown["text"], shown["from"], shown["next"]) == ("text", "5\n1,0.25\n", 14, 23)
    (folder / "p").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9))
    assert base64.b64decode(ask("file", path=str(folder / "p"))["data"]) == (folder / "p").read_bytes()
    assert ask("file", path=str(folder / "deep" / "data.bin"))["kind"] == "other"
    (folder / "long").write_text("x" * (rank_file_requests.MOST_TEXT + 5))
    assert len(ask("file", path=str(folder / "long"))["text"]) == rank_file_requests.MOST_TEXT
    for path, why in {"missing": "No such file", "loss.csv": "is not a folder"}.items():
        refused = ask("files", path=str(folder / path))
        assert refused["status"] == "error"
        assert why in refused["message"]
    assert "a path of at most" in ask("files", path="a\0b")["message"]


def test_a_fetch_comes_beside_what_is_there_and_tells_how_it_ended(
    pool: Pool, folder: Path, tmp_path_factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    (here / "loss.csv").write_text("mine")
    begun = ask("fetch", rank=1, path=str(folder / "loss.csv"))
    wait_until(lambda: ask("fetch", fetch=begun["fetch"])["state"] == "done")
    assert ask("fetch", fetch=begun["fetch"])["message"] == f"loss (1).csv is in {here} (23 bytes)"
    assert (here / "loss (1).csv").read_bytes() == (folder / "loss.csv").read_bytes()
    assert (here / "loss.csv").read_text() == "mine"
    assert "No such file" in ask("fetch", path=str(folder / "missing"))["message"]
    assert "no name here" in ask("fetch", path="/")["message"]
    assert "no fetch f999 is known" in ask("fetch", fetch="f999")["message"]


def test_a_fetch_is_stopped_and_no_more_go_on_at_a_time_than_some(
    pool: Pool, folder: Path, tmp_path_factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))

    class Slow:
        """The pool, whose transfers end when they are stopped."""

        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

        def get(self, remote: str, local: str, on: list[int], listener: Any, tick: Any) -> None:
            listener(ProgressEvent("", "", 3, 10))
            while True:
                time.sleep(0.01)
                tick()

    fetches = rank_file_requests.Fetches()
    begun = [fetches.begin(Slow(), 0, str(folder / "loss.csv")) for _ in range(4)]  # type: ignore[arg-type]
    assert [one["name"] for one in begun] == ["loss.csv", "loss (1).csv", "loss (2).csv", "loss (3).csv"]
    assert (begun[0]["there"], begun[0]["total"]) == (3, 10)
    with pytest.raises(PoolError, match="4 files are being fetched"):
        fetches.begin(Slow(), 0, str(folder / "loss.csv"))  # type: ignore[arg-type]
    for one in begun:
        fetches.status(one["fetch"], stop=True)
    wait_until(lambda: all(fetches.status(one["fetch"])["state"] == "stopped" for one in begun))


def test_names_that_cannot_be_files_are_refused(pool: Pool, folder: Path, monkeypatch) -> None:
    """A node can list anything; `get` would write it outside of its target."""
    real = browse._ask

    def hostile(*args: Any, **more: Any) -> dict[str, Any]:
        found = real(*args, **more)
        return {**found, "entries": [{**one, "name": b"../../out"} for one in found["entries"]]}

    monkeypatch.setattr(browse, "_ask", hostile)
    with pytest.raises(PoolError, match="cannot be one"):
        sky.files(0).ls(folder)


def test_readers_that_hang_are_bounded_and_said_to_hang(tmp_path: Path, monkeypatch) -> None:
    """As on a file system that does not answer; the agent's other threads are not theirs."""
    config = SimpleNamespace(blobs="", blob_limit=None, cwd=str(tmp_path))
    service, go_on = FileService(tmp_path, config), threading.Event()
    monkeypatch.setattr(browsed_files, "page", lambda *_: {"entries": [go_on.wait(60)]})

    async def browse_all() -> list[dict[str, Any]]:
        asked = [asyncio.create_task(service.sky_list_folder(b".")) for _ in range(18)]
        refused = await asyncio.gather(*asked[16:])
        go_on.set()
        await asyncio.gather(*asked)
        return [*refused, await service.sky_list_folder(b".")]

    *refused, after = asyncio.run(browse_all())
    assert [one["error"][0] for one in refused] == [errno.EBUSY] * 2
    assert after["entries"] == [True]
