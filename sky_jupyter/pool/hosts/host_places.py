"""Where a host process starts: its folders on this machine, and its variables."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import BootstrapError
from ...machines.link import socket_folder
from ...util.state_folder import registry_path
from ..registry.folder_removal import LINK

_SOCKET_PATH = 80
_SHARED_MEMORY = Path("/dev/shm")
# Variables of the notebook's process that must not reach a rank. (With the last one set, ipykernel does not capture
# the output of native code.)
_OWN = (
    "JPY_PARENT_PID",
    "JPY_SESSION_NAME",
    "JPY_INTERRUPT_EVENT",
    "COMPUTE_POOL",
    "PYTHONDONTWRITEBYTECODE",
    "PYTEST_CURRENT_TEST",
)


def node_environment(image_env: Mapping[str, str], secret: Iterable[str] = ()) -> dict[str, str]:
    """Return the nodes' variables: the notebook's and the image's.

    If this package is used from a checkout, PYTHONPATH leads nodes to it. ``secret`` names variables that plugins
    send to the ranks themselves: no process of the pool is started with them.
    """
    left_out = {*_OWN, *secret}
    env = {key: value for key, value in os.environ.items() if key not in left_out}
    root = Path(__file__).resolve().parents[3]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH", "")]))
    return {**env, **image_env}


def make_folders(pool: str, *, lasting: bool = False) -> tuple[Path, Path]:
    """Make the pool's folder and one for blobs; see `make_folder`."""
    folder = make_folder(pool, lasting=lasting)
    try:
        return folder, make_blobs(pool, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def make_folder(pool: str, *, lasting: bool = False) -> Path:
    """Make the pool's folder, with a short path.

    The folder of a ``lasting`` pool is beside the registry if sockets work there: a restart of this machine empties the
    usual places, and the keys with them.
    """
    parents = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp"]
    # (Neither Dask nor log lines can handle a path with a line break.)
    fit = [p for p in parents if p and len(p) < _SOCKET_PATH - 40 and p.isprintable()]
    usable = [Path(p) for p in fit if os.access(p, os.W_OK)]
    # (Its path is used from other working folders too.)
    if lasting and socket_folder.has_sockets(state := registry_path().parent.absolute(), f"sky-{pool}-", LINK):
        usable.insert(0, state)
    if not usable:
        raise BootstrapError("files", f"no writable folder with a short path among {parents}; set TMPDIR to one")
    return Path(tempfile.mkdtemp(prefix=f"sky-{pool}-", dir=usable[0]))


def make_blobs(pool: str, folder: Path) -> Path:
    """Make a pool's folder for blobs: in memory if possible, else in its own folder."""
    if sys.platform == "linux" and os.access(_SHARED_MEMORY, os.W_OK):
        return Path(tempfile.mkdtemp(prefix=f"sky-{pool}-", dir=_SHARED_MEMORY))
    blobs = folder / "blobs"
    blobs.mkdir(mode=0o700)
    return blobs
