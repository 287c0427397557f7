"""What a cell is sent, from the notebook's namespace to another process's."""

from __future__ import annotations

import functools
import json
import sqlite3
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sky_jupyter.capture.collect import Capture, collect, collect_value
from sky_jupyter.capture.ledger import Ledger
from sky_jupyter.errors import CaptureError

ROOT = Path(__file__).resolve().parents[2]
NODE = """
import json, sys
sys.path.insert(0, {root!r})
from sky_jupyter.node.serialization import pickling as payload
for manifest, cell in json.load(sys.stdin):
    payload.bind(manifest, payload.main_namespace())
    exec(compile(cell, "<cell>", "exec"), payload.main_namespace())
"""


def notebook(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(source), namespace)
    return namespace


def on_a_node(folder: Path, *cells: tuple[Capture, str]) -> str:
    """Run cells in one new process's ``__main__``, each with what it is sent; what they print."""
    work = json.dumps([(capture.write(folder), textwrap.dedent(cell)) for capture, cell in cells])
    done = subprocess.run(
        [sys.executable, "-c", NODE.format(root=str(ROOT))], input=work, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(folder: Path, namespace: dict[str, Any], cell: str) -> str:
    return on_a_node(folder, (collect(textwrap.dedent(cell), namespace, Ledger()), cell))


def names(capture: Capture) -> list[str]:
    return [one.name for one in capture.bindings]


def test_functions_share_the_nodes_main_with_the_cell_and_with_each_other(tmp_path: Path) -> None:
    namespace = notebook("""
        scale = 2
        def even(n):
            return True if n == 0 else odd(n - 1)
        def odd(n):
            return False if n == 0 else even(n - 1)
        def scaled(n):
            return scale * n
        def bump():
            global scale
            scale += 1
    """)
    cell = """
        import __main__
        print(even(10), odd(10), scaled(1), even.__globals__ is odd.__globals__ is vars(__main__))
        scale = 10
        bump()
        print(scaled(1), scale)
    """
    assert run(tmp_path, namespace, cell) == "True False 2 True\n11 11"


def test_a_later_cell_that_changes_a_global_is_seen_by_functions_sent_before(tmp_path: Path) -> None:
    namespace = notebook("k = 1\ndef f():\n    return k")
    ledger = Ledger()
    first = collect("print(f())", namespace, ledger)
    first.commit(ledger)
    ledger.notebook_wrote(["k"])
    namespace["k"] = 5
    second = collect("print(f())", namespace, ledger)
    assert (names(first), names(second)) == (["k", "f"], ["k"])
    assert on_a_node(tmp_path, (first, "print(f())"), (second, "print(f())")) == "1\n5"


def test_classes_decorators_closures_and_instances_go_by_value(tmp_path: Path) -> None:
    namespace = notebook("""
        import enum, functools, dataclasses, math
        unit = "m"
        def loud(f):
            @functools.wraps(f)
            def inner(*a, **k):
                return mark(f(*a, **k))
            return inner
        def mark(text):
            return text + "!"
        class Base:
            def __init__(self, n):
                self.n = n
            @property
            def text(self):
                return f"{self.n}{unit}"
        class Child(Base):
            def __init__(self, n):
                super().__init__(math.floor(n))
            @loud
            def say(self, end="", *, times=1):
                return self.text * times + end
        class Color(enum.Enum):
            RED = 1
        @dataclasses.dataclass(slots=True)
        class Point:
            x: int
            child: Child
        def counter():
            n = 0
            def step(recurse=True):
                nonlocal n
                n += 1
                return step(False) if recurse else n
            return step
        step = counter()
        point = Point(1, Child(2.5))
        things = {"part": functools.partial(Child.say, times=2), "color": Color.RED}
    """)
    cell = """
        print(point.child.say(), things["part"](point.child, "."))
        print(isinstance(point.child, Child), Child.__mro__[1] is Base)
        print(things["color"] is Color.RED, step(), step(), point.x, Child.say.__wrapped__.__kwdefaults__)
    """
    assert run(tmp_path, namespace, cell) == "2m! 2m2m.!\nTrue True\nTrue 2 4 1 {'times': 1}"


def test_what_functions_inside_a_value_read_is_sent_and_bound_first(tmp_path: Path) -> None:
    namespace = notebook("""
        import math
        def rebuild(n):
            return Number(math.floor(n) + offset)
        class Number:
            def __init__(self, n):
                self.n = n
            def __reduce__(self):
                return rebuild, (self.n,)
        offset = 10
        numbers = [Number(1.0)]
        unread = 1
    """)
    capture = collect("print(numbers[0].n)", namespace, Ledger())
    assert names(capture)[-1] == "numbers"
    assert set(names(capture)) == {"math", "rebuild", "Number", "offset", "numbers"}
    assert on_a_node(tmp_path, (capture, "print(numbers[0].n)")) == "11"


def test_modules_are_imported_with_the_submodules_that_the_code_reaches(tmp_path: Path) -> None:
    namespace = notebook("""
        import xml.etree.ElementTree, xml.dom, numpy as np, os.path as p, concurrent.futures
        def f():
            return concurrent.futures.ThreadPoolExecutor.__name__
    """)
    cell = "print(xml.etree.ElementTree.fromstring('<a/>').tag, np.pi, p.sep, f())"
    capture = collect(cell, namespace, Ledger())
    modules = {one.name: one.module for one in capture.bindings if one.kind == "module"}
    assert modules == {"xml": "xml", "np": "numpy", "p": "posixpath", "concurrent": "concurrent"}
    assert {"xml.etree", "xml.etree.ElementTree", "concurrent.futures"} <= set(capture.imports)
    assert "xml.dom" not in capture.imports
    assert on_a_node(tmp_path, (capture, cell)) == f"a {np.pi} / ThreadPoolExecutor"


def test_a_module_is_sent_once() -> None:
    ledger, namespace = Ledger(), notebook("import json")
    collect("json", namespace, ledger).commit(ledger)
    assert names(collect("json", namespace, ledger)) == []
    namespace["json"] = sys
    assert names(collect("json", namespace, ledger)) == ["json"]


def test_names_of_ipython_and_python_are_never_sent() -> None:
    internal = ["get_ipython", "_", "__", "___", "_i", "_ii", "_i7", "_12", "_oh", "_ih"]
    namespace: dict[str, Any] = dict.fromkeys([*internal, "__name__", "__file__", "_mine", "_index"], 1)
    shell = notebook("def of_shell(): pass")["of_shell"]
    shell.__module__ = "ipykernel.zmqshell"
    namespace |= {"In": namespace["_ih"], "Out": namespace["_oh"], "exit": shell, "quit": shell, "display": shell}
    assert names(collect("\n".join(namespace), namespace, Ledger())) == ["_index", "_mine"]


def test_names_that_ipython_has_are_sent_when_they_are_the_users(tmp_path: Path) -> None:
    namespace = notebook("""
        _ih, _oh = [], {}
        In, Out, quit = [7], (8,), "stop"
        def display(value): return f"my own display of {value}"
        def open(path): return f"my own {path}"
        def shown(): return display(quit)
    """)
    assert run(tmp_path, namespace, "print(shown(), In, Out, open('file'))") == (
        "my own display of stop [7] (8,) my own file"
    )
    ledger = Ledger()
    ledger.nodes_wrote(["display"], namespace, sizes={"display": 5})
    assert "display" in ledger.nodes_own


def test_ipythons_own_open_is_left_alone() -> None:
    namespace = notebook("def open(path):\n    return path")
    namespace["open"].__module__ = "IPython.core.interactiveshell"
    assert names(collect("open('a')", namespace, Ledger())) == []


def test_pushed_names_are_sent_and_excluded_ones_are_not() -> None:
    namespace = notebook("x = y = z = 1\ndef f():\n    return y")
    ledger = Ledger()
    assert names(collect("f(), x", namespace, ledger, exclude={"x", "y"}, push=["z"])) == ["z", "f"]
    assert names(collect("f(), x", namespace, ledger, exclude="all", push=["f"])) == ["f"]
    ledger.nodes_wrote(["x"], namespace)
    assert names(collect("x", namespace, ledger)) == []
    assert names(collect("x", namespace, ledger, push=["x"])) == ["x"]


def test_what_the_cell_does_not_use_is_not_looked_at() -> None:
    class Untouchable:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("it was looked at")

    namespace = notebook("def f():\n    return x\ndef g():\n    return y\nx = 1")
    namespace["y"] = Untouchable()
    assert set(names(collect("f(), 'y'", namespace, Ledger()))) == {"f", "x"}


def test_pushing_a_name_that_does_not_exist_offers_the_nearest() -> None:
    with pytest.raises(CaptureError, match=r"'modle' cannot be pushed.*did you mean 'model'\?"):
        collect("1", {"model": 1}, Ledger(), push=["modle"])


class Loader:
    def __init__(self, db: Any) -> None:
        self.db = db


class Sheltered:
    def __init__(self) -> None:
        self.lock, self.rows = threading.Lock(), [threading.Lock()]

    def __getstate__(self) -> Any:
        return {"rows": self.rows}


class Slotted:
    __slots__ = ("inner",)


@dataclass(frozen=True)
class Config:
    name: str
    source: Any


def closure_over(value: Any) -> Any:
    return lambda: value


def slotted(value: Any) -> Slotted:
    one = Slotted()
    one.inner = value  # type: ignore[misc]
    return one


def method_of(value: Any) -> Any:
    class Local:
        def run(self, stream: Any = value) -> None: ...

    return Local


UNPICKLABLE = {
    "x.db: sqlite3.Connection cannot": lambda: Loader(sqlite3.connect(":memory:")),
    "x['a'][1]: _thread.lock cannot": lambda: {"a": (1, threading.Lock())},
    "x.<closure value>: generator cannot": lambda: closure_over(i for i in ()),
    "x.rows[0]: _thread.lock cannot": Sheltered,
    "x.inner: _thread.lock cannot": lambda: slotted(threading.Lock()),
    "x.source.db: generator cannot": lambda: Config("a", Loader(i for i in ())),
    "x.args[0]: generator cannot": lambda: functools.partial(print, (i for i in ())),
    "x.run.<default stream>: generator cannot": lambda: method_of(i for i in ()),
    "x.<element>.<closure value>: _thread.lock cannot": lambda: {closure_over(threading.Lock())},
    "x: generator cannot": lambda: (i for i in ()),
}


@pytest.mark.parametrize(("message", "make"), UNPICKLABLE.items())
def test_what_cannot_be_pickled_is_refused_with_the_path_to_it(message: str, make: Any) -> None:
    with pytest.raises(CaptureError) as caught:
        collect("x", {"x": make()}, Ledger())
    first, last = str(caught.value).splitlines()
    assert first.startswith(message)
    assert last == "leave it out with --no-capture x, or make it inside the cell"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_all_that_cannot_be_pickled_is_named_at_once_and_can_be_left_out() -> None:
    namespace = notebook("a = (i for i in ())\nb = [a]\nc = 1\ndef f():\n    return b")
    with pytest.raises(CaptureError, match=r"(?s)a: generator.*b\[0\]: generator.*--no-capture a,b,"):
        collect("a, c, f()", namespace, Ledger())
    assert names(collect("a, c, f()", namespace, Ledger(), exclude={"a", "b"})) == ["c", "f"]


def test_a_value_nested_too_deeply_is_refused_clearly() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CaptureError, match="x: list is nested too deeply"):
        collect("x", {"x": deep}, Ledger())
    while deep:  # its own destruction would go as deep
        deep = deep.pop()


