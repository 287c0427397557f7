"""Files to local nodes and back: plain copies, where they land, and what is refused before anything is copied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import PoolError, SpecError, TransferError
from sky_jupyter.pool.base.events import Event, ProgressEvent
from sky_jupyter.pool.pool import Pool
from tests.pool.pools import local_pool, run


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two nodes that work in a folder of their own."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("work"))
    try:
        with local_pool() as made:
            yield made
    finally:
        os.chdir(before)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a file and a folder."""
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "numbers").write_bytes(os.urandom(3 << 20))
    (tmp_path / "note").write_text("a note")
    return tmp_path


def test_what_is_put_is_where_the_ranks_work(pool: Pool, here: Path) -> None:
    told: list[Event] = []
    done = pool.put(here / "data", listener=told.append)
    assert (done.what, done.files, done.size, done.copied, done.sent) == ("data", 1, 3 << 20, 3 << 20, 0)
    assert str(done) == "data (3.1 MB): nodes 0, 1; 3.1 MB copied"
    assert run(pool, "import os; os.path.getsize('data/inner/numbers')").values == [3 << 20] * 2
    assert [event for event in told if isinstance(event, ProgressEvent)][-1].there == 3 << 20
    assert str(pool.put(here / "data")) == "data (3.1 MB): nodes 0, 1; it was there already"


@pytest.mark.parametrize(
    ("remote", "lands"),
    [("other", "other"), ("folder/", "folder/note"), ("a/b/c", "a/b/c"), ("~/sky-note", "~/sky-note")],
)
def test_where_it_lands(
    pool: Pool, here: Path, remote: str, lands: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.put(here / "note", remote)
    path = Path(run(pool, f"import os; os.path.abspath(os.path.expanduser('{lands}'))").values[0])
    try:
        assert path.read_text() == "a note"
    finally:
        path.unlink()


def test_an_absolute_place_and_one_that_the_source_has_itself(pool: Pool, here: Path) -> None:
    assert pool.put(here / "note", str(here / "copy")).copied == 6
    assert (here / "copy").read_text() == "a note"
    assert pool.put(here / "note", str(here / "note")).copied == 0


def test_what_the_nodes_have_is_fetched(pool: Pool, here: Path) -> None:
    run(pool, "import os; os.makedirs('results', exist_ok=True); open('results/last', 'w').write('done')")
    done = pool.get("results", here / "mine")
    assert (here / "mine" / "last").read_text() == "done"
    assert (done.nodes, done.copied) == ((0,), 4)
    assert pool.get("results/last", f"{here}/into/").files == 1
    assert (here / "into" / "last").read_text() == "done"
    pool.get("results", here / "all", on=[0, 1])
    for node in (0, 1):
        assert (here / "all" / f"node-{node}" / "results" / "last").read_text() == "done"
    assert pool.get("results", here / "mine").copied == 0


def test_without_a_name_it_has_its_own(pool: Pool, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pool, "open('made', 'w').write('there')")
    monkeypatch.chdir(here)
    pool.get("made")
    assert (here / "made").read_text() == "there"
    pool.put("note")
    assert run(pool, "open('note').read()").values == ["a note"] * 2


def test_a_parent_folder_goes_into_the_target_by_its_own_name(
    pool: Pool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pool, "import os; os.makedirs('above/inner', exist_ok=True); open('above/note', 'w').write('theirs')")
    (here / "deep").mkdir()
    monkeypatch.chdir(here / "deep")
    done = pool.get("above/inner/..", "into/")
    assert (done.what, Path("into/above/note").read_text()) == ("above", "theirs")
    pool.get("above/inner/../.")
    assert Path("above/note").read_text() == "theirs"
    pool.get("above/inner/..", "all", on=[0, 1])
    for node in (0, 1):
        assert Path(f"all/node-{node}/above/note").read_text() == "theirs"
    # What leads out has written nothing beside the target.
    assert (here / "note").read_text() == "a note"
    assert sorted(os.listdir()) == ["above", "all", "into"]
    assert sorted(os.listdir("all")) == ["node-0", "node-1"]


def test_a_file_may_be_called_as_a_shell_calls_the_home(
    pool: Pool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "~").write_text("from here")
    monkeypatch.chdir(here)
    assert pool.put("./~").files == 1
    assert run(pool, "open('./~').read()").values == ["from here"] * 2
    run(pool, "open('./~', 'w').write('there')")
    assert pool.get("./~").files == 1
    assert (here / "~").read_text() == "there"


def test_what_cannot_be_is_told_before_anything_is_copied(pool: Pool, here: Path) -> None:
    pool.put(here / "data", "standing/data")

    def refusal(kind: type[Exception], call: object, *arguments: object, **options: object) -> str:
        with pytest.raises(kind) as caught:
            call(*arguments, **options)  # type: ignore[operator]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert refusal(SpecError, pool.put, here / "nothing").endswith(
        "is not there; put takes a file or folder of this machine"
    )
    text = refusal(TransferError, pool.put, here / "note", "standing/data")
    assert "standing/data is a folder: a file cannot take its place" in text
    assert "write standing/data/ to have it in that folder" in text
    assert "is not a folder" in refusal(TransferError, pool.put, here / "note", "standing/data/inner/numbers/x")
    assert "cannot be copied into itself" in refusal(
        SpecError, pool.put, here / "data", str(here / "data" / "inner" / "x")
    )
    assert "has nodes 0 to 1, not 2" in refusal(SpecError, pool.put, here / "note", on=[0, 2])
    assert "has nodes 0 to 1, not none" in refusal(SpecError, pool.get, "x", on=[])
    assert "No such file" in refusal(TransferError, pool.get, "nowhere")
    assert "is a folder: a file cannot take" in refusal(
        TransferError, pool.get, "standing/data/inner/numbers", here / "data"
    )
    assert "empty name" in refusal(SpecError, pool.put, here / "note", " ")
    for nothing in ("~nobody-has-this-name/x", "x" * 300):
        assert "is not there; put takes" in refusal(SpecError, pool.put, nothing)
    for nameless in ("~", "~/", "..", "standing/../.."):
        assert "say where it is to go" in refusal(SpecError, pool.get, nameless)
    assert "File name too long" in refusal(TransferError, pool.get, "standing/data", "x" * 300)
    os.mkfifo(here / "data" / "pipe")
    assert "neither file nor folder" in refusal(SpecError, pool.put, here / "data")


def test_more_than_there_is_room_for_is_told_with_both_sizes(pool: Pool, here: Path) -> None:
    with open(here / "huge", "wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(TransferError, match=r"node 0 has room for .* GB at .*/huge2, and huge needs 8.8 TB; make room"):
        pool.put(here / "huge", "huge2")


def test_compute_has_the_same(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    (here / "work").mkdir()
    with sky.Compute(nodes=1) as compute:
        assert compute.put("data", "work/", on=[0]).copied == 3 << 20
        assert compute.get("work/data/inner/numbers", "back").size == 3 << 20
    assert (here / "back").read_bytes() == (here / "data" / "inner" / "numbers").read_bytes()
    assert "put data · data (3.1 MB): node 0; 3.1 MB copied" in capsys.readouterr().err
    with pytest.raises(PoolError, match="is not started"):
        compute.put("data")
