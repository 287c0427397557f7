"""Limits on what IPython keeps of every cell.

A rank works for days. Its output is in the journal, and the values of its latest cells are kept as long as they can be
fetched. The source of a cell is kept while it is among the newest, and while any object made from it is alive: then a
traceback through a function of an old cell still shows its lines.
"""

from __future__ import annotations

import gc
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

# Number of newest cells whose source is always kept; older ones are checked once there are twice as many.
KEEP_SOURCES = 200
# Sources parsed for tracebacks, with a syntax tree each.
_KEEP_TREES = 24

_CODE_OF: dict[type, str] = {
    types.FunctionType: "__code__",
    types.FrameType: "f_code",
    types.GeneratorType: "gi_code",
    types.CoroutineType: "cr_code",
    types.AsyncGeneratorType: "ag_code",
}


class Unkept(dict[int, list[Any]]):
    """Dictionary of lists that keeps nothing that is appended."""

    def __missing__(self, key: int) -> list[Any]:
        return []


def keep_no_outputs(shell: Any) -> None:
    """Make an IPython shell keep no outputs of its cells; call it once."""
    shell.history_manager.outputs = Unkept()


def forget_cells(shell: Any, values: int) -> None:
    """Drop what an IPython shell stores of its cells, except for the newest.

    ``values`` entries of ``Out`` are kept.
    """
    history = shell.history_manager
    for name in ("output_hist_reprs", "exceptions", "db_input_cache"):
        getattr(history, name, {}).clear()
    out = shell.user_ns.get("_oh")
    while isinstance(out, dict) and len(out) > values:
        number = next(iter(out))
        del out[number]
        _forget_name(shell, f"_{number}")
    # Index 0 is unused: cells are counted from 1.
    for inputs in (history.input_hist_parsed, history.input_hist_raw):
        del inputs[1:-KEEP_SOURCES]
    files = shell.compile._filename_map
    if len(files) > 2 * KEEP_SOURCES:
        _forget_sources(shell, files)


def forget_value(shell: Any, value: Any) -> None:
    """Drop an IPython shell's references to a cell's value: ``Out``, ``_`` etc."""
    out, hook = shell.user_ns.get("_oh"), shell.displayhook
    for number in [number for number, kept in out.items() if kept is value] if isinstance(out, dict) else ():
        del out[number]
        _forget_name(shell, f"_{number}")
    for name in ("_", "__", "___"):
        # IPython's initial value.
        if getattr(hook, name, None) is value:
            setattr(hook, name, "")
        if shell.user_ns.get(name) is value:
            shell.user_ns[name] = ""
        if shell.user_ns_hidden.get(name) is value:
            shell.user_ns_hidden[name] = ""
    last = getattr(shell, "last_execution_result", None)
    if last is not None and last.result is value:
        last.result = None


def _forget_sources(shell: Any, files: dict[str, int]) -> None:
    """Drop the sources of old cells of which no object is alive."""
    living = {code.co_filename for code in _codes()}
    recent = set(list(files)[-KEEP_SOURCES:])
    for file in [file for file in files if file not in recent and file not in living]:
        del files[file]
        linecache.cache.pop(file, None)
    numbers = {f"_i{number}" for file, number in files.items() if file in recent}
    for name in [name for name in shell.user_ns_hidden if name.startswith("_i") and name[2:].isdigit()]:
        if name not in numbers:
            _forget_name(shell, name)


def _forget_name(shell: Any, name: str) -> None:
    """Drop a name that IPython assigned, from both of IPython's namespaces."""
    if shell.user_ns.get(name) is shell.user_ns_hidden.pop(name, None):
        shell.user_ns.pop(name, None)


def forget_failure(shell: Any) -> None:
    """Drop the last failure, with all that its frames keep alive."""
    for name in ("last_traceback", "last_value", "last_type", "last_exc"):
        vars(sys).pop(name, None)
    last = getattr(shell, "last_execution_result", None)
    if last is not None:
        last.error_before_exec = last.error_in_exec = None
    for shown in (shell.InteractiveTB, shell.SyntaxTB):
        vars(shown).pop("tb", None)
        # The debugger holds the frames of its last session; a new debugger is made when needed.
        shown.pdb = None


def forget_trees(shell: Any) -> None:
    """Drop the caches behind a shown traceback, except files' syntax trees.

    Call it after a failure. IPython's traceback packages keep the code of each frame that they ever saw, and the trees
    of all sources. A function that is sent anew for each call is new code each time, and each cell is a new file.
    """
    executing = sys.modules.get("executing.executing")
    if executing is None:
        return
    executing.statement_containing_node.cache_clear()
    executing.Source.statements_at_line.cache_clear()
    for made in (executing.Source, *executing.Source.__subclasses__()):
        vars(made).get("__executing_cache", {}).clear()
        trees = vars(made).get("__source_cache_with_lines", {})
        for key in list(trees):
            if key[0] in shell.compile._filename_map or len(trees) > _KEEP_TREES:
                del trees[key]


def _codes() -> Iterator[types.CodeType]:
    """Yield the code objects of all living functions, generators and frames."""
    for item in gc.get_objects():
        # By exact type: `isinstance` reads `__class__`, and some objects emit a warning then.
        name = _CODE_OF.get(type(item))
        if name is not None:
            yield getattr(item, name)
    for frame in sys._current_frames().values():
        yield frame.f_code
