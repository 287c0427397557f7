"""Whose settings uv heeds: another user of the machine says nothing about where packages are from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sky_jupyter.bootstrap.uv import run_uv
from sky_jupyter.bootstrap.uv_settings_files import foreign_settings
from sky_jupyter.errors import BootstrapError

NOBODY = 65534
NOWHERE = "http://127.0.0.1:9/simple"
TRY = ["pip", "compile", "--no-cache", "-"]
QUICK = {"UV_HTTP_RETRIES": "0", "UV_FIND_LINKS": ""}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, the working one, in a folder that many users share."""
    folder = tmp_path / "common" / "project"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def root() -> None:
    if os.geteuid():
        pytest.skip("only root makes files of others")


def settings(folder: Path, name: str = "uv.toml") -> Path:
    path = folder / name
    path.write_text(f'{"[tool.uv.pip]" if name == "pyproject.toml" else "[pip]"}\nindex-url = "{NOWHERE}"\n')
    return path


def asked() -> str:
    """What uv says when it looks for a package that is nowhere."""
    said: list[str] = []
    with pytest.raises(BootstrapError) as error:
        run_uv(
            [*TRY, "--index-strategy", "first-index"], phase="p", on_line=said.append, env=QUICK, stdin="sky-nowhere"
        )
    return "\n".join([*said, str(error.value)])


@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml"])
def test_settings_of_ones_own_project_are_heeded(project: Path, name: str) -> None:
    settings(project.parent, name)
    assert foreign_settings() is None
    assert NOWHERE in asked()


@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml"])
def test_settings_that_others_may_write_are_not_heeded_and_named(
    project: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settings(project.parent, name)
    path.chmod(0o666)
    # Else the real index is asked, which a machine without a network waits for.
    monkeypatch.setenv("UV_DEFAULT_INDEX", project.as_uri())
    said = asked()
    assert f"{path} is not used: other users of this machine may write it" in said
    assert NOWHERE not in said


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_settings_of_another_user_are_not_heeded(project: Path) -> None:
    path = settings(project.parent)
    os.chown(path, NOBODY, NOBODY)
    assert foreign_settings() == path
    # Who owns the working folder could give the notebook any module.
    os.chown(project, NOBODY, NOBODY)
    assert foreign_settings() is None


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_link_of_another_user_to_settings_of_ones_own_is_not_followed(project: Path) -> None:
    path = project.parent / "uv.toml"
    path.symlink_to(settings(project.parent.parent, "pyproject.toml"))
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    assert foreign_settings() == path
