"""What all tests share: a registry of their own, and a look at what is left when a file is done.

Every process of a pool inherits ``SKY_TEST`` from the process that made the pool, so that what the
tests of one worker left behind can be told from everything else on the machine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

from sky_jupyter.pool.registry.folder_removal import places
from tests.took import Took

if TYPE_CHECKING:
    from tests.hosts.world import World

pytest_plugins = ["tests.fresh", "tests.left_out", "tests.longest_first"]

MARK = "SKY_TEST"
PATIENCE = 60.0
TOLD: set[int] = set()
POOL_FOLDER = re.compile(r"sky-[0-9a-f]{8}-\w{8}\Z")


# Nothing of what is collected is garbage, and looking for it takes a third of the time.
gc.disable()

# The same examples each day: a failure then comes from a change. HYPOTHESIS_PROFILE=random draws others. On a busy
# machine any example may take long.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
# A shell script's `&` and nohup leave it ignored, and children inherit that: tests of interrupts would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def marked_processes(mark: str) -> list[psutil.Process]:
    """Processes of pools and links, running or not yet collected, that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            ours = "sky_jupyter.node.host" in command or "sky_jupyter.machines.link" in command
            if ours and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def pool_folders(pool: str) -> list[Path]:
    """Folders of a pool that still exist, in any place where pools keep them."""
    return [path for place in places() for path in place.glob(f"sky-{pool}-*")]


def orphaned_folders(since: float, base: Path) -> list[Path]:
    """Folders of pools that are younger than this and of which no process is, where a registry below ``base`` has them.

    Others use the machine's temporary folders too; the tests of one worker have their registries in its own.
    """
    found = []
    for place in (*places(), *{file.parent for file in base.rglob("*.sqlite")}):
        for path in place.glob("sky-*-*"):
            with contextlib.suppress(OSError):
                if POOL_FOLDER.match(path.name) and path.stat().st_ctime >= since:
                    found.append(path)
    if not found:
        return []
    held = "\n".join(" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
    found = [path for path in found if f"/{path.name.rsplit('-', 1)[0]}-" not in held]
    known = b"".join(file.read_bytes() for file in base.rglob("*.sqlite*") if file.is_file()) if found else b""
    return [path for path in found if path.name.split("-")[1].encode() in known]


def pytest_collection_finish() -> None:
    """What is collected stays to the end: the collector need not go through it again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests do not write into the user's registry, and mark what they start."""
    os.environ["SKY_REGISTRY"] = str(tmp_path_factory.mktemp("registry") / "registry.sqlite")
    os.environ[MARK] = uuid.uuid4().hex
    # Else torch keeps what it compiles in the machine's temporary folder, for good.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every file of tests ends its pools: no process and no folder is there for long after its last test."""
    begun, base = time.time(), tmp_path_factory.getbasetemp()
    yield
    end = time.monotonic() + PATIENCE
    while left := [one for one in marked_processes(os.environ[MARK]) if one.pid not in TOLD]:
        if time.monotonic() > end:
            # Of what one file left the next ones are not told.
            TOLD.update(one.pid for one in left)
            pytest.fail(f"processes are left: {[(one.pid, one.status(), one.cmdline()) for one in left]}")
        time.sleep(0.05)
    while folders := orphaned_folders(begun, base):
        if time.monotonic() > end:
            pytest.fail(f"folders are left: {[(str(path), sorted(map(str, path.rglob('*')))) for path in folders]}")
        time.sleep(0.5)


@pytest.fixture(scope="module")
def separate_agents() -> Iterator[None]:
    """Give each local node a process for its agent, as nodes on several machines have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKY_RANKS_PER_AGENT", "1")
        yield


@pytest.fixture
def took(request: pytest.FixtureRequest) -> Took:
    """Where a test tells how long what it did took."""
    return Took(request.node.nodeid.split("[")[0])


@pytest.fixture
def config(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's SSH configuration, with all hosts in it, where a module's `world` has made them."""
    path = world.ssh_config(tmp_path / "config")
    monkeypatch.setenv("SKY_SSH_CONFIG", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return path
