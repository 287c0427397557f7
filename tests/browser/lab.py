"""A real JupyterLab or Notebook 7 in a folder of its own, and a real browser to look at it.

`server` starts a Jupyter server that knows nothing of the user's settings; `browser` starts
Chromium, and `kept_browser` one that has the caches of those before it; `Page` opens a notebook
in one and asks it things. All end with their `with` block.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat

import sky_jupyter
from tests.ports import free_port

# Our own half in JupyterLab, as it is built.
EXTENSION = Path(sky_jupyter.__file__).parent / "labextension"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE = 60.0
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Autosaving in the middle of a test would race with what the test itself saves.
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
_QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
# Playwright hides scrollbars, which people see.
_SHOWN = ["--hide-scrollbars"]
# What a page may leave in its browser, but for caches of what it has fetched and compiled.
_LEFT_BY_PAGES = "cookies,local_storage,indexeddb,cache_storage,service_workers,file_systems"
# Milliseconds between two looks: each has the page lay out and tell all of its text.
_POLL = 300
# Asks the kernel on its control channel, as docs/actions.md has it; gives the answer, and how many ms it took.
_ASK = """async content => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const header = {
        msg_id: crypto.randomUUID(), msg_type: "sky_request", session: kernel.clientId, username: "", version: "5.3",
        date: new Date().toISOString(),
    };
    const message = { channel: "control", header, parent_header: {}, metadata: {}, content, buffers: [] };
    const began = performance.now();
    const reply = await kernel.sendControlMessage(message, true, true).done;
    return [reply.content, performance.now() - began];
}"""


def missing(*, front: bool = False) -> str:
    """What has to be there before a browser test can run, with our own front end or without; empty where nothing is."""
    packages = [name for name in ("jupyterlab", "playwright") if importlib.util.find_spec(name) is None]
    lacks = [f"the Python package {name}" for name in packages]
    if executable() is None:
        lacks.append("Chromium (Debian: apt-get install chromium fonts-dejavu)")
    if front and not EXTENSION.is_dir():
        lacks.append("the front end (`python3 dev.py front` says what keeps it from being built)")
    return " and ".join(lacks)


def executable() -> str | None:
    """The browser's path: ``CHROMIUM`` where it is set, else the first that is installed."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)


class Server:
    """A running Jupyter server; `root` is where its notebooks lie."""

    def __init__(self, process: subprocess.Popen[bytes], root: Path, url: str, token: str) -> None:
        self.process, self.root, self.url, self.token = process, root, url, token

    def address(self, path: str, *, app: str = "lab") -> str:
        """Where a notebook is shown: by JupyterLab in a fresh workspace, or by Notebook 7."""
        place = f"lab/workspaces/w{time.monotonic_ns()}/tree" if app == "lab" else "notebooks"
        return f"{self.url}{place}/{path}?token={self.token}"


@contextlib.contextmanager
def server(folder: Path, *, dark: bool = False, extensions: Path | None = None) -> Iterator[Server]:
    """Start JupyterLab, with Notebook 7 beside it where that is installed, and all of its files in ``folder``.

    It has the labextensions of the folder ``extensions``, or none.
    """
    root, runtime, settings = folder / "root", folder / "runtime", folder / "settings"
    for path in (root, runtime, settings):
        path.mkdir(parents=True, exist_ok=True)
    # Each page would have the server run yarn, to say whether JupyterLab should be built.
    page = folder / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(json.dumps({"buildCheck": False, "buildAvailable": False}))
    theme = {"theme": f"JupyterLab {'Dark' if dark else 'Light'}"}
    for name, values in {**_SETTINGS, "@jupyterlab/apputils-extension/themes": theme}.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "SKY_REGISTRY": str(folder / "registry.sqlite"),
    }
    environment.pop("JUPYTER_TOKEN", None)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
    command += ["--ip=127.0.0.1", f"--port={_port()}", f"--ServerApp.root_dir={root}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    # Only what comes with Jupyter itself: other people's extensions have dialogs of their own.
    known = f"labextensions_path={extensions or folder / 'extensions'}"
    command += [f"--LabApp.{known}", f"--JupyterNotebookApp.{known}", "--JupyterNotebookApp.expose_app_in_browser=True"]
    # A language server that happens to be installed would be started, and has dialogs, too.
    command += ["--LanguageServerManager.autodetect=False"]
    # Containers run tests as root, which the server refuses unless it is told.
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        facts = _facts(process, runtime, folder / "server.log")
        yield Server(process, root, facts["url"], facts["token"])
    finally:
        # The first asks for an orderly end, in which the server ends its kernels.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
                break


@functools.cache
def _port() -> int:
    """The port of one server after another: what a browser has cached of a page is found again at the same address.

    A server whose port is taken, as by another one, takes one of the next by itself.
    """
    return free_port()


def _facts(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> dict[str, Any]:
    """What the server says of itself, once it listens."""
    path = runtime / f"jpserver-{process.pid}.json"
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())
        time.sleep(0.05)
    raise RuntimeError(f"the Jupyter server did not start:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def server_with_book(folder: Path, cells: Sequence[str]) -> Iterator[Server]:
    """A JupyterLab with our extension, and a notebook ``book.ipynb`` of these cells."""
    extensions = folder / "labextensions"
    extensions.mkdir()
    (extensions / "sky-jupyter").symlink_to(EXTENSION)
    with server(folder, extensions=extensions) as made:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, made.root / "book.ipynb")
        yield made


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium; gives Playwright's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable(), args=list(_QUIET), ignore_default_args=_SHOWN
        )
        try:
            yield chromium
        finally:
            chromium.close()


