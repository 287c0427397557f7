"""What a cell is found to read and to write."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sky_jupyter.capture.names import analyse

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
}


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


class Initial(int):
    """A value that can be called, iterated, entered and indexed, and that knows its name."""

    name = ""

    def __call__(self, *_: object) -> int:
        return 1

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([1, 2][: int(self)])

    def __enter__(self) -> int:
        return 1

    def __exit__(self, *_: object) -> bool:
        return True


class Recording(dict):  # type: ignore[type-arg]
    """A namespace that notes which of its first values are read under their own names."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self.read: set[str] = set()
        for index, name in enumerate(names):
            value = Initial(index % 3)
            value.name = name
            dict.__setitem__(self, name, value)

    def __getitem__(self, name: str) -> object:
        value = super().__getitem__(name)
        if isinstance(value, Initial) and value.name == name:
            self.read.add(name)
        return value


NAMES = "abcdefgh"
name = st.sampled_from(NAMES)


def block(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


expression = st.recursive(
    st.one_of(name, st.just("1"), st.just("0")),
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} < {} < {})".format, inner, inner, inner),
        st.builds("({} := {})".format, name, inner),
        st.builds("{}()".format, name),
        st.builds("{{1: {}, {}: {}}}".format, inner, inner, inner),
        st.builds("f'{{{}}}'".format, name),
        st.builds("(lambda {}={}: {})()".format, name, inner, name),
        st.builds("[{} for {} in {} if {}]".format, name, name, name, name),
    ),
    max_leaves=4,
)
simple = st.one_of(
    st.builds("{} = {}".format, name, expression),
    st.builds("{} += {}".format, name, expression),
    st.builds("{}, {} = {}, {}".format, name, name, expression, expression),
    st.builds("del {}".format, name),
    st.builds("import os.path as {}".format, name),
    st.builds("assert {}, {}".format, expression, expression),
    st.builds("if {}: raise ValueError({})".format, expression, name),
    st.builds("global {}".format, name).map(lambda text: "pass"),
    expression,
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = inner.map(block)
    return st.one_of(
        st.builds("if {}:\n{}\nelse:\n{}".format, expression, body, body),
        st.builds("for {} in {}:\n{}\nelse:\n{}".format, name, name, body, body),
        st.builds(
            "for {} in [0, 1]:\n{}\n    if {}: {}".format, name, body, name, st.sampled_from(["break", "continue"])
        ),
        st.builds("while {}:\n{}\n    break".format, expression, body),
        st.builds("with {} as {}:\n{}".format, name, name, body),
        st.builds("with {} as {}, {} as {}:\n{}".format, name, name, name, name, body),
        st.builds("try:\n{}\nexcept Exception as {}:\n{}\nfinally:\n{}".format, body, name, body, body),
        st.builds("try:\n{}\nexcept TypeError:\n{}\nelse:\n{}".format, body, body, body),
        st.builds("def {}({}=1):\n{}\n    return {}".format, name, name, body, name),
        st.builds("def {}():\n    global {}\n{}".format, name, st.just("h"), body),
        st.builds("class {}:\n{}\n    def m(self):\n    {}".format, name, body, body.map(str.lstrip).map(block)),
        st.builds("class {}:\n    def {}(self):\n        return {}\n{}".format, name, name, name, body),
        st.builds(
            "match {}:\n    case {}.x:\n    {}\n    case {} if {}:\n    {}".format,
            expression,
            name,
            st.just("    pass"),
            name,
            name,
            st.just("    pass"),
        ),
        st.builds("{}\n{}".format, inner, inner),
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.lists(st.recursive(simple, compound, max_leaves=6), min_size=1, max_size=5).map("\n".join))
def test_no_name_is_read_from_the_namespace_that_was_not_found(source: str) -> None:
    try:
        code = compile(source, "<cell>", "exec")
    except SyntaxError:
        return
    names = analyse(source)
    namespace = Recording(NAMES)
    before = dict(namespace)
    try:
        exec(code, namespace)
    except (Exception, RecursionError):
        pass
    else:
        untouched = {key for key in NAMES if namespace.get(key) is before[key]}
        assert not names.sure & untouched - names.reads
    assert namespace.read <= names.reads, source
    assert {key for key in NAMES if namespace.get(key) is not before[key]} <= names.writes
