"""What dev.py starts, in this checkout's own environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dev

pytest.importorskip("jupyterlab")
ROOT = Path(__file__).resolve().parents[1]
dev_venv = ROOT / ".venv"
pytestmark = pytest.mark.skipif(Path(sys.prefix) != dev_venv, reason="needs the environment that dev.py makes")


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10):
        return True
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """JupyterLab as `dev.py lab` starts it: what it says of itself, and its log."""
    folder = tmp_path_factory.mktemp("lab")
    names = {"JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_DATA_DIR": "data", "JUPYTER_CONFIG_DIR": "config"}
    env = {**os.environ, **{name: str(folder / place) for name, place in names.items()}}
    env["SKY_REGISTRY"] = str(folder / "registry.sqlite")
    start = "import sys, dev; sys.exit(dev.lab(['--no-browser', '--port=0', '--ip=127.0.0.1']))"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", start], cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        found: list[Path] = []
        while not found:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
            found = [path for path in (folder / "runtime").glob("jpserver-*.json") if path.stat().st_size]
        # Its file may be there before it listens.
        port = json.loads(found[0].read_text())["port"]
        while not is_open(port):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield {**json.loads(found[0].read_text()), "log": folder / "log"}
    finally:
        for path in (folder / "runtime").glob("jpserver-*.json"):
            os.kill(json.loads(path.read_text())["pid"], 15)
        process.wait(60)


def test_lab_starts_for_whoever_asks_without_extensions_that_stand_before_kernels(server: dict[str, Any]) -> None:
    with urllib.request.urlopen(f"{server['url']}lab?token={server['token']}") as page:
        settings = page.read().decode()
    assert '"jupyter-distributed"' in settings.partition("disabledExtensions")[2].partition("]")[0]
    loaded = re.findall(r"(\S+) \| extension was successfully loaded", server["log"].read_text())
    assert "sky_jupyter.server" in loaded
    assert "jupyter_distributed" not in loaded


def test_lab_opens_a_notebook_that_is_not_the_repositorys(server: dict[str, Any]) -> None:
    ignored = ["git", "-C", str(ROOT), "check-ignore", "-q", "artifacts/quickstart.ipynb"]
    assert (ROOT / "artifacts" / "quickstart.ipynb").exists()
    if (ROOT / ".git").exists():
        assert subprocess.run(ignored).returncode == 0


def test_what_is_timed_is_marked_where_the_run_of_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that a helper gave would not be seen in the file whose tests have it."""
    monkeypatch.chdir(ROOT)
    files = dev.timing_files()
    assert "tests/node/test_metrics.py" in files
    helpers = [file for file in files if not Path(file).name.startswith("test_")]
    assert helpers == []


def test_docstrings_may_tell_types_in_their_own_words_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    section = '    """Do it.\n\n    Parameters\n    ----------\n    a : number\n        It.\n    """\n'
    code = "def f({}: int) -> None:\n" + section
    (tmp_path / "module.py").write_text(code.format("a"))
    assert dev.pydoclint(str(tmp_path)) == 0
    assert capfd.readouterr().out == ""
    (tmp_path / "module.py").write_text(code.format("b"))
    assert dev.pydoclint(str(tmp_path)) == 1
    assert "DOC103" in capfd.readouterr().out
    # Where it does not come to look at anything, nothing is right.
    assert dev.pydoclint(str(tmp_path / "missing")) == 1
