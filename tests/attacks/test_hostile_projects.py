"""Links in a project that somebody else has made: what they lead to does not go to the nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.errors import CaptureError
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from tests.attacks.hostile_folders import Victim, victim
from tests.pool.pools import local_pool, run
from tests.took import Took


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as made:
        yield made


@pytest.fixture
def hostage(tmp_path: Path) -> Iterator[Victim]:
    with victim(tmp_path / "home") as made:
        yield made


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(tmp_path / "project")
    yield tmp_path / "project"
    sys.modules.pop("linked_pk", None)


def sent(pool: Pool) -> list[bytes]:
    """The contents of all files, and of no links, that the nodes have of the project."""
    top = pool.hosts[0].folder / "code"
    return [path.read_bytes() for path in top.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize("how", ["package", "include"])
def test_what_a_link_leads_to_outside_is_not_sent(
    pool: Pool, project: Path, hostage: Victim, how: str, took: Took
) -> None:
    package = project / f"linked_{how}"
    package.mkdir()
    (package / "__init__.py").write_text("WORDS = open(__path__[0] + '/again.txt').read()\n")
    (package / "words.txt").write_text("words")
    (package / "again.txt").symlink_to("words.txt")
    (package / "assets").symlink_to(hostage.folder)
    (package / "key").symlink_to(hostage.file)
    told: list[Event] = []
    if how == "include":
        pool.include([package.name])
    code = f"import linked_{how} as pk\npk.WORDS" if how == "package" else "import sky_jupyter as sky\n"
    code += "" if how == "package" else f"(sky.included('{package.name}') / 'again.txt').read_text()"
    assert run(pool, code, listener=told.append).values == ["words"] * 2
    assert b"precious" not in sent(pool)
    (notice,) = [event.text for event in told if isinstance(event, NoticeEvent)]
    assert f"linked_{how}/assets ({hostage.folder}) and linked_{how}/key ({hostage.file}) lead out" in notice
    took.row(
        "a package of the project, or an included folder, holds a link that leads out of it",
        see="`NAME (TARGET) leads out of what is sent: it goes as a link, without what is there`",
        kept="everything",
    )


def test_a_link_that_becomes_a_folder_is_not_written_through(pool: Pool, project: Path, hostage: Victim) -> None:
    package = project / "turning"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data").symlink_to(hostage.folder)
    assert run(pool, "import turning\n1").values == [1] * 2
    (package / "data").unlink()
    (package / "data").mkdir()
    (package / "data" / "authorized_keys").write_text("evil")
    look = "import turning\nopen(turning.__path__[0] + '/data/authorized_keys').read()"
    assert run(pool, look).values == ["evil"] * 2
    # And back.
    (package / "data" / "authorized_keys").unlink()
    (package / "data").rmdir()
    (package / "data").symlink_to(hostage.folder)
    assert run(pool, look).values == ["precious"] * 2
    assert b"evil" not in sent(pool)


def test_cells_run_after_an_include_was_refused(pool: Pool, project: Path) -> None:
    (project / "big").mkdir()
    with open(project / "big" / "b.bin", "wb") as file:
        file.truncate(110_000_000)
    pool.include(["big"])
    with pytest.raises(CaptureError, match=r"big is 110 MB in 1 files.*; cells run without big until"):
        run(pool, "1")
    assert run(pool, "2").values == [2] * 2
