"""Nodes with another Python than the notebook: cells run there, and code that was made for one of them stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

import sky_jupyter as sky
from sky_jupyter.capture.collect import Capture, collect, collect_value
from sky_jupyter.capture.ledger import Ledger
from sky_jupyter.errors import BootstrapError, CaptureError
from sky_jupyter.node.serialization.code_portability import PYTHON
from sky_jupyter.node.serialization.unpicklable_placeholders import RemoteRepr
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer.python_versions import PoolPythons
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from tests.pool.pools import run


def notebook(source: str) -> dict[str, Any]:
    """What a notebook's namespace is after a cell."""
    main = sys.modules["__main__"].__dict__
    exec(source, main)
    return main


@pytest.fixture(autouse=True)
def same_main() -> Iterator[None]:
    """``__main__`` is afterwards as it was."""
    main = sys.modules["__main__"].__dict__
    before = dict(main)
    yield
    main.clear()
    main.update(before)


def apart(plugins: tuple[Plugin, ...] = (), nodes: int = 2, **others: list[int]) -> PoolPythons:
    """What a pool knows whose nodes have other Pythons; nothing of it is started."""
    pool = Pool(PoolSpec(provider=Local(), nodes=nodes, plugins=plugins))
    pool.registry.close()
    pool.pythons.others = {name.replace("py", "3."): found for name, found in others.items()}
    return pool.pythons


def captured(code: str, source: str) -> Capture:
    """What a cell takes of a notebook."""
    return collect(code, notebook(source), Ledger())


WITH_CODE = {
    "a function": "def f(): return 1",
    "a lambda": "f = lambda: 1",
    "a partial": "import functools\nf = functools.partial(lambda a: a, 1)",
    "a class": "class f:\n    def m(self): return 1",
    "an instance of one": "class C:\n    def m(self): return 1\nf = C()",
    "a dataclass": "import dataclasses\n@dataclasses.dataclass\nclass f:\n    x: int = 1",
    "in a container": "f = {'a': [1, (lambda: 1,)]}",
    "in a closure in a dict": "def make(n):\n    return {'k': lambda: n}\nf = make(1)",
    "behind a cache": "import functools\n@functools.cache\ndef f(): return 1",
}
WITHOUT = {
    "numbers": "f = {'a': [1, 2.5, 'x'], 'b': b'y'}",
    "an array": "import numpy\nf = numpy.ones(9)",
    "an instance of a class of a module": "import fractions\nf = fractions.Fraction(1, 3)",
    "a function of a module": "from os.path import join as f",
    "a partial of one": "import functools, operator\nf = functools.partial(operator.add, 1)",
    "a module": "import json as f",
}


@pytest.mark.parametrize("source", WITH_CODE.values(), ids=WITH_CODE.keys())
def test_a_value_with_code_in_it_is_refused_with_the_way_out(source: str) -> None:
    capture = captured("f", source)
    assert apart().fitting(capture) is capture
    with pytest.raises(CaptureError) as caught:
        apart(py9=[0, 1]).fitting(capture)
    text = str(caught.value)
    assert text.startswith("f")
    assert f"cannot go to the nodes: the nodes run Python 3.9, the notebook {PYTHON}" in text
    assert f"--python {PYTHON}" in text
    assert "%%sky cell" in text
    assert "module of your project" in text


@pytest.mark.parametrize("source", WITHOUT.values(), ids=WITHOUT.keys())
def test_a_value_without_code_goes(source: str) -> None:
    capture = captured("f", source)
    assert apart(py9=[0, 1]).fitting(capture) is capture
    assert [one.name for one in capture.bindings] == ["f"]


def test_what_functions_read_is_named_with_them_and_only_what_is_sent() -> None:
    capture = captured("g()", "def f(): return x\ndef g(): return f()\nx = 1")
    with pytest.raises(CaptureError, match=r"^f, g cannot go"):
        apart(py9=[1]).fitting(capture)
    ledger = Ledger()
    capture.commit(ledger)
    again = collect("g()", sys.modules["__main__"].__dict__, ledger)
    assert apart(py9=[1]).fitting(again) is again


def test_what_is_only_guessed_to_be_read_stays_here() -> None:
    capture = captured("print(n, eval(t))", "def f(): return 1\nn = 1\nt = 'f()'")
    there = {one.name for one in capture.bindings}
    left = {one.name for one in apart(py9=[0]).fitting(capture).bindings} if "f" in there else {"n", "t"}
    assert left == {"n", "t"}


