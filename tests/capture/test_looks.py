"""A look at the project's files is not done again while nothing changed, and every change is seen by the next one."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sky_jupyter.capture import file_stamps
from sky_jupyter.capture.project_files import CodeSnapshot, LocalCode

NEEDS = ("pk", "alone", "later")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose files all seem to be old; what is loaded of it is loaded no longer afterwards."""
    before = set(sys.modules)
    base, first = tmp_path / "project", tmp_path / "first"
    first.mkdir()
    for name, text in {
        ".git/HEAD": "",
        ".gitignore": "*.log\n",
        "alone.py": "x = 1\n",
        "pk/__init__.py": "from . import one\n",
        "pk/one.py": "x = 1\n",
        "pk/a.log": "",
        "pk/key.pem": "PRIVATE KEY-----",
        "pk/.gitignore": "*.tmp\n",
        "pk/a.tmp": "",
        "pk/empty/.gitkeep": "",
        "pk/__pycache__/one.pyc": "",
        "pk/venv/pyvenv.cfg": "",
        "pk/venv/words.txt": "",
        "data/rows.csv": "1",
        "scripts/helper.py": "",
    }.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    monkeypatch.chdir(base)
    monkeypatch.syspath_prepend(str(base))
    monkeypatch.syspath_prepend(str(first))
    monkeypatch.setattr(file_stamps, "_DOUBT", -3600 * 10**9)
    yield base
    for name in set(sys.modules) - before:
        del sys.modules[name]


def looked(project: Path) -> LocalCode:
    """Code of a project at which was looked until nothing was new."""
    local = LocalCode()
    local.include(["data"])
    local.include_script(project / "scripts" / "run.py")
    for _ in range(2):
        local.commit(local.look(NEEDS))
    return local


def pass_a_tick(folder: Path) -> None:
    """Wait until the file system's clock has gone on: else a change cannot be told from what was before it."""
    probe = folder.parent / "probe"
    probe.write_text("")
    began = probe.stat().st_ctime_ns
    for number in itertools.count():
        probe.write_text(str(number))
        if probe.stat().st_ctime_ns != began:
            break


def content(code: CodeSnapshot) -> dict[str, str]:
    return {place: source.digest for place, source in code.sources.items()}


def test_nothing_is_looked_at_again_while_nothing_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = looked(project)
    known = local.look(NEEDS)
    monkeypatch.setattr(local, "_look", None)
    assert local.look(NEEDS) is known
    local.commit(known)
    assert local.look(reversed(NEEDS)) is known


def test_what_changed_a_moment_ago_is_looked_at_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    local = looked(project)
    assert local.look(NEEDS) is not local.look(NEEDS)


def keep_its_time(path: Path, text: str) -> None:
    """Write as many characters as there are, and keep the modification time."""
    info = path.stat()
    path.write_text(text)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a module is edited": lambda base: (base / "alone.py").write_text("x = 22\n"),
    "a module is edited, size and time as before": lambda base: keep_its_time(base / "pk" / "one.py", "x = 2\n"),
    "a module appears": lambda base: (base / "later.py").write_text(""),
    "a package appears": lambda base: (base / "later").mkdir() or (base / "later" / "__init__.py").write_text(""),
    "a module appears before another of its name": lambda base: (base.parent / "first" / "alone.py").write_text(""),
    "a module is gone": lambda base: (base / "alone.py").unlink(),
    "a file appears in a package": lambda base: (base / "pk" / "words.txt").write_text(""),
    "a file appears in a folder without one": lambda base: (base / "pk" / "empty" / "words.txt").write_text(""),
    "a file is no secret any more": lambda base: (base / "pk" / "key.pem").write_text("public"),
    "rules of a package are edited": lambda base: (base / "pk" / ".gitignore").write_text("*.txt\n"),
    "rules above a package are edited": lambda base: (base / ".gitignore").write_text("*.txt\n"),
    "the repository is none any more": lambda base: (base / ".git").rename(base / "git"),
    "a virtual environment is none any more": lambda base: (base / "pk" / "venv" / "pyvenv.cfg").unlink(),
    "an included file is edited": lambda base: (base / "data" / "rows.csv").write_text("2"),
    "a file appears in an included folder": lambda base: (base / "data" / "more.csv").write_text("2"),
    "a module appears beside a script": lambda base: (base / "scripts" / "more.py").write_text(""),
    "a module of a package is loaded": lambda base: importlib.import_module("pk.one"),
    "the path gets a folder": lambda base: sys.path.insert(0, str(base / "data")),
    "the working folder changes": lambda base: os.chdir(base.parent),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_by_the_next_look(project: Path, change: Callable[[Path], object]) -> None:
    local = looked(project)
    known = local.look(NEEDS)
    pass_a_tick(project)
    change(project)
    fresh = LocalCode()
    fresh.include([str(project / "data")])
    fresh.include_script(project / "scripts" / "run.py")
    after = local.look(NEEDS)
    assert after is not known
    if Path.cwd() == project:
        assert content(after) == content(fresh.look(NEEDS))
        assert after.others == fresh.look(NEEDS).others


@pytest.mark.parametrize("place", [".git/index", "pk/__pycache__/two.pyc", "pk/venv/more.txt"])
def test_what_changes_where_nothing_is_sent_from_is_no_change(project: Path, place: str) -> None:
    local = looked(project)
    known = local.look(NEEDS)
    pass_a_tick(project)
    (project / place).write_text("x")
    assert local.look(NEEDS) is known


def test_a_look_for_others_is_kept_beside_it_and_ends_it_where_it_finds_more(project: Path) -> None:
    (project / "second.py").write_text("")
    local = looked(project)
    known = local.look(NEEDS)
    foreign = [local.look([*NEEDS, "numpy"]) for _ in range(2)]
    assert foreign[0] is foreign[1]
    assert "numpy" in foreign[0].others
    assert local.look(NEEDS) is known
    more = local.look(["second"])
    local.commit(more)
    assert "second.py" in local.look(NEEDS).sources
    assert local.look(["second"]).news == ""
