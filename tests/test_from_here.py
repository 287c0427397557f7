"""The pages docs/from-*.md of other programs: our half of each runs as it stands there, and says what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sky_jupyter.magics.option_table import VERBS, flags_of
from tests.magics.notebook import notebook
from tests.plugins.world import needs
from tests.programs import ROOT

RIVALS = {"monarch": "monarch", "notebook-launcher": "accelerate", "ray": "ray"}
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / "docs" / f"from-{name}.md").read_text(encoding="utf-8")


def ours(name: str) -> list[str]:
    """The page's blocks of code without those of the other program."""
    theirs = re.compile(rf"^(import|from) {RIVALS[name]}\b", re.MULTILINE)
    blocks = _BLOCK.findall(page(name))
    mine = [block for block in blocks if not theirs.search(block)]
    assert 0 < len(mine) < len(blocks)
    return mine


def promised(blocks: list[str]) -> str:
    """What the last line says that it prints."""
    return blocks[-1].rstrip("\n").rpartition("  # ")[2]


@pytest.mark.parametrize("name", RIVALS)
def test_a_page_says_with_which_version_the_other_half_was_tried(name: str) -> None:
    assert re.search(r"tried with (`\w+` )?\d+\.\d+\.\d+ on Python 3\.\d+|was not (run|tried)", page(name))


@pytest.mark.parametrize("name", RIVALS)
def test_what_a_page_names_of_the_magics_is_there(name: str) -> None:
    text = page(name)
    verbs = set(re.findall(r"`%sky (\w+)", text))
    assert verbs <= set(VERBS)
    known = {flag for verb in (None, *VERBS) for flag in flags_of(verb)} | {"--max-restarts"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", text)) <= known


def test_our_half_of_the_page_from_ray_runs(tmp_path: Path) -> None:
    (program,) = ours("ray")
    (tmp_path / "pi.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "pi.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == promised([program.rstrip("\n")])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["monarch", "notebook-launcher"])
def test_our_half_of_a_page_runs_in_a_notebook(name: str, tmp_path: Path) -> None:
    needs("torch")
    blocks = ours(name)
    with notebook(tmp_path) as book:
        for block in blocks:
            cell = book.run(block)
            assert cell.status == "ok", cell.outputs
        assert cell.stream().strip() == promised(blocks)
