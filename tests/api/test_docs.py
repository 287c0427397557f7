"""The page on pools in a program: its code runs, and what it says is printed is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import ROOT, run_program

pytestmark = [pytest.mark.slow, pytest.mark.long]  # what the page says is tested piece by piece, too
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_pages_code_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "compute.md").read_text(encoding="utf-8"))
    program = tmp_path / "page.py"
    program.write_text("\n".join(code for kind, code in blocks if kind == "python"), encoding="utf-8")
    (printed,) = [text for kind, text in blocks if kind == "text"]
    assert run_program(program, folder=tmp_path).endswith(printed)
