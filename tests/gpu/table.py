"""What the checks found, and the page that shows it. The standard library alone."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpu.md"
PASSED, FAILED, SKIPPED, ON_CPU = "passed", "failed", "skipped", "ran on a CPU: not a result"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
_DISTRIBUTIONS = ("torch", "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "keras", "numpy", "nvidia-ml-py")
_DISTRIBUTIONS += ("ipykernel", "distributed", "py-spy")
_QUERY = ("name", "memory.total", "driver_version", "mig.mode.current")
_MOST = 600


@dataclass(frozen=True)
class Row:
    """What became of one check.

    Parameters
    ----------
    name : str
        The check, in words.
    result : str
        One of this module's four words.
    figure : str
        What was measured, why it failed, or why it was left out.
    seconds : float
        How long it took.
    """

    name: str
    result: str
    figure: str = ""
    seconds: float = 0.0


def smi(query: str, *, of: str = "gpu", patience: float = 20.0) -> list[list[str]]:
    """What nvidia-smi answers, a list of words a line; nothing where it is not, or does not know."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-{of}={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except (OSError, subprocess.SubprocessError):
        return []
    if done.returncode:
        return []
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def gpus() -> list[str]:
    """The names of this machine's GPUs, as the driver says them."""
    return [words[0] for words in smi("name")]


def machine() -> dict[str, str]:
    """This machine and what is installed on it, by what each is called."""
    facts = {"date": time.strftime("%Y-%m-%d"), "commit": _commit()}
    cards = smi(",".join(_QUERY))
    names = [words[0] for words in cards]
    facts["GPUs"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
    if cards and len(cards[0]) == len(_QUERY):
        _, memory, driver, mig = cards[0]
        facts.update({"GPU memory": f"{memory} MiB each", "driver": driver, "MIG": mig})
    facts["processor"] = f"{_cores()} cores, {platform.machine()}"
    facts["system"] = f"{platform.system()} {platform.release()}"
    facts["Python"] = platform.python_version()
    for name in _DISTRIBUTIONS:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts


def text(rows: Sequence[Row], facts: dict[str, str]) -> str:
    """The table of the checks, under one of the machine, in Markdown."""
    lines = ["| | |", "|---|---|", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.items())]
    lines += ["", f"{summary(rows)}.", "", "| check | result | figure | s |", "|---|---|---|---|"]
    lines += [f"| {_cell(row.name)} | {row.result} | {_cell(row.figure)} | {row.seconds:.1f} |" for row in rows]
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """How many of each result there are."""
    counts = [(result, sum(row.result == result for row in rows)) for result in (PASSED, ON_CPU, FAILED, SKIPPED)]
    return f"{len(rows)} checks: " + ", ".join(f"{count} {result}" for result, count in counts if count)


def on_page(page: str, table: str) -> str:
    """The page with this table in the place of the one that it has."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def write(folder: Path, rows: Sequence[Row], facts: dict[str, str]) -> Path:
    """Put the page and what it is made of into a folder; the page."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"machine": facts, "checks": [asdict(row) for row in rows]}
    (folder / "gpu.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    page = folder / "gpu.md"
    page.write_text(on_page(PAGE.read_text(encoding="utf-8"), text(rows, facts)), encoding="utf-8")
    return page


def _cell(words: str) -> str:
    """Words as they may stand in a cell of a table."""
    flat = re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", words)).strip()
    flat = flat if len(flat) <= _MOST else f"{flat[:_MOST]}…"
    return flat.replace("|", "\\|").replace("<", "&lt;")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return "not known"
    return done.stdout.strip() or "not known"


def python_of_this() -> str:
    """Which Python this is, for messages."""
    return f"Python {platform.python_version()} ({sys.executable})"
