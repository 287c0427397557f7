"""uv's own Pythons, for hosts that have none that fits and can fetch none.

They run wherever they are put, on any Linux of their architecture.
"""

from __future__ import annotations

import re
import tarfile
import threading
from dataclasses import dataclass
from pathlib import Path

from ..errors import BootstrapError
from ..util.atomic_write import atomic_write
from .uv import OnLine, run_uv

PHASE = "python"
_NAME = re.compile(r"cpython-(?P<version>3\.(?P<minor>\d+)\.(?P<micro>\d+))-linux-(?P<machine>\w+?)-gnu\Z")


@dataclass(frozen=True)
class Standalone:
    """Python of uv's own: its folder, and the folder's name, which identifies it."""

    folder: Path

    @property
    def name(self) -> str:
        """Name of the folder, here and on hosts."""
        return self.folder.name

    @property
    def version(self) -> str:
        """Full version."""
        return self.name.split("-")[1]

    @property
    def program(self) -> str:
        """Path of the interpreter within the folder."""
        return f"bin/python{self.version.rpartition('.')[0]}"


def standalone(version: str, machine: str, *, on_line: OnLine, stop: threading.Event | None = None) -> Standalone:
    """Return a Python for Linux on an architecture; fetch it if it is not here.

    ``version`` is a minor or full version, ``machine`` the architecture as ``uname -m`` prints it. Raise BootstrapError
    if uv cannot fetch it.
    """
    place = Path(run_uv(["python", "dir"], phase=PHASE, on_line=lambda line: None, stop=stop)[-1])
    found = _found(place, version, machine)
    if found is None:
        on_line(f"fetching Python {version} for the hosts")
        request = f"cpython-{version}-linux-{machine}-gnu"
        # One attempt: without a network here, a retry would only delay the error.
        install = ["python", "install", "--no-bin", request]
        run_uv(install, phase=PHASE, on_line=on_line, stop=stop, env={"UV_HTTP_RETRIES": "0"})
        found = _found(place, version, machine)
    if found is None:
        raise BootstrapError(PHASE, f"uv has put no Python {version} into {place}")
    return found


def _found(place: Path, version: str, machine: str) -> Standalone | None:
    """Return the newest Python in a folder that fits; None without one."""
    fitting = []
    for folder in place.glob("cpython-*"):
        match = _NAME.match(folder.name)
        if not match or match["machine"] != machine or not f"{match['version']}.".startswith(f"{version}."):
            continue
        if (folder / Standalone(folder).program).is_file():
            fitting.append((int(match["micro"]), folder))
    return Standalone(max(fitting)[1]) if fitting else None


def archive(python: Standalone, cache: Path) -> Path:
    """Return a Python's files as one archive; make it once."""
    path = cache / f"{python.name}.tar.gz"
    if path.is_file():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as packed:
        packed.add(python.folder, arcname=".", filter=_wanted)
    return path


def _wanted(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(item.name).parts
    # Python's own tests are a third of it.
    return None if "__pycache__" in parts or (len(parts) > 2 and parts[2] == "test") else item
