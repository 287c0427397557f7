"""The front end is known by what each documents, and gets what it can draw."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import IPython
import pytest

from sky_jupyter.display.base import frontends


@pytest.fixture
def kernel(monkeypatch) -> SimpleNamespace:
    """The shell of a kernel, in an environment that says nothing of a front end."""
    for name in ("VSCODE_PID", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    shell = SimpleNamespace(kernel=object(), user_ns={})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    return shell


def colab(monkeypatch) -> list[str]:
    """Have Colab's package be there; what is asked of it."""
    asked: list[str] = []
    package = ModuleType("google.colab")
    package.output = SimpleNamespace(enable_custom_widget_manager=lambda: asked.append("widgets"))
    monkeypatch.setitem(sys.modules, "google.colab", package)
    return asked


def test_a_kernel_that_nothing_else_is_known_of_is_jupyters(kernel):
    assert frontends.front_end() == "jupyter"
    bundle = {"application/vnd.sky.run.v1+json": {}, "text/html": "", "text/plain": ""}
    assert frontends.drawable(bundle) == bundle
    assert frontends.takes_buffers()


def test_vs_code_is_known_by_its_name_in_the_namespace_or_by_its_own_kernel(kernel, monkeypatch):
    kernel.user_ns["__vsc_ipynb_file__"] = "/tmp/a.ipynb"
    assert frontends.front_end() == "vscode"
    kernel.user_ns.clear()
    monkeypatch.setenv("VSCODE_PID", "1")
    assert frontends.front_end() == "vscode"
    # JupyterLab, whose server was started in a terminal of VS Code.
    monkeypatch.setenv("JPY_SESSION_NAME", "/tmp/a.ipynb")
    assert frontends.front_end() == "jupyter"


def test_vs_code_and_colab_get_what_every_front_end_draws(kernel, monkeypatch):
    asked = colab(monkeypatch)
    assert frontends.front_end() == "colab"
    bundle = {"application/vnd.sky.run.v1+json": {}, "application/vnd.jupyter.widget-view+json": {}, "text/html": ""}
    assert set(frontends.drawable(bundle)) == {"application/vnd.jupyter.widget-view+json", "text/html"}
    assert not frontends.takes_buffers()
    frontends.allow_widgets()
    assert asked == ["widgets"]


def test_a_script_is_no_notebook_whatever_it_has_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: False))
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert frontends.front_end() == "none"
    assert not frontends.in_notebook()
