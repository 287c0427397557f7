"""Files of the project that hold secrets: left out and named once, and sent when they are included by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sky_jupyter.capture.code import LocalCode


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
