"""How many functions and files a cell, a call and a start pass through: ``python -m benchmarks.way``.

It counts what a reader has to open who follows one of them through the code, and measures no time. It counts in one
process, that of the notebook: a Jupyter kernel of its own, without a page. Agents, ranks, hosts and the link are other
processes, and are not counted.

A function of `sky_jupyter` counts if it was called from another file of the package, or from outside of it, from the
begin of the cell to the begin of the next one. It counts once, however often it is called. Left out are

- helpers that only their own file calls, as they are read with their caller; a coroutine or callback that an event loop
  or a thread begins has been called by its own file where that file names it elsewhere;
- what is no function of the source: lambdas, comprehensions and functions within a function belong to the one that
  they are written in; generated methods and what modules do while they are imported to none;
- what is read in passing: properties, and functions of a single statement (constructors: of any number of assignments)
  that call nothing; so too lambdas that call nothing, where they alone were met of their function;
- what only runs from time to time: all that is called by a task or thread that an idle pool has at work too, such as
  heartbeats; and of a cell and a call, what did not happen in each of several.

For comparison: of the tree that a survey walked by hand before the aims were set, and whose walks made 127 stops in 53
files (a cell), 102 in 38 (a call) and 141 in 71 (a start over SSH), this counts 102 in 46, 115 in 52 and 152 in 68: as
many in all, to one.

``--list`` prints the functions by file, in the order in which they were first met, and ``--all`` counts helpers too.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = f"{ROOT / 'sky_jupyter'}{os.sep}"
REPEATS = 5
IDLE = 2.5
"""Seconds; a pool's heartbeats come once a second."""
AIMS = {"%%sky cell": (60, 25), "f(x) >> pool": (50, 20), "start over SSH": (80, 35)}
Stop = tuple[str, str]
"""A file below `sky_jupyter`, and a function in it with its class."""

# -- in the kernel -----------------------------------------------------------------------------------


class Recorder:
    """What is called of the package, by which task or thread; made once in the kernel, before the package is there."""

    def __init__(self) -> None:
        # A code object, the file of the package that called it, and the outermost one of the package above it.
        self.met: dict[tuple[CodeType, str, CodeType], None] = {}
        self.idle: set[CodeType] = set()
        self._on = False

    def install(self, shell: Any) -> None:
        """Look at this thread and all that are made later; record the cells that say so in their last line."""
        shell.events.register("pre_run_cell", self._before_cell)
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def _before_cell(self, info: Any) -> None:
        if self._on or "# counted" in info.raw_cell:
            self._on = "# counted" in info.raw_cell
            if self._on:
                self.met = {}

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._on or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        above, caller, root = frame.f_back, "", frame.f_code
        while above is not None:
            if above.f_code.co_filename.startswith(PACKAGE):
                if above.f_code.co_name == "<module>":
                    return
                root, caller = above.f_code, caller or above.f_code.co_filename
            above = above.f_back
        self.met.setdefault((frame.f_code, caller, root))

    def note_idle(self) -> None:
        """What was recorded last is what an idle pool does."""
        self.idle = {root for _, _, root in self.met}

    def stops(self, *, helpers: bool = False) -> list[Stop]:
        """The functions that were recorded last and count; with those that only their own file calls, if wanted."""
        codes = dict.fromkeys(
            code for code, caller, root in self.met if root not in self.idle and (helpers or not is_own(code, caller))
        )
        return list(dict.fromkeys(stop for code in codes if (stop := stop_of(code)) is not None))


RECORDER = Recorder()


def stop_of(code: CodeType) -> Stop | None:
    """Return the function that code belongs to; None if it does not count."""
    if code.co_name == "<lambda>" and code.co_firstlineno in trivial_lambdas(code.co_filename):
        return None
    for first, last, name in functions(code.co_filename):
        if first <= code.co_firstlineno <= last:
            return (code.co_filename.removeprefix(PACKAGE), name) if name else None
    return None


def is_own(code: CodeType, caller: str) -> bool:
    """Tell whether a function was called by its own file; without a caller, whether that names it."""
    return caller == code.co_filename if caller else code.co_name in named(code.co_filename)


@functools.cache
def trivial_lambdas(path: str) -> set[int]:
    """Return the lines of a file whose lambdas call nothing."""
    lambdas = [node for node in ast.walk(ast.parse(Path(path).read_bytes())) if isinstance(node, ast.Lambda)]
    calling = {node.lineno for node in lambdas if any(isinstance(part, ast.Call) for part in ast.walk(node))}
    return {node.lineno for node in lambdas} - calling


@functools.cache
def named(path: str) -> set[str]:
    """Return the names that a file's code uses."""
    nodes = list(ast.walk(ast.parse(Path(path).read_bytes())))
    return {one.attr for one in nodes if isinstance(one, ast.Attribute)} | {
        one.id for one in nodes if isinstance(one, ast.Name)
    }


