"""What a cell is found to read and to write."""

from __future__ import annotations

import sys

import pytest

from sky_jupyter.capture.cell_names import analyse

READS = {
    "x": {"x"},
    "x = 1\nx": set(),
    "x += 1": {"x"},
    "x = x + 1": {"x"},
    "del x": {"x"},
    "a, (b, *c) = x\na, b, c": {"x"},
    "x[i].y = v": {"x", "i", "v"},
    "if c:\n    x = 1\nx": {"c", "x"},
    "if c:\n    x = 1\nelse:\n    x = 2\nx": {"c"},
    "if c:\n    raise OSError\nelse:\n    x = 2\nx": {"c", "OSError"},
    "for i in xs:\n    s = i\ns": {"xs", "s"},
    "while t:\n    y = 1\nelse:\n    z\ny": {"t", "z", "y"},
    "with c() as x:\n    y = 1\nx, y": {"c", "y"},
    "try:\n    x\nexcept NameError:\n    x = 1\nx": {"x", "NameError"},
    "try:\n    x = f()\nexcept E as e:\n    x = e\nx": {"f", "E"},
    "try:\n    x = f()\nfinally:\n    y = 1\nx, y": {"f"},
    "match m:\n    case [a, {'k': K.v, **r}] if a > g:\n        a, r\n    case _:\n        pass\na": {
        "m",
        "K",
        "g",
        "a",
    },
    "[i + k for i in xs if (y := i)]\ny": {"xs", "k", "y"},
    "{a: b for a in xs for b in a}": {"xs"},
    "f'{x!r:>{w}}'": {"x", "w"},
    "{1: a, (a := 2): 3}": {"a"},
    "c and (x := 1)\nx": {"c", "x"},
    "a < b < (x := 3)\nx": {"a", "b", "x"},
    "(x := 1) if c else (x := 2)\nx": {"c"},
    "import a.b, c as d\nfrom e import f as g\na, d, g": set(),
    "from os.path import *": set(),
    "def f(a=d, *, b: t = e) -> r:\n    return a + g + h\nh = 1\nf()": {"d", "t", "e", "r", "g"},
    "def f():\n    return f() + g()\ndef g():\n    return x\nx = 1\nf()": set(),
    "def f():\n    return x\ny = f()\nx = 1": {"x"},
    "@deco\ndef f():\n    return x\nx = 1": {"deco", "x"},
    "def f():\n    global x\n    x += 1": {"x"},
    "def f():\n    def g():\n        nonlocal y\n        y = x\n    y = 1\n    return g": {"x"},
    "lambda a, b=d: a + b + x": {"d", "x"},
    "[(lambda: i + x) for i in y]": {"x", "y"},
    "class A(B, metaclass=M):\n    n = k\n    m = n\n    def f(self):\n        return n": {"B", "M", "k", "n"},
    "class A:\n    def f(self):\n        return x\nx = 1\nA().f()": set(),
    "class A:\n    def f(self):\n        return x\n    y = f(0)\nx = 1": {"x"},
    "class A:\n    def f(self):\n        return __x": {"_A__x"},
    "class A:\n    v = [n for n in a if b]": {"a", "b"},
    "await x": {"x"},
    "exec('y = x')": {"exec", "x"},
    "df.query('n > @low')": {"df", "low"},
    "for i in r:\n    if i:\n        f()\n    def f():\n        return x\nx = 1": {"r", "f", "x"},
    "def f():\n    return x\n[f() for x in xs]\nx = 1": {"x", "xs"},
    "x[i] += (i := 1)": {"x", "i"},
    "(x): t = (t := 1)": set(),
    "class A:\n    x = __y\n    __z = 1\n    w = __z": {"_A__y"},
    "class A:\n    T = t\n    def f(self, x: T) -> T: ...": {"t"},
    "def f(x: 'A', y: 'list[B] | C.d') -> 'Literal[no]': ...": {"A", "B", "C", "Literal", "list"},
    "x: Annotated['A', 'no'] = 1": {"Annotated", "A"},
    "def f():\n    return eval('x + 1')\nf()": {"eval", "x"},
    "def f(d):\n    return d.query('n > @low')\nf(1)": {"low"},
    "def f():\n    return globals()['x']\nf()": {"globals", "x"},
    "if 'x' not in globals():\n    x = 1\nx": {"globals", "x"},
    "globals().get('x'), '{y} {z.w[0]}'.format(**vars())": {"globals", "vars", "x", "y", "z"},
    "vars(a)['x']": {"vars", "a"},
    "f'{x:{w}.{p}} {f\"{y!r}\"}'": {"x", "w", "p", "y"},
}
if sys.version_info >= (3, 12):
    READS |= {
        "def f[T: B](x: T, y: A) -> T:\n    return T, x, z\nf()": {"A", "B", "z"},
        "class A[T](Base[T], key=k):\n    x: T = T\n    def m(self) -> T:\n        return T": {"Base", "k"},
        "class A[T: (B, C)]:\n    T = T": {"B", "C", "T"},
        "class A[*Ts, **P]:\n    x: Ts = [(lambda: P) for Ts in Ts]": set(),
        "type X[T] = list[T] | Y": {"list", "Y"},
        "class A:\n    B = b\n    def f[T: B](self, x: B) -> T: ...": {"b"},
        "f'{'a' + f'{x}'}'": {"x"},
    }
