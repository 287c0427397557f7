"""Which modules are the user's own, and what code imports."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sky_jupyter.capture.import_graph import LocalModules, imports_of, imports_of_code
from sky_jupyter.capture.project_files import LocalCode


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b as c, d", {"a.b", "d"}),
        ("from a.b import c as e, f", {"a.b", "a.b.c", "a.b.f"}),
        ("from a import *", {"a"}),
        ("def f():\n    if x:\n        import a\n    class C:\n        from b import c", {"a", "b", "b.c"}),
        (
            "from . import a\nfrom ..b import c\nfrom .d.e import f",
            {"p.q", "p.q.a", "p.b", "p.b.c", "p.q.d.e", "p.q.d.e.f"},
        ),
        ("from .... import a", set()),
        ("import importlib\nimportlib.import_module('a.b')", {"importlib", "a.b"}),
        ("importlib.import_module('.a', 'p.r'); __import__('b')", {"p.r.a", "b"}),
        ("get_ipython().run_cell_magic('time', '', 'import a\\n')", {"a"}),
        ("get_ipython().run_line_magic('timeit', 'from a import b')", {"a", "a.b"}),
        ("exec('import a')", {"a"}),
        ("this is no Python", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, names: set[str]) -> None:
    assert imports_of(source, "p.q").names == names


def test_compiled_code_tells_the_same() -> None:
    source = "import a.b\ndef f():\n    from c import d, e\n    class K:\n        import g as h"
    names = imports_of_code(compile(source, "x", "exec")).names
    assert names == {"a.b", "c", "c.d", "c.e", "g"} == imports_of(source).names


def test_what_is_installed_or_of_python_is_not_local(project: Path) -> None:
    (project / "lib" / "site-packages").mkdir(parents=True)
    found = LocalModules().closure({"json", "numpy.linalg", "sys", "pytest", "sky_jupyter.api", "__main__", "absent"})
    assert found.modules == {}
    assert found.others == {"numpy.linalg", "pytest", "absent"}


def test_modules_come_after_those_that_they_use_even_in_a_circle(project: Path) -> None:
    write(project, {"mo_a.py": "import mo_b", "mo_b.py": "import mo_c", "mo_c.py": "import mo_a, mo_d, json, numpy"})
    write(project, {"mo_d.py": "", "mo_e.py": ""})
    found = LocalModules().closure({"mo_a"})
    order = list(found.modules)
    assert sorted(order) == ["mo_a", "mo_b", "mo_c", "mo_d"]
    assert order.index("mo_d") < order.index("mo_c") < order.index("mo_b") < order.index("mo_a")
    assert found.uses["mo_c"] == {"mo_a", "mo_d"}
    assert found.others == {"numpy"}
    assert not [name for name in sys.modules if name.startswith("mo_")]


def test_of_a_package_its_submodules_are_told_from_its_names(project: Path) -> None:
    write(project, {"pa/__init__.py": "from .x import X", "pa/x.py": "X = 1", "pa/y.py": "from . import x, X"})
    uses = LocalModules().closure({"pa.y"}).uses
    assert uses == {"pa": {"pa.x"}, "pa.x": frozenset(), "pa.y": {"pa", "pa.x"}}


def test_a_module_is_found_though_the_notebook_has_gone_elsewhere(project: Path, tmp_path: Path) -> None:
    write(project, {"gone_elsewhere.py": ""})
    modules = LocalModules()
    assert "gone_elsewhere" in modules.closure({"gone_elsewhere"}).modules
    sys.path.remove(str(tmp_path))
    assert "gone_elsewhere" in modules.closure({"gone_elsewhere"}).modules
    (tmp_path / "gone_elsewhere.py").unlink()
    assert "gone_elsewhere" not in modules.closure({"gone_elsewhere"}).modules


def test_a_module_is_found_while_other_threads_look_for_new_files_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"looked_for.py": ""})
    invalidate = importlib.invalidate_caches

    def deleted_by_another_thread() -> None:
        monkeypatch.setattr(importlib, "invalidate_caches", invalidate)
        raise KeyError("python311.zip")

    monkeypatch.setattr(importlib, "invalidate_caches", deleted_by_another_thread)
    assert "looked_for" in LocalModules().closure({"looked_for"}).modules


def test_an_editable_install_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"src/edited/__init__.py": "", "src/edited/core.py": ""})

    class Finder:
        """As setuptools puts it on the path of finders."""

        @classmethod
        def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
            from importlib.util import spec_from_file_location

            file = tmp_path / "src" / "edited" / "__init__.py"
            return spec_from_file_location(name, file) if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    code = LocalCode().look({"edited.core"})
    assert sorted(code.sources) == ["edited/__init__.py", "edited/core.py"]


def test_a_module_that_git_ignores_is_sent_where_it_is_imported(project: Path) -> None:
    write(project, {".git/x": "", ".gitignore": "_version.py\nsecret.txt\n"})
    write(project, {"vp/__init__.py": "from ._version import V", "vp/_version.py": "V = 1", "vp/secret.txt": ""})
    assert sorted(LocalCode().look({"vp"}).sources) == ["vp/__init__.py", "vp/_version.py"]


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    imports_of(text)
