"""The page about plugins: its examples run, each hook in its place, and it has all of our plugins."""

from __future__ import annotations

import random
import re
from pathlib import Path

from sky_jupyter.plugins.parse import FACTORIES
from tests.programs import ROOT, run_program

PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


def test_the_examples_of_all_hooks_run(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)))
    said = run_program(program, folder=tmp_path)
    drawn = [random.Random(rank).randrange(1000) for rank in (0, 1)]
    assert f"[({drawn[0]}, True), ({drawn[1]}, True)]" in said
    assert re.search(r"mine is ready\n(.|\n)*draw took \d+\.\d s(.|\n)*mine has ended", said)


def test_all_our_plugins_are_in_the_table() -> None:
    table = PAGE[: PAGE.index("## huggingface")]
    assert {name for name in FACTORIES if f"`{name}(" in table} == set(FACTORIES)