def test_a_call_is_refused_by_its_name_unless_its_function_is_a_modules() -> None:
    main = notebook("def f(a): return a")
    _, capture = collect_value((main["f"], (1,), {}), main, Ledger(), label="f(1)")
    with pytest.raises(CaptureError, match=r"^f\(1\) \(f\) cannot go to the nodes: node 1 runs Python 3.9"):
        apart(py9=[1]).fitting(capture)
    _, capture = collect_value((os.path.join, ("a", "b"), {}), main, Ledger(), label="join('a', 'b')")
    assert apart(py9=[1]).fitting(capture) is capture


def test_a_plugin_of_the_notebook_is_refused_and_ours_are_not() -> None:
    from sky_jupyter.plugins import parse_plugins

    apart(parse_plugins(("jax", "torch")), py9=[0]).check_plugins()
    main = notebook("def hold(info): yield")
    mine = Plugin.create("mine").with_around_process(main["hold"])
    apart((mine,)).check_plugins()
    with pytest.raises(BootstrapError, match=r"plugin 'mine' has the function 'hold' of the notebook"):
        apart((mine,), py9=[0]).check_plugins()


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """A Python of another minor version that this machine has, which uv finds meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        # pyenv's own commands for them do nothing unless they are chosen.
        found = sorted(Path.home().glob(".pyenv/versions/3.1[0-4].*/bin"))
        patch.setenv("PATH", os.pathsep.join([os.environ["PATH"], *map(str, found)]))
        yield _other()


def _other() -> str:
    command = [find_uv_bin(), "python", "list", "--offline", "--only-installed", "--output-format", "json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    versions = {f"3.{row['version_parts']['minor']}" for row in rows if row["implementation"] == "cpython"}
    # One for which there are wheels of all that a node needs.
    usable = versions & {f"3.{minor}" for minor in range(10, 15)} - {PYTHON}
    return max(usable, default="") or pytest.skip("there is no second Python on this machine")


@pytest.fixture(scope="module")
def there(other: str) -> Iterator[tuple[Pool, list[Event]]]:
    """A pool on another Python, and what its start said."""
    said: list[Event] = []
    pool = Pool(PoolSpec(provider=Local(), nodes=1, image=Image(python=other)))
    pool.start(said.append)
    try:
        yield pool, said
    finally:
        pool.down()


@pytest.mark.slow
def test_cells_run_on_another_python_and_what_cannot_travel_is_told(
    there: tuple[Pool, list[Event]], other: str
) -> None:
    pool, said = there
    notices = [event.text for event in said if isinstance(event, NoticeEvent)]
    assert len(notices) == 1
    assert f"the nodes run Python {other}, the notebook {PYTHON}" in notices[0]
    main = notebook("data = {'a': [1, 2]}\ndef f(): return 1")
    code = "import sys\ndef g(n): return n + 1\n(sys.version_info[1], g(data['a'][1]))"
    assert run(pool, code, main).values == [(int(other[2:]), 3)]
    # What was defined there is there.
    assert run(pool, "g(1)", main).values == [2]
    began = len(pool.runs())
    with pytest.raises(CaptureError, match=r"^f cannot go to the nodes"):
        run(pool, "f()", main)
    with pytest.raises(CaptureError, match=r"cannot go to the nodes"):
        sky.function(main["f"])() >> pool
    # Whatever way its arguments take.
    with pytest.raises(CaptureError, match=r"^an argument of .* cannot go to the nodes"):
        sky.function(os.path.join)(lambda: 1, "b") >> pool
    assert len(pool.runs()) == began
    assert sky.function(os.path.join)("a", "b") >> pool == "a/b"


@pytest.mark.slow
def test_values_with_code_in_them_do_not_come_back_from_another_python(
    there: tuple[Pool, list[Event]], other: str
) -> None:
    pool, _ = there
    for code in ("lambda: 1", "class C:\n    def m(self): return 1\nC()"):
        assert f"is Python {other}'s, and the notebook runs {PYTHON}" in _why(run(pool, code).head)
    assert run(pool, "import fractions; fractions.Fraction(1, 3)").head * 3 == 1
    # A large one, which is asked for when it is touched.
    assert f"is Python {other}'s" in _why(run(pool, "['x' * 2_000_000, lambda: 1]").head[1])
    with pytest.raises(sky.CellError) as caught:
        run(pool, "class Odd(Exception):\n    def say(self): return 1\nraise Odd('so')")
    assert "Odd: so" in str(caught.value.exceptions[0])


def _why(value: Any) -> str:
    """Why what stands for a value does."""
    assert isinstance(value, RemoteRepr)
    return value.reason
