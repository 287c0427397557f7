"""An opened page runs nothing of what it shows: a stranger's notebook, and what marimo is told."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter
from tests.attacks import markup
from tests.browser import lab

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
    pytest.mark.skipif(importlib.util.find_spec("notebook") is None, reason="needs the Python package notebook"),
    pytest.mark.skipif(importlib.util.find_spec("nbclient") is None, reason="needs the Python package nbclient"),
]

PATIENCE = 120_000
WIDGET = Path(sky_jupyter.__file__).parent / "static" / "run.js"
# All outputs of all cells are on the page, however many.
WHOLE = {"maxNumberOutputs": 1000, "windowingMode": "none"}
DRAWN = """count => {
    const outputs = [...document.querySelectorAll(".jp-OutputArea-child")];
    const views = ".sky-run, .sky-live, .sky-as-text";
    return outputs.length === count && outputs.every(output => output.querySelector(views));
}"""
# Draws a run as marimo does, and gives what the page then has of it.
DRAW = """async snapshots => {
    const { default: widget } = await import("/run.js");
    const views = [];
    for (const snapshot of snapshots) {
        const el = document.createElement("div");
        document.body.append(el);
        const model = { get: () => snapshot, on: () => {}, off: () => {}, send: () => {} };
        await widget().render({ model, el });
        views.push(el.firstElementChild.className);
    }
    return views;
}"""
SHELL = '<!doctype html><meta charset="utf-8"><title>marimo</title><body></body>'


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = markup.record(tmp_path_factory.mktemp("record"))
    assert set(found) == set(markup.CELLS) - {"load", "end"}, found.keys()
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "labextensions").mkdir()
    (folder / "labextensions" / "sky-jupyter").symlink_to(lab.EXTENSION)
    settings = folder / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(WHOLE))
    with lab.server(folder, extensions=folder / "labextensions") as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with lab.browser() as browser:
        yield browser


# Of a tab that was opened for a picture: nothing that could run is in it.
ONLY_A_PICTURE = """() => {
    const [only, ...more] = document.querySelectorAll("body *");
    return only.tagName === "IMG" && /^data:image\\//.test(only.src) && !more.length && !document.scripts.length
        && [...only.attributes].every(({ name }) => !/^on/i.test(name));
}"""


class Watched:
    """What a page does that its person did not ask for."""

    def __init__(self, page: Any, home: str) -> None:
        self.wrong: list[str] = []
        # Tabs with a picture that its button has opened.
        self.tabs: list[Any] = []
        self._watch(page, home)

    def _watch(self, page: Any, home: str) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self._on_popup(popup, home))
        page.on("requestfinished", lambda request: self._on_request(request, home))
        page.on("requestfailed", lambda request: self._on_request(request, home))

    def _on_popup(self, popup: Any, home: str) -> None:
        if popup.url != "about:blank":
            self.wrong.append(f"popup: {popup.url}")
        self._watch(popup, home)
        self.tabs.append(popup)

    def _on_console(self, message: Any) -> None:
        if message.text == markup.MARK:
            self.wrong.append(f"a script ran: {message.location}")

    def _on_error(self, error: Any) -> None:
        # Notebook 7 has errors of its own as it starts.
        if re.search(r"sky-jupyter|run\.js", str(error.stack)):
            self.wrong.append(f"an error: {error.stack[:500]}")

    def _on_request(self, request: Any, home: str) -> None:
        # Pictures may be loaded, as in any notebook; what a policy of the page has stopped was not sent.
        if request.resource_type in ("image", "media") or request.failure == "csp":
            return
        if not request.url.startswith((home, "data:", "blob:", "about:")) or markup.MARK in request.url:
            self.wrong.append(f"a request ({request.resource_type}, {request.failure}): {request.url[:200]}")


def check(page: Any, watched: Watched, least: int) -> None:
    """Press all that there is, and see that nothing has run and nothing could."""
    assert page.evaluate(markup.PRESS) >= least
    page.wait_for_timeout(300)
    assert page.evaluate(markup.FOUND) == {"found": [], "polluted": None}
    for tab in watched.tabs:
        assert tab.evaluate(ONLY_A_PICTURE)
        tab.close()
    assert watched.wrong == []


def opened(chromium: Any, server: lab.Server, app: str, attacks: list[tuple[str, dict[str, Any]]]) -> None:
    """Open an untrusted notebook with these outputs, and see that nothing runs."""
    name = f"{app}-{len(list(server.root.iterdir()))}.ipynb"
    markup.notebook([output for _, output in attacks], server.root / name)
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    watched = Watched(page, re.sub(r"(://[^/]+/).*", r"\1", server.url))
    try:
        page.goto(server.address(name, app=app))
        page.wait_for_function(DRAWN, arg=len(attacks), timeout=PATIENCE)
        check(page, watched, len(attacks))
        assert page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.every(c => !c.model.trusted)")
    finally:
        page.close()


def drawn(chromium: Any, attacks: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Draw runs in a page that has marimo's copy and nothing else; what each was drawn as."""
    page = chromium.new_page()
    files = {"/": ("text/html", SHELL), "/run.js": ("text/javascript", WIDGET.read_text())}

    def answer(route: Any) -> None:
        kind, body = files.get("/" + route.request.url.split("/", 3)[3], ("text/plain", None))
        route.fulfill(status=200 if body else 404, content_type=kind, body=body or "")

    page.route("**/*", answer)
    watched = Watched(page, "http://marimo.invalid/")
    try:
        page.goto("http://marimo.invalid/")
        snapshots = [output["bundle"] for _, output in attacks]
        # What is no object is nothing yet to a widget.
        views: list[str] = page.evaluate(DRAW, snapshots)
        check(page, watched, len(snapshots))
    finally:
        page.close()
    return views


def few(outputs: Mapping[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Of each place the payload that has all in it, and each payload once in all places that take it."""
    return markup.attacks(outputs, {"everything": markup.EVERYTHING})


# As many pages as there are places for markup: minutes, where other tests run beside it.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.long)])
def test_a_strangers_notebook_runs_nothing(server, chromium, outputs, app):
    attacks = few(outputs)
    assert len(attacks) > 250
    opened(chromium, server, app, attacks)


# A button of each run opens a tab: a quarter of them, and what is asked for by name, is what a slow test has time for.
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_marimos_copy_runs_nothing(chromium, outputs, step):
    every = [attack for attack in few(outputs) if attack[1]["kind"] == markup.RUN]
    named = re.compile(r"rich (dressed: .*|ranks\.0\.rank: everything|version 2)")
    attacks = [attack for at, attack in enumerate(every) if at % step == 0 or named.fullmatch(attack[0])]
    views = drawn(chromium, attacks)
    shown = dict(zip([name for name, _ in attacks], views, strict=True))
    assert all(shown[f"rich dressed: {payload}"] == "sky-run" for payload in markup.PAYLOADS), shown
    assert shown["rich ranks.0.rank: everything"] == "sky-as-text"
    assert shown["rich version 2"] == "sky-as-text"


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("shape", [*markup.SHAPES, *markup.PAYLOADS])
@pytest.mark.parametrize("app", ["lab", "notebook", "marimo"])
def test_each_value_as_each_shape_runs_nothing(server, chromium, outputs, app, shape):
    value = markup.SHAPES.get(shape, markup.PAYLOADS.get(shape))
    attacks = markup.attacks(outputs, {shape: value})
    if app == "marimo":
        drawn(chromium, [attack for attack in attacks if attack[1]["kind"] == markup.RUN])
    else:
        opened(chromium, server, app, attacks)
