"""The homes of a host where a plain pool has been: its environment is there, made by the product itself.

Tests of what comes after the bootstrap begin with it, and so spare themselves the minute of several
that each world's first pool would take. It holds nothing that such a host would not have: where the
product would now make another environment, it does not find the old one, and makes it.

    python -m tests.hosts.warm FOLDER
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import sky_jupyter as sky
from sky_jupyter import bootstrap
from sky_jupyter.bootstrap import local_environment, remote_environment
from sky_jupyter.providers.base import ConnectionSession
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts import images

ROOT = Path(__file__).resolve().parents[2]
# One that nothing has used for so long was made by code that is gone.
_OLD = 3 * 86400


@functools.cache
def home() -> Path:
    """The folder of such homes, which nobody may write to; made now if it is not there."""
    base = images.image(python=True)
    place = images.made(base.with_name(f"{base.name}-home-{_recipe()}"), _make)
    os.utime(place)
    for other in base.parent.glob("*-home-*"):
        if other.is_dir() and time.time() - other.stat().st_mtime > _OLD:
            shutil.rmtree(other, ignore_errors=True)
    return place


def _recipe() -> str:
    """A short hash of what makes it: a change to that recreates it."""
    sources = sorted(Path(bootstrap.__path__[0]).glob("*.py"))
    facts = [*(path.read_text() for path in sources), Path(__file__).read_text()]
    facts += [sys.version, *local_environment.pinned(), *remote_environment._NEEDS]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]


def _make(place: Path) -> None:
    command = [sys.executable, "-m", "tests.hosts.warm", str(place)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    # (It holds the lock of `images.made` as well.)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, close_fds=False)
    if done.returncode:
        raise images.ImageError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")


def main(place: Path) -> None:
    """Prepare a host as for a pool, and keep what that left in its user's home."""
    from tests.hosts.world import hosts

    with hosts(1, python=True) as world:
        os.environ["SKY_SSH_CONFIG"] = str(world.ssh_config())
        os.environ.pop("SSH_AUTH_SOCK", None)
        provider = sky.SSH([world[0].name], offline=True)
        machines = provider.connect(provider.hosts, ConnectionSession())
        preparation = remote_environment.HostPreparation(
            machines, PoolSpec(provider=provider, nodes=1), offline=True, stop=threading.Event()
        )
        for name, _, work in preparation.phases:
            # The package's own code is sent by every pool that finds another there.
            if name != "files":
                work(print)
        for machine in machines:
            machine.close()
        kept = place / world[0].user
        kept.mkdir(parents=True)
        subprocess.run(["cp", "-a", f"/proc/{world[0].pid}/root/home/{world[0].user}/.cache", str(kept)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
