"""The user's own modules and files on real nodes: sent, reloaded where they change, gone with the pool."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.capture import file_selection
from sky_jupyter.errors import CaptureError, SpecError
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from tests.conftest import pool_folders
from tests.pool.pools import local_pool, run

NATIVE = """
#include <Python.h>
static PyObject *number(PyObject *self, PyObject *none) { return PyLong_FromLong(%d); }
static PyMethodDef methods[] = {{"number", number, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tenth_native", "", -1, methods};
PyMODINIT_FUNC PyInit_tenth_native(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as made:
        yield made
    assert pool_folders(made.id) == []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this process finds modules in, and the ranks do not."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def told(pool: Pool, code: str, namespace: dict[str, Any] | None = None) -> tuple[list[Any], list[str]]:
    """The values of a cell's last line on all ranks, and what the person was told."""
    events: list[Event] = []
    values = run(pool, code, namespace, listener=events.append).values
    return values, [event.text for event in events if isinstance(event, NoticeEvent)]


def test_a_module_and_what_it_imports_go_as_source(pool: Pool, project: Path) -> None:
    write(
        project,
        first_one="import first_two\nfrom first_three import THREE\n\ndef f():\n    return first_two.TWO + THREE\n",
    )
    write(project, first_two="TWO = 2\n", first_three="THREE = 3\n", first_unused="1 / 0\n")
    values, news = told(pool, "import first_one\n(first_one.f(), first_one.__file__)")
    assert [value for value, _ in values] == [5, 5]
    assert news == []
    (place,) = {Path(place) for _, place in values}
    assert place.parent.parent in pool_folders(pool.id)
    assert place.read_text() == (project / "first_one.py").read_text()
    assert not (place.parent / "first_unused.py").exists()
    assert "first_one" not in sys.modules  # Nothing of it has run here.


def test_a_package_goes_whole_with_its_relative_imports_and_data(pool: Pool, project: Path) -> None:
    package = project / "second"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("from .core import answer\n")
    (package / "core.py").write_text(
        "from .inner import deep\nfrom . import text\n\ndef answer():\n    return deep.N + text.N\n"
    )
    (package / "text.py").write_text(
        "from pathlib import Path\nN = int((Path(__file__).parent / 'inner' / 'number.txt').read_text())\n"
    )
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "deep.py").write_text(
        "from ..text import N as M\nimport second_helper\nN = second_helper.N + M - M\n"
    )
    (package / "inner" / "number.txt").write_text("40")
    (package / "plugin.py").write_text("NAME = 'found by name'\n")
    (project / "second_helper.py").write_text("N = 2\n")
    assert told(pool, "from second import answer\nanswer()")[0] == [42, 42]
    dynamic = "import importlib\nname = 'second.' + 'plugin'\nimportlib.import_module(name).NAME"
    assert told(pool, dynamic)[0] == ["found by name"] * 2


def test_namespace_packages_give_the_modules_that_are_imported(pool: Pool, project: Path) -> None:
    (project / "third" / "data").mkdir(parents=True)
    (project / "third" / "data" / "large.bin").write_bytes(b"x")
    (project / "third" / "tools.py").write_text("from third.other import X\n")
    (project / "third" / "other.py").write_text("X = 7\n")
    values, _ = told(pool, "import third.tools, pathlib\n(third.tools.X, third.tools.__file__)")
    assert [value for value, _ in values] == [7, 7]
    assert not (Path(values[0][1]).parent / "data").exists()


def test_a_changed_file_is_reloaded_with_what_imports_it_in_the_order_of_dependence(pool: Pool, project: Path) -> None:
    write(project, fourth_base="RATE = 1\n")
    write(project, fourth_middle="from fourth_base import RATE\ndef rate(): return RATE\n")
    write(project, fourth_top="from fourth_middle import rate\nclass Model:\n    def rate(self): return rate()\n")
    code = "from fourth_top import Model\nimport fourth_middle\nmodel = Model()\nmodel.rate()"
    assert told(pool, code) == ([1, 1], [])
    # In the same second and of the same length, as an editor does it.
    for rate in (2, 3, 4):
        write(project, fourth_base=f"RATE = {rate}\n")
        values, news = told(pool, "(fourth_middle.rate(), model.rate(), isinstance(model, Model))")
        assert values == [(rate, rate, True)] * 2
        (line,) = news
        assert line == (
            "fourth_base.py changed: sent again and reloaded on the nodes, "
            "with fourth_middle and fourth_top, which import it"
        )
    # What has not changed is not told, nor reloaded.
    run(pool, "fourth_middle.mark = 1")
    assert told(pool, "fourth_middle.mark") == ([1, 1], [])


def test_a_package_that_changes_keeps_its_submodules(pool: Pool, project: Path) -> None:
    package = project / "fifth"
    package.mkdir()
    (package / "__init__.py").write_text("from . import part\nV = part.V\n")
    (package / "part.py").write_text("V = 1\n")
    assert told(pool, "import fifth\nfifth.V")[0] == [1, 1]
    (package / "part.py").write_text("V = 2\n")
    (package / "fresh.py").write_text("W = 3\n")
    values, news = told(pool, "from fifth.fresh import W\n(fifth.V, fifth.part.V, W)")
    assert values == [(2, 2, 3)] * 2
    assert "fifth/part.py changed" in news[0]
    assert "fifth, which imports it" in news[0]


def test_values_and_functions_of_the_notebook_bring_their_modules(pool: Pool, project: Path) -> None:
    write(
        project,
        sixth_shapes="class Square:\n    def __init__(self, a): self.a = a\n    def area(self): return self.a ** 2\n",
    )
    write(project, sixth_late="V = 'late'\n", sixth_bound="V = 'bound'\n", sixth_named="def f(): return 'named'\n")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "from sixth_shapes import Square\nimport sixth_bound as alias\nfrom sixth_named import f as g\n"
        "square = [Square(3)]\ndef late():\n    import sixth_late\n    return sixth_late.V\n",
        namespace,
    )
    values, _ = told(pool, "(square[0].area(), alias.V, g(), late())", namespace)
    assert values == [(9, "bound", "named", "late")] * 2


def test_what_cannot_be_imported_any_more_fails_the_cell_until_it_is_mended(pool: Pool, project: Path) -> None:
    write(project, seventh="V = 1\n", seventh_user="from seventh import V\n")
    assert told(pool, "import seventh_user\nseventh_user.V")[0] == [1, 1]
    write(project, seventh="V = = 2\n")
    with pytest.raises(CellError) as caught:
        run(pool, "seventh_user.V")
    assert all(isinstance(error, SyntaxError) for error in caught.value.exceptions)
    write(project, seventh="V = 3\n")
    assert told(pool, "seventh_user.V")[0] == [3, 3]


def test_a_module_that_is_removed_here_cannot_be_imported_there(pool: Pool, project: Path) -> None:
    write(project, eighth="V = 1\n", eighth_other="V = 2\n")
    assert told(pool, "import eighth, eighth_other\neighth.V")[0] == [1, 1]
    (project / "eighth.py").unlink()
    values, news = told(pool, "import os\nos.path.exists(eighth.__file__), os.path.exists(eighth_other.__file__)")
    assert values == [(False, True)] * 2
    assert news == ["eighth.py is gone: removed on the nodes"]


def test_new_kernels_have_the_code_too(pool: Pool, project: Path) -> None:
    write(project, ninth="V = 1\n")
    assert told(pool, "import ninth\nninth.V")[0] == [1, 1]
    pool.restart()
    pool.take_restarted()
    write(project, ninth="V = 2\n")
    assert told(pool, "def f():\n    import ninth\n    return ninth.V\nf()")[0] == [2, 2]


def build(folder: Path, number: int) -> None:
    """A native module, as a compiler makes it from source that stays here."""
    (folder / "tenth_native.c").write_text(NATIVE % number)
    made = f"tenth_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "tenth_native.c", "-o", made], cwd=folder, check=True)


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="needs a C compiler and Python's headers (Debian: apt-get install gcc python3-dev)",
)
def test_a_native_module_goes_and_a_changed_one_comes_with_new_kernels(pool: Pool, project: Path) -> None:
    build(project, 1)
    write(project, tenth="import tenth_native\n\ndef f():\n    return tenth_native.number()\n")
    cell = "import tenth, tenth_native\n[tenth.f(), tenth_native.__file__]"
    values, _ = told(pool, cell)
    assert [value for value, _ in values] == [1, 1]
    assert {Path(place).parent.parent for _, place in values} <= {*pool_folders(pool.id)}
    build(project, 2)
    values, news = told(pool, cell)
    assert [value for value, _ in values] == [1, 1]
    (line,) = news
    assert "tenth_native" in line
    assert "native code that a rank has loaded stays as it was" in line
    pool.restart()
    pool.take_restarted()
    assert [value for value, _ in told(pool, cell)[0]] == [2, 2]


