"""The pages docs/from-*.md of other programs: both halves of each run as they stand there, and say what they print.

The other program's half of the page from torchrun runs in `tests/pool/test_framework_scripts.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sky_jupyter.magics.option_table import VERBS, flags_of
from tests.magics.notebook import notebook
from tests.plugins.world import needs
from tests.programs import ROOT

# What a folder of its own gets; Monarch takes the tests' torch.
PACKAGES = {"monarch": ["torchmonarch==0.7.0"], "ray": ["ray==2.60.0"]}
# What the page says of a machine whose network leads nowhere.
ALONE = ("ray.init()", 'ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")')
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


def theirs(name: str) -> str:
    """The page's blocks of the other program, as one program."""
    mine = ours(name)
    return "\n".join(block for block in _BLOCK.findall(page(name)) if block not in mine)


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


@pytest.mark.slow
def test_the_other_half_of_the_page_from_notebook_launcher_runs(tmp_path: Path) -> None:
    needs("torch")
    needs("accelerate")
    (function, *_) = ours("notebook-launcher")
    with notebook(tmp_path) as book:
        assert book.run(function).status == "ok"
        cell = book.run(theirs("notebook-launcher"))
        assert cell.status == "ok", cell.outputs
        assert min(re.findall(r"rank \d: loss 0\.\d{4}", cell.stream())).startswith("rank 0: loss 0.0")


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_the_other_half_of_a_page_runs_with_what_it_needs_in_a_folder_of_its_own(name: str, tmp_path: Path) -> None:
    if name == "monarch":
        needs("torch")
    folder = tmp_path / "packages"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(folder), *PACKAGES[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{name} cannot be fetched: {done.stderr[-300:]}")
    (tmp_path / "program.py").write_text(theirs(name).replace(*ALONE), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(folder), "HOME": str(tmp_path), "RAY_TMPDIR": "/tmp"}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == promised([theirs(name).rstrip("\n")])