@functools.cache
def functions(path: str) -> list[tuple[int, int, str]]:
    """Return the lines and names of a file's functions and methods; without a name, of those that do not count."""
    found = []

    def look(nodes: Iterable[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min(one.lineno for one in (node, *node.decorator_list))
                found.append((first, node.end_lineno or first, "" if is_trivial(node) else prefix + node.name))
            elif isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.If, ast.Try)):
                look(node.body, prefix)

    look(ast.parse(Path(path).read_bytes()).body, "")
    return found


def is_trivial(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is a property, or does so little that nobody opens it."""
    names = {ast.unparse(one).rpartition(".")[2] for one in function.decorator_list}
    if names & {"property", "cached_property", "setter"}:
        return True
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if any(isinstance(node, ast.Call) for one in body for node in ast.walk(one)):
        return False
    if function.name == "__init__":
        return all(isinstance(one, (ast.Assign, ast.AnnAssign)) for one in body)
    return len(body) <= 1 and not any(isinstance(one, (ast.For, ast.While, ast.With, ast.Try)) for one in body)


# -- outside of it -----------------------------------------------------------------------------------


class Notebook:
    """A kernel in which the package's calls are recorded; ended by `close`.

    Parameters
    ----------
    helpers : bool
        Whether functions count that only their own file calls.
    """

    def __init__(self, helpers: bool) -> None:
        from .kernels import Kernels

        self._helpers = helpers
        self._kernels = Kernels(1)
        self.run("from benchmarks import way; way.RECORDER.install(get_ipython())")
        self.run("%load_ext sky_jupyter")

    def run(self, code: str) -> str:
        """Run a cell; what it printed."""
        return self._kernels.run(code)[0]

    def counted(self, code: str) -> list[Stop]:
        """Run a cell and return the stops on its way."""
        self.run(f"{code}\n# counted")
        printed = self.run(f"import json; print('stops:' + json.dumps(way.RECORDER.stops(helpers={self._helpers})))")
        return [(file, name) for file, name in json.loads(printed.rpartition("stops:")[2])]

    def each(self, code: str) -> list[Stop]:
        """Return the stops that are on the way each time; ``n`` is another number each time."""
        ways = []
        for number in range(REPEATS + 2):
            self.run(f"n = {number}")
            ways.append(self.counted(code))
        # What is only done the first time is no part of it.
        return [stop for stop in ways[-1] if all(stop in way for way in ways[2:])]

    def note_idle(self) -> None:
        """Have the pool that is there be idle, and what it does then left out."""
        self.run(f"import time; time.sleep({IDLE})\n# counted")
        self.run("way.RECORDER.note_idle()")

    def close(self) -> None:
        """End it, and its pool."""
        try:
            self.run("%sky down")
        finally:
            self._kernels.close()


def local_ways(helpers: bool) -> dict[str, list[Stop]]:
    """Count a warm cell and a warm call, on two local nodes."""
    notebook = Notebook(helpers)
    try:
        notebook.run("%sky up --nodes 2")
        notebook.note_idle()
        notebook.run("import sky_jupyter as sky\n@sky.function\ndef f(x): return x + 1")
        return {
            # It reads a value of the notebook that has changed, prints, assigns and has a value.
            "%%sky cell": notebook.each("%%sky\nx = n + 1\nprint(x)\nx"),
            "f(x) >> pool": notebook.each("assert (f(n) >> sky) == n + 1"),
        }
    finally:
        notebook.close()


def ssh_start(folder: Path, helpers: bool) -> dict[str, list[Stop]]:
    """Count a start on two hosts over SSH that have been used before; nothing where no hosts can be made."""
    from tests.hosts.world import hosts, missing

    if why := missing():
        print(f"start over SSH: not counted: needs {why}")
        return {}
    with hosts(2, python=True, warm=True) as world:
        os.environ["SKY_SSH_CONFIG"] = str(world.ssh_config(folder / "config"))
        os.environ.pop("SSH_AUTH_SOCK", None)
        notebook = Notebook(helpers)
        try:
            up = "%sky up --provider ssh --hosts host0,host1 --offline"
            # What the first start of a process does alone, and what an idle pool does.
            notebook.run(up)
            notebook.note_idle()
            notebook.run("%sky down")
            return {"start over SSH": notebook.counted(up)}
        finally:
            notebook.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, count and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.way", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the functions too")
    parser.add_argument("--all", action="store_true", help="count functions too that only their own file calls")
    parser.add_argument("--local", action="store_true", help="leave out the start over SSH, which needs root")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="way-") as folder:
        os.environ["SKY_REGISTRY"] = str(Path(folder, "registry.sqlite"))
        ways = local_ways(given.all)
        if not given.local:
            ways |= ssh_start(Path(folder), given.all)
    for name, stops in ways.items():
        if given.list:
            print(f"\n{name}")
            for file in dict.fromkeys(file for file, _ in stops):
                print(f"  {file}: {', '.join(name for one, name in stops if one == file)}")
    for name, stops in ways.items():
        most, most_files = AIMS[name]
        files = len({file for file, _ in stops})
        print(f"{name:<16} {len(stops):>4} functions in {files:>3} files; aim {most} in {most_files}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
