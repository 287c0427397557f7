"""A file beside the notebook that is called like a package which is needed is named at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sky_jupyter as sky\nprint(sky.Image.__name__)\nprint(sky.Compute.__name__)\n"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / ".ipython")}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["distributed.py", "cloudpickle/__init__.py"])
def test_what_hides_a_needed_package_is_named_when_the_extension_is_loaded(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("world_size = 2\n")
    done = run(tmp_path, "-m", "IPython", "-c", "%load_ext sky_jupyter")
    hidden = tmp_path / name.split("/", maxsplit=1)[0]
    said = f"{hidden} hides a package of the same name that Sky Jupyter needs: rename {hidden.name}, and restart"
    assert f"UsageError: {said}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_script_is_told_before_it_makes_a_pool(tmp_path: Path) -> None:
    (tmp_path / "uv.py").write_text("wavelength = 380\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run(tmp_path, "train.py")
    assert done.stdout == "Image\n"
    assert f"ImportError: {tmp_path / 'uv.py'} hides a package of the same name" in done.stderr


def test_files_with_other_names_hide_nothing(tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run(tmp_path, "train.py").stdout == "Image\nCompute\n"