def test_a_name_that_the_cell_most_likely_writes_itself_is_no_reason_to_refuse() -> None:
    namespace = {"x": (i for i in ())}
    capture = collect("for x in range(3):\n    pass\nprint(x)", namespace, Ledger())
    assert capture.bindings == ()
    assert len(capture.skipped) == 1
    assert capture.skipped[0].startswith("x: generator cannot be pickled")


def test_an_unpicklable_value_of_a_name_that_the_nodes_own_is_no_matter() -> None:
    ledger, namespace = Ledger(), {"x": (i for i in ())}
    ledger.nodes_wrote(["x"], namespace)
    assert collect("x", namespace, ledger).bindings == ()


def test_a_call_is_sent_with_what_its_functions_read(tmp_path: Path) -> None:
    namespace = notebook(
        "import math\nk = 2\ndef helper(x):\n    return math.sqrt(x) * k\ndef f(x):\n    return helper(x)"
    )
    blob, capture = collect_value((namespace["f"], (9,)), namespace, Ledger())
    assert names(capture) == ["k", "math", "helper"]
    namespace["call"] = (namespace["f"], (9,))
    both = Capture((*capture.bindings, *collect("call", namespace, Ledger(), exclude={"k", "math", "helper"}).bindings))
    assert both.bindings[-1].blob == blob
    assert on_a_node(tmp_path, (both, "function, args = call\nprint(function(*args))")) == "6.0"
    with pytest.raises(CaptureError, match=r"the function call\[1\]\[0\]: generator"):
        collect_value((namespace["f"], ((i for i in ()),)), namespace, Ledger())


def test_capturing_changes_nothing_and_a_manifest_is_plain_json(tmp_path: Path) -> None:
    ledger, namespace = Ledger(), {"a": np.zeros(10_000), "b": 1, "c": 1}
    capture = collect("a, b, c", namespace, ledger)
    assert names(collect("a, b, c", namespace, ledger)) == ["a", "b", "c"]
    manifest = capture.write(tmp_path)
    assert json.loads(json.dumps(manifest)) == manifest
    assert len(capture.blobs) == len(list(tmp_path.iterdir())) == 2
