"""``python -m benchmarks [names]``: measure, print the rows, and with ``--save`` put them into README.md."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence

from . import ended, report
from .measure import HEAD, Options, Row

SUBJECTS = {
    "import": "imports",
    "cell": "cell",
    "start": "start",
    "output": "output",
    "journal": "journal",
    "registry": "registry",
    "page": "page",
    "watch": "watch",
    "array": "array",
    "capture": "capture",
    "calls": "calls",
    "patterns": "patterns",
    "many": "many",
    "frameworks": "frameworks",
    "training": "training",
    "ssh": "ssh",
    "ssh-calls": "ssh_calls",
    "link": "link",
    "pods": "pods",
    "files": "files",
    "scale": "scale",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and measure; returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(SUBJECTS)}; all unless given")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller data; under two minutes")
    parser.add_argument("--repeat", type=int, metavar="N", help="repetitions of each, instead of its own number")
    parser.add_argument("--save", action="store_true", help="write the figures into README.md")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in SUBJECTS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    if given.repeat is not None and given.repeat < 1:
        parser.error("--repeat must be 1 or more")
    if given.save and (given.quick or given.repeat):
        parser.error("--save is for benchmarks as they are: leave --quick and --repeat out")
    ended.raise_signals()
    began = time.perf_counter()
    with own_places():
        for name in given.names or SUBJECTS:
            before = time.perf_counter()
            rows = measured(name, Options(given.quick, given.repeat))
            if given.save:
                # Each by itself: a run that is broken off keeps what it has measured.
                report.save(name, rows, time.perf_counter() - before)
    print(f"{time.perf_counter() - began:.0f} s in all; {report.machine()}")
    return 0


def measured(name: str, options: Options) -> list[Row]:
    """One benchmark's rows, printed."""
    began = time.perf_counter()
    rows: list[Row] = importlib.import_module(f"benchmarks.{SUBJECTS[name]}").measure(options)
    print(f"\n{name} ({time.perf_counter() - began:.0f} s)")
    table = [HEAD, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    for line in table:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()
    return rows


@contextlib.contextmanager
def own_places() -> Iterator[None]:
    """Folders for whatever ours and the peers write, gone in the end; nothing of the user's is touched.

    With bytecode, without which every start would compile all that it imports.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with ended.leaving_nothing() as folder:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
            os.environ[name] = os.path.join(folder, name.lower())
        os.environ["SKY_REGISTRY"] = os.path.join(folder, "registry.sqlite")
        yield


if __name__ == "__main__":
    sys.exit(main())
