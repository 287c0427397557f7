"""Pools come up and run cells whatever the notebook's surroundings are set to, which stay as they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.settings import SURROUNDINGS, write
from tests.magics.notebook import notebook

SETTING = "__import__('dask.config').config.get('distributed.comm.timeouts.connect')"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a pool's sockets."""
    with tempfile.TemporaryDirectory(prefix="sky-s-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_pool_comes_up_and_the_persons_settings_stay(short: Path, tmp_path: Path, name: str) -> None:
    variables = write(short, SURROUNDINGS[name])
    with notebook(tmp_path, XDG_RUNTIME_DIR="", **variables) as page:
        page.run("%load_ext sky_jupyter\nimport distributed")
        before = page.value(SETTING)
        cell = page.run(f"%%sky\nimport distributed\n{SETTING}")
        assert cell.status == "ok", [cell.error, cell.outputs]
        # The ranks' code is the person's.
        assert page.value("_sky.values") == [before]
        assert page.run("%%sky\n1").status == "ok"
        assert page.value(SETTING) == before
        assert page.run("%sky down").status == "ok"


def test_a_scheduler_that_does_not_start_is_told_with_its_last_lines(tmp_path: Path) -> None:
    # What the pool's processes may not do in this notebook: listen on any network.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event == 'socket.bind' and isinstance(arguments[1], tuple): raise OSError('no such luck')\n"
        "if 'sky_jupyter.node.host' in ' '.join(sys.orig_argv): sys.addaudithook(refuse)\n"
    )
    with notebook(tmp_path, PYTHONPATH=str(tmp_path), XDG_RUNTIME_DIR="", TMPDIR=str(tmp_path)) as page:
        page.run("%load_ext sky_jupyter")
        cell = page.run("%sky up")
        assert cell.status == "error"
        assert "the scheduler ended before it listened" in cell.error
        assert "no such luck" in cell.error
        assert "see scheduler.log" not in cell.error
    assert not list(tmp_path.glob("sky-*"))
