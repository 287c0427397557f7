"""What a notebook can define, each kind used on a node: it is rebuilt there, and what it reads is there too."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sky_jupyter.capture.collect import collect
from sky_jupyter.capture.ledger import Ledger
from sky_jupyter.errors import CaptureError

ROOT = Path(__file__).resolve().parents[2]
NODE = """
import contextlib, io, json, sys, types
from sky_jupyter.node.serialization import pickling as payload
told = {}
for name, (manifest, cell) in json.load(sys.stdin).items():
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        try:
            payload.bind(manifest, vars(main))
            exec(compile(cell, "<cell>", "exec", dont_inherit=True), vars(main))
        except Exception as error:
            print(type(error).__name__, error)
    told[name] = shown.getvalue().strip()
print(json.dumps(told))
"""

# What the notebook runs, what the cell runs, and what the cell prints.
KINDS = {
    "TypedDict with a base, one that names itself, and one made by call": (
        "from typing import TypedDict, get_type_hints\nclass A(TypedDict):\n    'Doc.'\n    x: int\n"
        "class B(A, total=False):\n    y: 'B'\nC = TypedDict('C', {'a b': int, 'n': B})",
        "print(B(x=1), sorted(get_type_hints(B)), sorted(B.__required_keys__), B.__total__, A.__doc__, C.__module__)\n"
        "print(get_type_hints(C)['n'] is B)",
        "{'x': 1} ['x', 'y'] ['x'] False Doc. __main__\nTrue",
    ),
    "cached function": (
        "import functools\nk = 2\n@functools.lru_cache(maxsize=5)\ndef f(n):\n    return n * k",
        "print(f(3), f(3), f.cache_info(), f.__name__)",
        "6 6 CacheInfo(hits=1, misses=1, maxsize=5, currsize=1) f",
    ),
    "recursive cached function": (
        "from functools import cache\n@cache\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)",
        "print(fib(80))",
        "23416728348467685",
    ),
    "cached function that holds itself": (
        "from functools import cache\ndef make():\n    @cache\n    def g(n):\n        return n and g(n - 1) + k\n"
        "    return g\nk = 2\ng = make()",
        "print(g(3))",
        "6",
    ),
    "cached method": (
        "import functools\nclass A:\n    @functools.lru_cache\n    def f(self, n):\n        return n * k\n"
        "k = 2\na = A()",
        "print(a.f(3), A().f(1))",
        "6 2",
    ),
    "cached property": (
        "import functools\nclass A:\n    @functools.cached_property\n    def f(self):\n        return k\n"
        "k = 2\na = A()",
        "print(a.f, A().f, vars(a))",
        "2 2 {'f': 2}",
    ),
    "single dispatch": (
        "import functools\nk = 2\n@functools.singledispatch\ndef f(n):\n    return k\n@f.register\n"
        "def _(n: int):\n    return m * n\nm = 5\nf.note = 'x'",
        "print(f('a'), f(3), f.note, f.__name__)\n@f.register(list)\ndef _(n):\n    return 'list'\nprint(f([]))",
        "2 15 x f\nlist",
    ),
    "partial and partialmethod": (
        "import functools\nk = 1\nclass A:\n"
        "    def f(self, n):\n        return n + k\n    g = functools.partialmethod(f, 2)\n"
        "p = functools.partial(lambda x, y: x + y + k, 1)",
        "print(A().g(), p(2))",
        "3 4",
    ),
    "new type and parameter specification": (
        "from typing import NewType, ParamSpec, Callable\nUid = NewType('Uid', int)\nP = ParamSpec('P')\n"
        "def f(g: Callable[P, Uid]) -> Uid:\n    return Uid(g())",
        "print(f(lambda: 3), Uid.__name__, Uid.__supertype__, Uid.__module__, P.__name__)",
        "3 Uid <class 'int'> __main__ P",
    ),
    "generic class": (
        "from typing import TypeVar, Generic\nT = TypeVar('T')\nclass B(Generic[T]):\n    def f(self, x: T) -> T:\n"
        "        return x, k\nk = 1",
        "print(B[int]().f(3))",
        "(3, 1)",
    ),
    "annotations in texts": (
        "from __future__ import annotations\nclass A: ...\nclass B: ...\ndef f(x: A) -> list[B]: ...\n"
        "class C:\n    y: A",
        "import typing\nprint(typing.get_type_hints(f)['x'].__name__, typing.get_type_hints(C)['y'].__name__)",
        "A A",
    ),
    "annotations in quotes": (
        "class A: ...\ndef f(x: 'A') -> 'A | None': ...",
        "import typing\nprint(typing.get_type_hints(f)['x'].__name__)",
        "A",
    ),
    "names in texts": (
        "k = 1\ndef f():\n    return globals()['k'], eval('m + 1'), '{n}'.format(**globals())\nm = n = 2",
        "print(f(), globals()['k'], globals().get('o'))\no = 1",
        "(1, 3, '2') 1 None",
    ),
    "query of pandas": (
        "import pandas as pd\nk = 1\ndf = pd.DataFrame({'a': [1, 2]})\ndef f(df):\n    return df.query('a > @k')",
        "print(len(f(df)), len(df.query('a > @k')))",
        "1 1",
    ),
    "metaclass, descriptor and hook": (
        "class M(type):\n    def __call__(cls):\n        return k\nclass A(metaclass=M): ...\nk = 3\nclass D:\n"
        "    def __get__(self, o, t):\n        return m\nclass B:\n    x = D()\n    def __init_subclass__(cls):\n"
        "        cls.n = n\nm, n = 4, 5",
        "class C(B): ...\nprint(A(), B.x, C.n)",
        "3 4 5",
    ),
    "context manager and coroutine": (
        "import asyncio, contextlib\nk = 1\n@contextlib.contextmanager\ndef cm():\n    yield k\nasync def g():\n"
        "    return m\nm = 2",
        "with cm() as c:\n    print(c, asyncio.run(g()))",
        "1 2",
    ),
    "default factory": (
        "from collections import defaultdict\nk = 1\nd = defaultdict(lambda: k)",
        "print(d['a'])",
        "1",
    ),
    "user's dunder": ("__version__ = '1.2'", "print(__version__)", "1.2"),
}
if sys.version_info >= (3, 12):
    KINDS |= {
        "type parameters": (
            "class Bound: ...\nk = 1\ndef f[T: Bound](x: T) -> T:\n    return k\nclass A[T]:\n"
            "    def f(self, x: T) -> T:\n        return k\na = A[int]()",
            "print(f(1), f.__type_params__[0].__bound__.__name__, A[int]().f(1), a.f(1))",
            "1 Bound 1 1",
        ),
        "type aliases": (
            "class B: ...\ntype X = list[B]\ntype Y[T] = dict[T, X]",
            "print(X.__value__, Y.__name__, Y.__value__.__args__[1] is Y.__value__.__args__[1])",
            "list[__main__.B] Y True",
        ),
        "generics in the cell": (
            "class B: ...\nk = 3",
            "def f[T: B](x: T) -> T:\n    return k\nclass C[T: B]:\n    y: T = k\ntype Z = B\n"
            "print(f(1), f.__type_params__[0].__bound__, C.__type_params__[0].__bound__, Z.__value__)",
            "3 <class '__main__.B'> <class '__main__.B'> <class '__main__.B'>",
        ),
    }


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each kind's cell prints in one other process, in a namespace of its own."""
    folder, work = tmp_path_factory.mktemp("blobs"), {}
    for name, (notebook, cell, _) in KINDS.items():
        with pytest.MonkeyPatch.context() as patch:
            main = types.ModuleType("__main__")
            patch.setitem(sys.modules, "__main__", main)
            exec(compile(notebook, "<notebook>", "exec", dont_inherit=True), vars(main))
            work[name] = (collect(cell, vars(main), Ledger()).write(folder), cell)
    done = subprocess.run(
        [sys.executable, "-c", NODE], cwd=ROOT, input=json.dumps(work), capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_notebook_defines_works_on_a_node(printed: dict[str, str], kind: str) -> None:
    assert printed[kind] == KINDS[kind][2]


def test_what_a_cached_function_holds_is_named_when_it_cannot_be_pickled() -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec("import functools, threading\n@functools.cache\ndef f(lock=threading.Lock()): ...", namespace)
    with pytest.raises(CaptureError, match=r"f\.__wrapped__\.<default lock>: _thread\.lock cannot"):
        collect("f()", namespace, Ledger())