def test_included_files_lie_beside_the_code(pool: Pool, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "assets" / "deep").mkdir(parents=True)
    (project / "assets" / "deep" / "words.txt").write_text("hello")
    (project / "assets" / ".gitignore").write_text("*.log\n")
    (project / "assets" / "noise.log").write_text("noise")
    (project / "one.csv").write_text("1,2")
    write(project, tenth="from pathlib import Path\nHERE = Path(__file__).parent\n")
    monkeypatch.chdir(project)
    with pytest.raises(CellError) as caught:
        told(pool, "import tenth\n(tenth.HERE / 'one.csv').read_text()")
    shown = "\n".join(caught.value._render_traceback_())
    assert "one.csv is not among the code that was sent; `%%sky --include one.csv` sends it too" in shown
    pool.include(["assets", "one.csv"])
    look = (
        "import tenth\nsorted(p.name for end in ('csv', 'txt', 'log') for p in tenth.HERE.glob(f'assets/**/*.{end}'))"
    )
    values, _ = told(pool, look)
    assert values == [["words.txt"]] * 2
    (project / "one.csv").write_text("3,4,5")
    values, news = told(
        pool, "import sky_jupyter as sky\n((tenth.HERE / 'one.csv').read_text(), sky.included('one.csv').read_text())"
    )
    assert values == [("3,4,5", "3,4,5")] * 2
    assert news == ["one.csv changed: sent again"]
    with pytest.raises(SpecError, match=r"missing\.csv is not there"):
        sky.Compute(include=["missing.csv"])
    with pytest.raises(SpecError, match=r"missing\.csv is not there"):
        pool.include(["missing.csv"])


def test_what_is_too_large_is_refused_with_its_largest_entries(
    pool: Pool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "heavy" / "raw").mkdir(parents=True)
    with open(project / "heavy" / "raw" / "a.bin", "wb") as file:
        file.truncate(file_selection.LIMIT)
    (project / "heavy" / "small.txt").write_text("x")
    monkeypatch.setattr(pool.code.local, "_included", {})
    pool.include([str(project / "heavy")])
    with pytest.raises(CaptureError) as caught:
        run(pool, "1")
    assert "heavy is 100 MB in 2 files" in str(caught.value)
    assert "raw/a.bin 100.0 MB" in str(caught.value)


def test_processes_that_a_cell_starts_find_the_code(pool: Pool, project: Path) -> None:
    write(project, eleventh="print('eleventh', end='')\n")
    code = "import eleventh, subprocess, sys\nsubprocess.check_output([sys.executable, '-m', 'eleventh'], text=True)"
    assert told(pool, code)[0] == ["eleventh"] * 2
