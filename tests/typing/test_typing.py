"""Types go through the operators: mypy and pyright both agree with what examples.py says of itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT

FILE = "tests/typing/examples.py"
# Programs people copy from: their operators are checked as well, whatever is known of the libraries they use.
PROGRAMS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").glob("*.py"))]


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_mypy_sees_the_types() -> None:
    assert "no issues found" in run(sys.executable, "-m", "mypy", FILE)


@pytest.mark.slow
def test_pyright_sees_the_types(tmp_path: Path) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("needs basedpyright (pyright that brings its own Node), of the extra `dev`")
    settings = {
        "include": [os.path.relpath(ROOT / path, tmp_path) for path in (FILE, *PROGRAMS)],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.10",
        # Pyright's own name for what it says unless told otherwise.
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        # What libraries say of themselves in their sources takes long to find out.
        "useLibraryCodeForTypes": False,
        "reportMissingImports": "none",
        "reportPossiblyUnboundVariable": "none",
        "reportMissingModuleSource": "none",
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    said = run(Path(sys.executable).parent / "basedpyright", "-p", project, "--pythonpath", sys.executable)
    assert "0 errors" in said


def test_the_package_says_that_it_has_types() -> None:
    assert (ROOT / "sky_jupyter" / "py.typed").is_file()
