"""docs/slurm.md tells the truth: its table of options, the directives that it calls ours, and what pools say."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.providers.provisioning_types import Order
from sky_jupyter.providers.slurm import job_script, slurm_commands
from sky_jupyter.spec.pool_spec import PoolSpec

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
HEAD = "| `sbatch` | on the line | `sky.Slurm(…)` |\n|---|---|---|\n"
ROWS = PAGE.partition(HEAD)[2].partition("\n\n")[0].splitlines()
TABLE = [[cell.strip() for cell in row.strip("|").split("|")] for row in ROWS]


def directives(provider: sky.Slurm) -> list[str]:
    return job_script.directives(provider, PoolSpec(provider=provider, nodes=4), 4, Order("0a1b2c3d", "token"))


def test_each_option_of_the_provider_is_in_the_table_and_no_other() -> None:
    named = {name for row in TABLE for name in re.findall(r"\b(\w+)=", row[2].replace("--", ""))}
    assert named - {"type"} == {field.name for field in dataclasses.fields(sky.Slurm)}


def test_each_option_of_the_line_is_in_the_table_as_it_is_written() -> None:
    named = {name.replace("-", "_") for row in TABLE for name in re.findall(r"`--([\w-]+)", row[1])}
    assert named - {"nodes", "reservation", "offline", "accept_host_keys"} == set(sky.Slurm.line_options)


def rows() -> list[tuple[str, str]]:
    """Options of sbatch, and the first way to give them in Python."""
    found = [(row[0].strip("`"), re.match(r"`(\w+=[^`]+)`", row[2])) for row in TABLE if row[0].startswith("`--")]
    return [(option, code[1]) for option, code in found if code is not None]


@pytest.mark.parametrize(("option", "code"), rows())
def test_what_is_given_in_python_reaches_sbatch_under_its_name(option: str, code: str) -> None:
    provider = eval(f"sky.Slurm({code})", {"sky": sky})
    assert [line for line in directives(provider) if line.partition("=")[0] == option]


def test_the_directives_that_the_page_calls_ours_are_all() -> None:
    sentence = re.search(r"^Ours are (.*?)\.", PAGE, re.MULTILINE)
    assert sentence
    ours = {name.partition("=")[0] for name in re.findall(r"`(--[\w=-]+)`", sentence[1])}
    found = {line.partition("=")[0] for line in directives(sky.Slurm())}
    assert found == ours | {"--nodes", "--no-requeue"}
    assert "--no-kill" not in directives(sky.Slurm(extra=("!no-kill",)))


def test_the_ends_of_a_job_are_told_in_the_words_of_the_page() -> None:
    ends = PAGE.partition("## How a pool ends")[2].partition("## ")[0]
    said = re.findall(r"`((?:the job|a node) [^`]+)`", ends)
    assert len(said) == 4
    assert set(said) <= set(slurm_commands._ENDS.values())
