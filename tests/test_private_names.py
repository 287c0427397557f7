"""A name with an underscore belongs to its object, or to its module: nobody else uses it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sky_jupyter"

# What libraries mean to be used, or offer no other way to, by the package of ours that uses it (all: ""); and why.
LIBRARIES = {
    "": {
        "_replace": "a documented method of named tuples",
        "_exit": "os: ends a process without its exit handlers",
        "_getframe": "sys: the caller's frame",
        "_current_frames": "sys: the stacks of all threads",
        "_shutdown": "threading: waits for the threads that are no daemons, as the interpreter does at its end",
        "_run_exitfuncs": "atexit: runs what is registered, in a process that does not end by itself",
        "_lru_cache_wrapper": "functools: the type of a cached function",
    },
    "capture": {
        "_save_state": "keras: the weights of a model, without its file",
        "_compile_config": "keras: what a model was compiled with",
        "_auto_config": "keras: what a layer was made with",
    },
    "display": {
        "_get_shell_context_var": "ipykernel: as for the next one",
        "_shell_parent_ident": "ipykernel 7: to whom a question of the cell that runs goes",
        "_parent_ident": "ipykernel 6: the same",
        "_hooks": "ipykernel: who else sees an output of this thread before it is sent",
    },
    "machines": {
        "_connect": "paramiko: an agent on a socket of our own",
        "_send_user_message": "paramiko: a channel's messages, to send none after its end",
        "_channel_handler_table": "paramiko: the messages of a channel, to add one",
        "_tcp_handler": "paramiko: who takes connections that come from the other side",
    },
    "magics": {
        "_publish_status": "ipykernel: tells the front end that the kernel is busy",
    },
    "node": {
        "_validate_launch_command": "accelerate: what its options, its file and its defaults come to",
        "_active": "threading: the threads that a fork leaves behind",
        "_limbo": "threading: those that were being started",
        "_NamedFuncPointer": "ctypes: the type of a library's function",
        "_queue": "asyncio.Queue: its items, to put one first",
        "_fmt": "logging.PercentStyle: the format that it was given",
        "_topic": "ipykernel: the name of a message's topic",
        "_is_debugpy_available": "ipykernel: whether its debugger works",
        "_filename_map": "IPython: the cells that tracebacks name",
        "_run_cell": "IPython: its code object, to know the frame that runs a cell",
        "_client_ssl_defaults": "tornado.netutil: makes what forks inherit",
        "_expects_comm": "distributed.core: what handlers are given",
        "_get_or_create_tracker_id": "cloudpickle: which class an object is of, across pickles",
        "_lookup_class_or_track": "cloudpickle: the same, where it is read",
        "_global_config": "pandas: the options that are set",
        "_registered_options": "pandas: those that there are",
        "_untyped_storage": "torch: the memory that tensors share",
        "_fingerprint": "datasets: the name that a table's contents have",
        "_load_state": "keras: the same, where they are read",
        "_raise_loading_failure": "keras: says which weights do not fit",
        "_flatten_layers": "keras: the layers of a model, those in layers as well",
        "_inbound_nodes": "keras: where a layer is used",
    },
    "plugins": {
        "_execution_engine": "torch: to be called at the end of a backward pass",
        "_world": "torch.distributed: the process groups that there are",
        "_reset_state": "accelerate: forgets the last set-up",
        "_cache_write": "jax: writes to its cache of compiled programs",
        "_flatten_metrics_in_order": "keras: what a step's results are called",
        "_initial_epoch": "keras: the epoch that training begins with",
        "_jax_state": "keras: the arrays that a step works on",
        "_layout": "keras: how a variable is spread over devices",
        "_value": "keras: the array of a variable",
    },
    "pool": {
        "_handle_report_task": "distributed.Client: what it waits for when it is closed",
    },
    "util": {
        "_load_from_file_system": "parso.cache: reads a file of the cache",
        "_save_to_file_system": "parso.cache: writes one",
    },
}


class Uses(ast.NodeVisitor):
    """The uses of other objects' underscore names in one module.

    Allowed are ``self``, ``cls`` and ``super()``, the classes of the module, and what is known to be of one of them:
    by its annotation, by what it was made with, or as the ``other`` of a comparison.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[tuple[int, str]] = []
        self._classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._own: list[set[str]] = [{"self", "cls", "other", *self._classes}]
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own = {argument.arg for argument in arguments if self._names_own_class(argument.annotation)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign) and self._makes_own_class(inner.value):
                own |= {target.id for target in inner.targets if isinstance(target, ast.Name)}
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                own |= {inner.target.id} if self._names_own_class(inner.annotation) else set()
        self._own.append(self._own[-1] | own)
        self.generic_visit(node)
        self._own.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def _names_own_class(self, annotation: ast.expr | None) -> bool:
        if annotation is None:
            return False
        text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
        return str(text).removesuffix(" | None") in {*self._classes, "Self"}

    def _makes_own_class(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[0] in {*self._classes, "cls"}

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if is_private(node.attr) and not self._is_own(node.value):
            self.found.append((node.lineno, ast.unparse(node)))
        self.generic_visit(node)

    def _is_own(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            return ast.unparse(value.func) == "super"
        return isinstance(value, ast.Name) and value.id in self._own[-1]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for item in node.names:
            if is_private(item.name):
                self.found.append((node.lineno, f"{'.' * node.level}{node.module or ''}.{item.name}"))


def is_private(name: str) -> bool:
    """Whether a name is somebody's own; names such as ``_repr_html_`` are protocols."""
    return name.startswith("_") and not name.endswith("_")


def test_no_part_uses_another_objects_underscore_names() -> None:
    used: dict[str, set[str]] = {room: set() for room in LIBRARIES}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for line, text in Uses(ast.parse(path.read_text(encoding="utf-8"))).found:
            name = text.rpartition(".")[2]
            allowed = next((one for one in ("", room) if name in LIBRARIES.get(one, {})), None)
            if allowed is None:
                found.append(f"{path.relative_to(ROOT)}:{line} uses {text}")
            else:
                used[allowed].add(name)
    assert found == []
    # What nobody uses any more is not allowed any more.
    assert {room: set(names) for room, names in LIBRARIES.items()} == used


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(pool):\n    return pool._stop", ["pool._stop"]),
        ("class A:\n    def f(self):\n        return self.pool._stop", ["self.pool._stop"]),
        ("class A:\n    def f(self, b):\n        self._stop = b._stop", ["b._stop"]),
        ("from . import x\nx._stop()", ["x._stop"]),
        ("from .x import _stop", [".x._stop"]),
        ("class A:\n    def f(self):\n        return self._stop, super()._stop, A._stop", []),
        ("class A:\n    def f(self, a: A):\n        return a._stop", []),
        ("class A:\n    @classmethod\n    def f(cls):\n        a = cls()\n        a._stop = 1", []),
        ("class A:\n    def __eq__(self, other):\n        return other._stop == self._stop", []),
        ("def f(value):\n    return value._repr_html_, value.__class__", []),
    ],
)
def test_the_rule_is_seen_to_be_broken(code: str, found: list[str]) -> None:
    assert [text for _, text in Uses(ast.parse(code)).found] == found
