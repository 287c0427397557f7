"""Packages that come from one index only: uv is really asked, and the index is really served, behind a password."""

from __future__ import annotations

import base64
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
import uv

import sky_jupyter as sky
from sky_jupyter.bootstrap import package_indexes, package_sync, wheels
from sky_jupyter.bootstrap.local_environment import ensure
from sky_jupyter.bootstrap.uv import run_uv
from sky_jupyter.errors import BootstrapError
from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.bootstrap.wheels import make_wheel

LOGIN = "me:s%40cret"
ALLOWED = "Basic " + base64.b64encode(b"me:s@cret").decode()


@dataclass
class Index:
    """A package index that serves a folder's wheels to who knows the password."""

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The one place beside a folder where uv finds packages."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    usual = tmp_path / "usual"
    usual.mkdir()
    # What everybody's index has; nothing is fetched from outside.
    monkeypatch.setenv("UV_DEFAULT_INDEX", usual.as_uri())
    monkeypatch.setenv("UV_FIND_LINKS", str(usual))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    folder = tmp_path / "private"
    folder.mkdir()
    found = Index(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, name = self.path.strip("/").split("/")[:2]
            if self.headers.get("Authorization") != ALLOWED:
                self.answer(401, b"")
                return
            found.asked.append(f"{kind}/{name}")
            files = sorted(path.name for path in folder.glob("*.whl"))
            if kind == "files":
                self.answer(200, (folder / name).read_bytes())
                return
            chosen = [file for file in files if file.startswith(name.replace("-", "_") + "-")]
            links = "".join(f'<a href="/files/{file}">{file}</a>' for file in chosen)
            self.answer(200 if chosen else 404, links.encode())

        do_HEAD = do_GET

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if "/simple/" in self.path else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://{LOGIN}@127.0.0.1:{server.server_port}/simple"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_a_named_package_comes_from_its_index_whoever_needs_it(index: Index, tmp_path: Path) -> None:
    make_wheel(index.folder, "sky_app", requires=["sky_core", "sky_open"])
    make_wheel(index.folder, "sky_core", "1.0")
    make_wheel(index.folder, "sky_open", "6.6")
    # Somebody has put a newer one of the same name where everybody looks.
    make_wheel(tmp_path / "usual", "sky_core", "9.9")
    make_wheel(tmp_path / "usual", "sky_open", "3.0")
    image = sky.Image(pip=["sky_app"], pip_indexes=[sky.PipIndex(index.url, packages=["sky-app", "sky-core"])])
    found = ensure(image, cache=tmp_path / "environments")
    code = "import sky_app, sky_core, sky_open; print(sky_core.VERSION, sky_open.VERSION)"
    said = subprocess.run([found.python, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout
    assert said.split() == ["1.0", "3.0"]
    assert not [path for path in index.asked if "open" in path], "what it does not name is not asked of it"
    assert found.path is not None
    written = [path for path in found.path.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    assert not [path for path in written if any(word in path.read_bytes() for word in (b"s@cret", b"s%40cret"))]


def test_an_index_without_names_is_one_more_for_all(index: Index, tmp_path: Path) -> None:
    make_wheel(index.folder, "sky_more", "2.0")
    image = sky.Image(pip=["sky_more"], pip_indexes=[sky.PipIndex(index.url)])
    found = ensure(image, cache=tmp_path / "environments")
    subprocess.run([found.python, "-c", "import sky_more"], check=True, cwd="/")


def test_what_goes_to_hosts_is_resolved_and_fetched_from_there(index: Index, tmp_path: Path) -> None:
    make_wheel(index.folder, "sky_app", "1.5")
    make_wheel(tmp_path / "usual", "sky_app", "9.9")
    image = sky.Image(pip=["sky_app"], pip_indexes=[sky.PipIndex(index.url, packages=["sky_app"])])
    target = wheels.TargetPlatform(".".join(platform.python_version_tuple()[:2]), "x86_64-manylinux_2_28")
    lock = wheels.resolve(package_indexes.wanted(image), target, image=image)
    assert lock == ["sky-app==1.5"]
    gathered = wheels.gather(lock, target, tmp_path / "wheels", image=image)
    assert [wheel.path.name for wheel in gathered] == ["sky_app-1.5-py3-none-any.whl"]


@pytest.mark.parametrize("offline", [False, True])
def test_what_is_added_to_a_live_pools_hosts_comes_from_there(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    make_wheel(index.folder, "sky_core", "1.0")
    make_wheel(index.folder, "sky_core", "1.5")
    make_wheel(index.folder, "sky_own", "2.0")
    make_wheel(tmp_path / "usual", "sky_app", "3.0", requires=["sky_core"])
    make_wheel(tmp_path / "usual", "sky_core", "9.9")
    # This machine stands for a host, with a home of its own.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / ".cache" / "sky_jupyter" / "bin" / f"uv-{version('uv')}"
    program.parent.mkdir(parents=True)
    program.symlink_to(uv.find_uv_bin())
    venv, folder = tmp_path / "venv", tmp_path / "pool" / "more"
    run_uv(["venv", "--python", sys.executable, str(venv)], phase="test", on_line=lambda line: None)
    usual = {name: os.environ[name] for name in ("UV_DEFAULT_INDEX", "UV_FIND_LINKS")}
    indexes = [sky.PipIndex(index.url), sky.PipIndex(index.url, packages=["sky-core"])]
    spec = PoolSpec(provider=sky.SSH("host"), image=sky.Image(pip_indexes=indexes, env=usual))
    machine, places = LocalMachine(), [(f"{venv}/bin/python", str(folder))]
    addition = package_sync.Addition([machine], spec, places, offline=offline, stop=threading.Event())
    told: list[str] = []
    there = {"sky-core": "1.0"}
    assert addition.add(["sky-app", "sky-core>1.0", "sky-own"], there, told.append) == [
        "sky-app==3.0",
        "sky-core==1.5",
        "sky-own==2.0",
    ]
    assert {path.name for path in folder.glob("sky_*.dist-info")} == {
        "sky_app-3.0.dist-info",
        "sky_core-1.5.dist-info",
        "sky_own-2.0.dist-info",
    }
    addition.install(["sky-core==1.0"], told.append)
    assert "1.0" in (folder / "sky_core" / "__init__.py").read_text()
    assert not [line for line in told if "s@cret" in line or "s%40cret" in line]


def test_the_password_is_on_no_command_line_and_in_no_error(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    shown: list[str] = []
    real = subprocess.Popen

    def seen(*arguments: object, **options: object) -> object:
        shown.append(repr(arguments))
        return real(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("sky_jupyter.bootstrap.uv.subprocess.Popen", seen)
    image = sky.Image(pip=["sky_absent"], pip_indexes=[sky.PipIndex(index.url, packages=["sky_absent"])])
    with pytest.raises(BootstrapError) as caught:
        ensure(image, cache=tmp_path / "environments", on_line=lines.append)
    assert shown
    told = [*shown, *lines, str(caught.value), *(" ".join(psutil.Process().cmdline()),)]
    assert not [text for text in told if "s@cret" in text or "s%40cret" in text]