class Chromium:
    """Chromium with a profile that outlives it, whose caches save a quarter of a page's processor time."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept
        # While it has a page, the browser stays: this is the one that it began with.
        self._first = kept.pages[0]

    def new_page(self, **options: Any) -> Any:
        """Open a page that shares nothing with others, as `Browser.new_page` of Playwright does."""
        return self._kept.browser.new_page(**options)

    def open(self, address: str, *, width: int, height: int, scale: float) -> Any:
        """Open a page for an address, which shares nothing but caches with those before it and nothing with others."""
        viewport = {"width": width, "height": height}
        if scale != 1 or self._kept.pages != [self._first]:
            return self.new_page(viewport=viewport, device_scale_factor=scale)
        self._kept.clear_cookies()
        self._kept.clear_permissions()
        page = self._kept.new_page()
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(address))
        devtools = self._kept.new_cdp_session(page)
        devtools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": _LEFT_BY_PAGES})
        devtools.detach()
        page.set_viewport_size(viewport)
        return page


@contextlib.contextmanager
def kept_browser(profile: Path) -> Iterator[Chromium]:
    """Start Chromium with the profile of the folder ``profile``, which no other one has meanwhile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        kept = playwright.chromium.launch_persistent_context(
            profile, executable_path=executable(), args=list(_QUIET), ignore_default_args=_SHOWN
        )
        try:
            yield Chromium(kept)
        finally:
            kept.close()


class Page:
    """A notebook as a person sees it; `log` holds what the page wrote on its console."""

    def __init__(self, chromium: Any, address: str, *, width: int = 1000, height: int = 900, scale: float = 1) -> None:
        if isinstance(chromium, Chromium):
            self.page = chromium.open(address, width=width, height=height, scale=scale)
        else:
            self.page = chromium.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
        # On a busy machine a click waits long until what it is for stands still.
        self.page.set_default_timeout(_PATIENCE * 1000)
        self.log: list[tuple[str, str]] = []
        self.page.on("console", lambda message: self.log.append((message.type, message.text)))
        self.page.on("pageerror", lambda error: self.log.append(("error", str(error))))
        self.page.goto(address)

    def wait_until_ready(self) -> None:
        """Wait until the notebook has a kernel that waits for work."""
        self.page.wait_for_function(
            """() => {
                const panel = window.jupyterapp?.shell.currentWidget;
                const session = panel?.sessionContext;
                return session?.isReady && session.session?.kernel?.status === "idle";
            }""",
            timeout=_PATIENCE * 1000,
        )

    def command(self, name: str) -> None:
        """Run one of the front end's commands, without waiting for its end."""
        self.page.evaluate("name => { void window.jupyterapp.commands.execute(name); }", name)

    def save(self) -> None:
        """Save the notebook, and wait until its file is written: of a page that closes meanwhile it may be empty."""
        self.page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")

    def ask(self, content: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Ask the kernel while its cell runs: its answer, and the milliseconds that it took."""
        answer, took = self.page.evaluate(_ASK, content)
        return answer, took

    def picture(self, name: str, node: Any = None) -> None:
        """Keep what is seen, of all the page or of a part, in the folder that ``SKY_SCREENSHOTS`` names, if any."""
        if not (folder := os.environ.get("SKY_SCREENSHOTS")):
            return
        path = Path(folder, f"{name}.png")
        (node or self.page).screenshot(path=path, animations="disabled", caret="hide")
        with contextlib.suppress(ImportError):
            from PIL import Image

            # Pages have few colours: with a palette the picture has a third of the size.
            Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)

    def choose_theme(self, name: str) -> None:
        """Go on in the theme ``"Dark"`` or ``"Light"``."""
        change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
        self.page.evaluate(change, f"JupyterLab {name}")
        light = "light => document.body.dataset.jpThemeLight === light"
        self.page.wait_for_function(light, arg=str(name == "Light").lower(), timeout=_PATIENCE * 1000)

    def outputs(self, cell: int) -> str:
        """The text of a cell's outputs, as it is seen now; cells count from 0."""
        area = self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-Cell-outputArea")
        # The text of what is not drawn yet (a front end that still starts hides it) comes without its lines.
        area.wait_for(state="visible")
        return str(area.inner_text())

    def wait_until(self, condition: Callable[[], bool], *, timeout: float = 90.0) -> None:
        """Wait for something outside of the page."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"nothing came of it within {timeout:g} s"
            self.page.wait_for_timeout(_POLL)

    def wait_for(self, cell: int, text: str, *, timeout: float = 90.0) -> str:
        """Wait until a cell's outputs hold ``text``; returns them."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with contextlib.suppress(Exception):
                seen = self.outputs(cell)
                if text in seen:
                    return seen
            self.page.wait_for_timeout(_POLL)
        raise AssertionError(f"cell {cell} does not show {text!r} after {timeout:g} s, but:\n{self.outputs(cell)}")
