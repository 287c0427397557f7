"""What is captured is set against what Python looks up: generated cells run, and every lookup is noted."""

from __future__ import annotations

import contextlib
import dis
import functools
import json
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sky_jupyter.capture.cell_names import analyse
from sky_jupyter.capture.collect import collect
from sky_jupyter.capture.ledger import Ledger
from sky_jupyter.errors import CaptureError
from sky_jupyter.node.serialization.global_names import nested_code
from tests.capture.cells import NAMES, Globals, calls, cell, definitions, initial, shallow, statement

SETTINGS = settings(suppress_health_check=list(HealthCheck))
FOUND_BEFORE = [
    "c[a] += (a := 1)",
    "(a): a = (a := 1)",
    "def a(): return b\n[a() for b in [1]]\nb = 1",
    "class a:\n    b = __c",
    "if 'a' not in globals(): a = 1",
    "globals().get('a')",
]


@pytest.mark.slow
@settings(SETTINGS, max_examples=300)
@given(cell)
def test_no_name_is_looked_up_that_was_not_found(source: str) -> None:
    try:
        code = compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError:
        return
    if any(step.opname == "DELETE_GLOBAL" for inner in nested_code(code) for step in dis.get_instructions(inner)):
        return  # Python deletes such a name past a namespace's own methods.
    names = analyse(source)
    namespace = Globals(initial())
    finished = False
    with contextlib.suppress(BaseException), shallow():
        exec(code, namespace)
        finished = True
    kept = {name for name in NAMES if namespace.holds(name)}
    assert namespace.read <= names.reads
    assert set(NAMES) - kept <= names.writes
    if finished:
        assert not names.sure & kept


for _source in FOUND_BEFORE:
    test_no_name_is_looked_up_that_was_not_found = example(_source)(test_no_name_is_looked_up_that_was_not_found)


ROOT = Path(__file__).resolve().parents[2]
NODE = """
import builtins, contextlib, json, sys, types
from sky_jupyter.node.serialization import pickling as payload
from tests.capture.cells import shallow

class Builtins(dict):
    def __missing__(self, name):
        missed.add(name)
        raise KeyError(name)

for line in sys.stdin:
    manifest, cell = json.loads(line)
    missed = set()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = Builtins(vars(builtins))
    payload.bind(manifest, vars(main))
    with contextlib.suppress(BaseException), shallow():
        exec(compile(cell, "<cell>", "exec", dont_inherit=True), vars(main))
    print(json.dumps(sorted(missed)), flush=True)
"""
Node = Callable[[dict[str, typing.Any], str], set[str]]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Another process that binds what a cell is sent and runs it; the names that it looked up and did not have."""
    process = subprocess.Popen(
        [sys.executable, "-c", NODE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(manifest: dict[str, typing.Any], source: str) -> set[str]:
        process.stdin.write(json.dumps([manifest, source]) + "\n")
        process.stdin.flush()
        return set(json.loads(process.stdout.readline()))

    yield run
    process.stdin.close()
    process.wait()
    process.stdout.close()


@settings(SETTINGS, max_examples=200)
@given(definitions, calls, st.one_of(st.just(""), statement))
def test_a_node_lacks_no_name_that_functions_and_classes_look_up(
    node: Node, tmp_path_factory: pytest.TempPathFactory, made: list[str], called: str, more: str
) -> None:
    source = f"{more}\n{called}"
    with pytest.MonkeyPatch.context() as patch:
        main = types.ModuleType("__main__")
        patch.setitem(sys.modules, "__main__", main)
        namespace = vars(main)
        namespace.update(initial(), functools=functools, typing=typing)
        for definition in made:
            with contextlib.suppress(BaseException), shallow():
                exec(compile(definition, "<cell>", "exec", dont_inherit=True), namespace)
        try:
            compile(source, "<cell>", "exec", dont_inherit=True)
            capture = collect(source, namespace, Ledger())
        except (SyntaxError, CaptureError):
            return
        folder = tmp_path_factory.mktemp("blobs")
        missed = node(capture.write(folder), source)
    # A name that the cell writes may have been deleted by it when it is looked up: the other test has those.
    assert not missed & namespace.keys() - capture.names.writes