if sys.version_info >= (3, 14):
    READS |= {"t'{x!r:{w}}'": {"x", "w"}, "def f(x: A): ...\nA = 1": {"A"}}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize(("source", "reads"), READS.items())
def test_a_cell_reads_what_it_has_not_surely_written(source: str, reads: set[str]) -> None:
    assert analyse(source).reads == reads


WRITES = {
    "a = b.c = d[0] = 1": {"a"},
    "for i in x: pass": {"i"},
    "with x as (a, b): pass": {"a", "b"},
    "try: pass\nexcept E as e: pass": {"e"},
    "import a.b, c as d": {"a", "d"},
    "from posixpath import *\n": set(__import__("posixpath").__all__),
    "del a": {"a"},
    "def f():\n    global g\n    g = 1\n    h = 2": {"f", "g"},
    "class A:\n    global g\n    g = 1\n    n = 2": {"A", "g"},
    "[y := i for i in x]": {"y"},
    "x: int": set(),
    "x: int = 1": {"x"},
    "match m:\n    case {'k': a, **b}: pass\n    case [c, *d] as e: pass": {"a", "b", "c", "d", "e"},
    "get_ipython().run_cell_magic('capture', 'out', 'a = 1\\n!ls')": {"out", "a"},
    "get_ipython().run_cell_magic('bash', '--out o --err e', 'ls')": {"o", "e"},
    "class A:\n    global __x\n    __x = 1": {"A", "_A__x"},
}


@pytest.mark.parametrize(("source", "writes"), WRITES.items())
def test_a_cell_writes_what_it_may_bind_or_delete(source: str, writes: set[str]) -> None:
    assert analyse(source).writes == writes


def test_only_what_is_written_on_every_path_is_sure() -> None:
    names = analyse("a = 1\nif c:\n    b = 1\nfor i in x: pass\ndel d\ndef f():\n    global g\n    g = 1")
    assert names.sure == {"a", "d", "f"}


SHELL = {
    "get_ipython().system('ls {path} $name {d[key]}')": {"path", "name", "d", "key"},
    "x = get_ipython().getoutput('echo $x')": {"x"},
    "get_ipython().run_line_magic('timeit', '-n 3 f(x)')": {"f", "x"},
    "get_ipython().run_line_magic('cd', 'data')": set(),
    "get_ipython().run_cell_magic('time', '', 'y = x\\n!ls {d}\\nz(y)\\n')": {"x", "z", "d"},
    "get_ipython().run_cell_magic('bash', '', 'echo data')": set(),
    "get_ipython().run_cell_magic('bash', '-s {x}', 'echo {data} $y')": {"x"},
    "get_ipython().run_cell_magic('sx', '', 'echo {data} $y')": {"data", "y"},
    "get_ipython().run_cell_magic('time', '', '%timeit f(x)\\nz?\\n')": {"f", "x", "z"},
    "get_ipython().run_cell_magic('timeit', 'y = g()', 'f(y)')": {"f", "g", "y"},
    "get_ipython().run_line_magic('pinfo', 'x.y')": {"x"},
    "get_ipython().system('echo {d[\"key\"]:>9} $HOME {{no}} {f(1, x)}')": {"d", "HOME", "f", "x"},
}


@pytest.mark.parametrize(("source", "shell"), SHELL.items())
def test_names_in_shell_lines_and_magics_are_reads(source: str, shell: set[str]) -> None:
    names = analyse(source)
    assert names.shell == shell
    assert names.reads == shell | {"get_ipython"}


def test_names_written_before_on_some_path_only_are_weak() -> None:
    names = analyse("with c:\n    x = 1\nprint(x, y)\ndef unused():\n    return z")
    assert names.reads == {"c", "x", "y", "z", "print"}
    assert names.weak == {"x", "z"}


def test_what_a_cell_deletes_in_the_end_is_told() -> None:
    source = "a = b = 1\ndel a, b, c, d[0]\nb = 2\ntry: pass\nexcept E as e: pass\nclass A:\n    f = 1\n    del f"
    assert analyse(source).dropped == {"a", "c", "e"}


def test_an_annotation_that_is_evaluated_later_is_no_reason_to_refuse() -> None:
    future = "from __future__ import annotations\n"
    source = "def f(x: A) -> B: ...\ny: C = 1"
    assert analyse(future + source).reads == {"A", "B", "C"}
    assert analyse(future + source).weak == {"A", "B", "C"}
    if sys.version_info < (3, 14):
        assert analyse(source).weak == set()


def test_names_in_texts_are_guesses() -> None:
    source = "def f(x: 'A'):\n    return eval('b'), globals()['c']\nf(1), vars()['d']"
    assert analyse(source).weak == {"A", "b", "c", "d"}


def test_functions_and_classes_are_kept_with_what_they_use() -> None:
    names = analyse("def f():\n    return x\nx = 1\nclass A(list):\n    def m(self):\n        return f() + y\nf()")
    assert names.uses == {"f": {"x"}, "A": {"f", "y"}}


@pytest.mark.parametrize("source", ["x = = 1", "return 1", "def f(a, a): pass", "break"])
def test_a_syntax_error_passes_through(source: str) -> None:
    with pytest.raises(SyntaxError):
        analyse(source)


def test_a_cells_warnings_are_left_to_where_it_runs(recwarn: pytest.WarningsRecorder) -> None:
    assert analyse("def f():\n    return x is 1\n'\\d'").uses == {"f": {"x"}}
    assert not recwarn.list
