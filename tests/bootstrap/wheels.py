"""Makes the smallest wheels that installers accept, so that tests need no index and no network."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str = "1.0", requires: Sequence[str] = ()) -> Path:
    """Write a wheel of one module whose ``VERSION`` is its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata(name, version, requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(inner, text)
    return path


def make_sdist(folder: Path, name: str, version: str = "1.0") -> Path:
    """Write a source distribution that builds itself: its backend is in it, and needs nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = make_wheel(folder / "built", name, version)
    root = f"{name}-{version}"
    backend = (
        "import pathlib, shutil\n"
        "def build_wheel(folder, settings=None, metadata=None):\n"
        f"    return pathlib.Path(shutil.copy(pathlib.Path(__file__).parent / {wheel.name!r}, folder)).name\n"
    )
    project = (
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    files = {"backend.py": backend, "pyproject.toml": project, "PKG-INFO": metadata(name, version, ())}
    path = folder / f"{root}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        contents = {inner: text.encode() for inner, text in files.items()} | {wheel.name: wheel.read_bytes()}
        for inner, data in contents.items():
            info = tarfile.TarInfo(f"{root}/{inner}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_installed(folder: Path, name: str, version: str = "1.0", extra_lines: Sequence[str] = ()) -> None:
    """Write what an installer leaves of a distribution; put the folder on sys.path to have it installed."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    text = metadata(name, version, ()) + "".join(f"{line}\n" for line in extra_lines)
    (info / "METADATA").write_text(text, encoding="utf-8")


def metadata(name: str, version: str, requires: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {item}" for item in requires), ""])
