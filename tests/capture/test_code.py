"""Files of the project that hold secrets: left out and named once, and sent when they are included by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.capture import file_selection
from sky_jupyter.capture.project_files import LocalCode
from sky_jupyter.errors import CaptureError, SpecError


def test_a_file_with_secrets_is_left_out_named_once_and_sent_when_it_is_included_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pk").mkdir()
    for name in ("__init__.py", ".env", "words.txt"):
        (tmp_path / "pk" / name).write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    local = LocalCode()
    first = local.look(["pk"])
    assert sorted(first.sources) == ["pk/__init__.py", "pk/words.txt"]
    assert first.news == "pk/.env stays here, as such files hold passwords or keys; `--include pk/.env` sends it"
    local.commit(first)
    assert local.look(["pk"]).news == ""
    local.include(["pk/.env"])
    assert "pk/.env" in local.look(["pk"]).sources


def test_links_go_as_links_and_those_that_lead_out_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, package = tmp_path / "outside", tmp_path / "project" / "pk"
    outside.mkdir()
    package.mkdir(parents=True)
    (outside / "id_rsa").write_text("PRIVATE")
    (outside / "util.py").write_text("N = 1\n")
    (package / "__init__.py").write_text("from . import util, key\n")
    (package / "words.txt").write_text("words")
    for name, to in {
        "assets": "../../outside",
        "key.py": str(outside / "id_rsa"),
        "util.py": "../../outside/util.py",
        "same.txt": str(package / "words.txt"),
        "loop": "loop",
        "gone": "nowhere",
    }.items():
        (package / name).symlink_to(to)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    local = LocalCode()
    found = local.look(["pk"])
    assert {place: source.to for place, source in found.sources.items()} == {
        "pk/__init__.py": "",
        "pk/words.txt": "",
        "pk/util.py": "",
        "pk/assets": "../../outside",
        "pk/key.py": str(outside / "id_rsa"),
        "pk/same.txt": "words.txt",
        "pk/loop": "loop",
        "pk/gone": "nowhere",
    }
    assert found.news == (
        f"pk/assets (../../outside) and pk/key.py ({outside}/id_rsa) lead out of what is sent: they go as a link, "
        "without what is there; `--include` or `%sky put` brings that"
    )
    local.commit(found)
    assert local.look(["pk"]).news == ""


def test_what_was_included_and_is_refused_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").mkdir()
    with open(tmp_path / "big" / "b.bin", "wb") as file:
        file.truncate(file_selection.LIMIT + 1)
    (tmp_path / "words.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    local = LocalCode()
    local.include(["words.txt", "big"])
    with pytest.raises(CaptureError, match=r"--include .*big is 100 MB.*; cells run without big until it is included"):
        local.look([])
    assert sorted(local.look([]).sources) == ["words.txt"]


def test_of_two_includes_with_one_name_the_second_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.yaml").write_text(folder)
    both = ["../a/config.yaml", "../b/config.yaml"]
    with pytest.raises(SpecError, match=r"--include \.\./b/config.yaml"):
        LocalCode().include(both)
    with pytest.raises(SpecError, match=r"--include \.\./b/config.yaml"):
        sky.Compute(include=both)
    local = LocalCode()
    local.include(both[:1])
    local.include(both[:1])
    with pytest.raises(SpecError, match=r"--include \.\./b/config.yaml: .*a/config.yaml is included too.*rename one"):
        local.include(["../b/config.yaml"])
    assert local.look([]).sources["config.yaml"].path == tmp_path / "a" / "config.yaml"
    (tmp_path / "a" / "config.yaml").unlink()
    local.include(["../b/config.yaml"])
    assert local.look([]).sources["config.yaml"].path == tmp_path / "b" / "config.yaml"


def test_of_an_included_folder_too_files_with_secrets_stay_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    for name in (".env", "credentials.json", "words.txt"):
        (tmp_path / "data" / name).write_text("x\n")
    monkeypatch.chdir(tmp_path)
    local = LocalCode()
    local.include(["data"])
    found = local.look([])
    assert sorted(found.sources) == ["data/words.txt"]
    assert found.news == (
        "data/.env and data/credentials.json stay here, as such files hold passwords or keys; "
        "`--include data/.env` sends the first"
    )
