"""The programs of docs/calls.md run as they stand there, and print what their last lines say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import ROOT, run_program

PAGE = (ROOT / "docs" / "calls.md").read_text(encoding="utf-8")
_PROGRAM = re.compile(r"^## ([^\n]+)\n.*?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS: dict[str, str] = dict(_PROGRAM.findall(PAGE))


@pytest.mark.slow
@pytest.mark.parametrize("title", ["Rollouts", "Evaluation", "Sweeps", "A parameter server"])
def test_a_program_of_the_page_runs(title: str, tmp_path: Path) -> None:
    program = PROGRAMS[title]
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    promised = program.rstrip("\n").rpartition("  # ")[2]
    assert run_program(file, folder=tmp_path).splitlines()[-1] == promised
