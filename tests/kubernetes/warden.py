"""Keeps a cluster's namespaces for as long as its owner's process lives, and removes what the kernel does not.

The owner is the run of tests, which several processes take part in: whoever comes first starts the warden, and it
ends when the run has ended, however that was. When it is itself killed, the namespaces go with it; the folder and
the control groups, which are all that is then left, go when the next cluster is started.

    python -m tests.kubernetes.warden OWNER_PID FOLDER PROGRAMS
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hosts import images

ROOT = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "sky-tests-"
_PATIENCE = 30.0
_OLD = 600.0


def runs() -> Path:
    """Where runs have their folders: on the disk of the cache, whose files they link to."""
    place = images.cache().parent / "kubernetes-runs"
    place.mkdir(exist_ok=True)
    return place


def sweep() -> None:
    """Remove what runs have left whose wardens were killed."""
    for lock in runs().glob("*.lock"):
        with lock.open("a") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.with_suffix(""))
            lock.unlink(missing_ok=True)
    for place in runs().iterdir():
        # One that has none was given up before its warden began.
        with contextlib.suppress(FileNotFoundError):
            if (
                place.is_dir()
                and not place.with_suffix(".lock").exists()
                and time.time() - place.stat().st_mtime > _OLD
            ):
                _remove(place)


def main(owner: str, folder: str, programs: str) -> None:
    place = Path(folder)
    with place.with_suffix(".lock").open("w") as lock, contextlib.suppress(KeyboardInterrupt):
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        watched = os.pidfd_open(int(owner))
        try:
            _watch(watched, place, programs)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _remove(place)
            place.with_suffix(".lock").unlink(missing_ok=True)


def _watch(owner: int, place: Path, programs: str) -> None:
    """Start the keeper, hand its first word on, and wait for its end or the owner's."""
    laptop = os.open("/proc/self/ns/net", os.O_RDONLY)
    # In its own control groups, and ended with the warden.
    join = 'for group; do echo $$ > "$group/cgroup.procs" || exit; shift; [ "$1" = -- ] && break; done; shift'
    command = [
        "sh",
        "-c",
        f'{join}; exec setpriv --pdeathsig KILL "$@"',
        "sh",
        *map(str, _make_groups(place.name)),
        "--",
    ]
    command += ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"]
    command += ["--mount-proc", sys.executable, "-m", "tests.kubernetes.keeper", str(place), programs, str(laptop)]
    with (place / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            pass_fds=[laptop],
            start_new_session=True,
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"},
        )
    assert keeper.stdout is not None
    ended = os.pidfd_open(keeper.pid)
    try:
        said = keeper.stdout.fileno()
        ready, _, _ = select.select([said, owner, ended], [], [])
        if owner in ready:
            return
        first = keeper.stdout.readline()
        sys.stdout.buffer.write(first or b'{"error": "the keeper ended, with nothing said"}\n')
        sys.stdout.flush()
        _let_go_of_output()
        if b'"error"' not in first:
            select.select([owner, ended], [], [])
    finally:
        keeper.kill()  # `unshare` takes its child with it, and that is the first process of the namespaces
        keeper.wait()


def _let_go_of_output() -> None:
    """The one who started the warden reads until its output is closed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def hierarchies() -> Iterator[Path]:
    """The roots of all hierarchies of control groups."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield Path(place)


def _make_groups(name: str) -> list[Path]:
    """A group of this name in each hierarchy: the root of all that the cluster makes there."""
    groups = [place / f"{PREFIX}{name}" for place in hierarchies()]
    for group in groups:
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((group.parent / file).read_text())
    return groups


def _remove(place: Path) -> None:
    for root in hierarchies():
        _remove_group(root / f"{PREFIX}{place.name}")
    shutil.rmtree(place, ignore_errors=True)


def _remove_group(group: Path) -> None:
    """Remove a group and all below it, once the last process there has been collected."""
    end = time.monotonic() + _PATIENCE
    while group.exists():
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > end:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # so that it is nobody's child
    main(*sys.argv[1:])
