"""The figures and the machine that they are from, in README.md."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil

from .measure import HEAD, Row

README = Path(__file__).resolve().parent / "README.md"
BEGIN, END = "<!-- figures: written by --save -->", "<!-- end of figures -->"
PACKAGES = ("ipykernel", "IPython", "distributed", "ipyparallel", "jupyter-distributed", "numpy", "jax", "keras")


def machine() -> str:
    """The machine in a line."""
    gigabytes = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.machine()}"
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores ({processor()}), {gigabytes:.0f} GiB, {system}; load {load:.1f} at the end"


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown"


def versions() -> str:
    """Python and what was measured, with versions."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def save(name: str, rows: Sequence[Row], took: float) -> None:
    """Write the figures of a benchmark between the marks in README.md; those of others stay as they are.

    Each has its own day, machine and versions, since a run need not be of all.
    """
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    sections = {part.partition("\n")[0]: part for part in re.split(r"^### ", inside, flags=re.MULTILINE)[1:]}
    table = [_line(HEAD), _line(["---"] * len(HEAD)), *(_line(row.cells) for row in rows)]
    about = f"{datetime.date.today()}, a run of {took:.0f} s, {machine()}. {versions()}."
    sections[name] = "\n".join([name, "", about, "", *table, "", ""])
    written = "".join(f"### {section}" for section in sections.values())
    README.write_text(f"{before}{BEGIN}\n{written}{END}{after}", encoding="utf-8")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
