"""Removal of caches that pools share, on hosts and here, if no pool uses them.

The cache folder is renamed, and checked again before it is removed: if a pool has come up in between, the folder gets
its name back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import psutil

from ..errors import MachineError, PoolError
from ..node.protocol.version import HOST_PROCESS
from .host_probe import CACHE
from .uv import LAST_LINES

if TYPE_CHECKING:
    from ..machines.base import Machine

_POOL = re.compile(r"/sky-([0-9a-f]{8})-")
_PATIENCE = 60.0
_REMOVAL = 600.0


def pools_on(machine: Machine) -> list[str]:
    """Return the ids of the user's pools that have a process on a host."""
    said = machine.run(f"{_look(everywhere=True)}; :", timeout=_PATIENCE).out.decode("utf-8", "replace")
    return list(dict.fromkeys(match[1] for line in said.splitlines() if (match := _POOL.search(line))))


def check_host(machine: Machine, names: Mapping[str, str]) -> None:
    """Raise PoolError if a pool or an installation uses what would be removed.

    ``names`` are the names of known pools, by id.
    """
    script = f'{_look()}; for l in {_CACHE_THERE}/environments/*.lock; do [ -e "$l" ] || continue; {_LOCKED}; done; :'
    _refuse(machine.name, machine.run(script, timeout=_PATIENCE).out.decode("utf-8", "replace"), names)


def clean_host(machine: Machine, names: Mapping[str, str]) -> int:
    """Remove environments, packages, uv, its Pythons and our code from a host.

    Return the number of bytes removed. Raise PoolError if a pool or an installation uses them, MachineError if the
    removal fails.
    """
    check_host(machine, names)
    gone = f"{_CACHE_THERE}.gone-{secrets.token_hex(4)}"
    script = (
        f"if [ -d {_CACHE_THERE} ]; then mv -T -- {_CACHE_THERE} {gone} || exit 1; _sky_b=$({_look()}); "
        # A build that began just before may have made a new cache folder; the old one is removed all the same.
        f'if [ -n "$_sky_b" ]; then mv -T -- {gone} {_CACHE_THERE}; echo "$_sky_b"; exit 0; fi; fi; '
        f'for g in {_CACHE_THERE}.gone-*; do [ -d "$g" ] || continue; echo "freed $(du -sk -- "$g")"; '
        'rm -rf -- "$g" || exit 1; done'
    )
    done = machine.run(script, timeout=_REMOVAL)
    said = done.out.decode("utf-8", "replace")
    if done.status:
        told = "; ".join(said.strip().splitlines()[-LAST_LINES:])
        raise MachineError(machine.name, "command", f"~/{CACHE} could not be removed: {told or 'no reason given'}")
    _refuse(machine.name, said, names)
    rows = [line.split() for line in said.splitlines() if line.startswith("freed ")]
    return sum(int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()) * 1024


def clean_here(names: Mapping[str, str], cache: Path | None = None) -> int:
    """Remove environments of local pools, and packages for hosts, from this machine.

    Return the number of bytes removed. Raise PoolError if a pool or an installation uses them.
    """
    cache = cache or platformdirs.user_cache_path("sky_jupyter")
    _refuse("this machine", "\n".join([*_users(cache), *_builders(cache)]), names)
    if cache.is_dir():
        gone = cache.with_name(f"{cache.name}.gone-{secrets.token_hex(4)}")
        cache.rename(gone)
        if users := list(_users(cache)):
            gone.rename(cache)
            _refuse("this machine", "\n".join(users), names)
    freed = 0
    for gone in cache.parent.glob(f"{cache.name}.gone-*"):
        freed += _size(gone)
        shutil.rmtree(gone)
    return freed


_CACHE_THERE = f'"$HOME"/{shlex.quote(CACHE)}'
_LOCKED = '( flock -n 9 || echo "locked $l" ) 9<"$l"'


def _look(*, everywhere: bool = False) -> str:
    """Return shell text that prints the command lines of host processes.

    They are those that run from the cache, or with ``everywhere`` all of the user's.
    """
    # The brackets keep the pattern from matching its own command line.
    pattern = HOST_PROCESS.replace(".", "[.]")
    ours = "*" if everywhere else f'"$HOME"/{CACHE}/*'
    return (
        f'for f in $(grep -ls {shlex.quote(pattern)} /proc/[0-9]*/cmdline); do [ -O "$f" ] || continue; '
        "c=$(tr '\\000' ' ' 2>/dev/null <\"$f\"); "
        f'case $c in ({ours}) echo "busy $c";; esac; done'
    )


def _users(cache: Path) -> Iterator[str]:
    """Yield for this machine what `_look` prints."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if HOST_PROCESS in command and command[0].startswith(f"{cache}{os.sep}"):
                yield f"busy {' '.join(command)}"


def _builders(cache: Path) -> Iterator[str]:
    """Yield the locks of environments that are being built."""
    for path in cache.glob("environments/*.lock"):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield f"locked {path}"


def _refuse(place: str, said: str, names: Mapping[str, str]) -> None:
    lines = said.splitlines()
    busy = [line for line in lines if line.startswith("busy ")]
    if busy:
        ids = dict.fromkeys(match[1] for line in busy if (match := _POOL.search(line)))
        raise PoolError(f"{place}: {_pools(ids, names)}; nothing has been removed")
    if any(line.startswith("locked ") for line in lines):
        raise PoolError(f"{place}: a pool builds an environment there just now: try again when it is up, and has ended")


def _pools(ids: Iterable[str], names: Mapping[str, str]) -> str:
    """Name the pools that are in the way, and what to do."""
    known = [names[id] for id in ids if id in names]
    foreign = [id for id in ids if id not in names]
    parts: list[str] = []
    if known:
        many = "pools" if len(known) > 1 else "pool"
        ends = " and ".join(f"`%sky down --name {name}`" for name in known)
        parts.append(f"{many} {', '.join(map(repr, known))} {'are' if len(known) > 1 else 'is'} there; end with {ends}")
    if foreign or not known:
        parts.append(
            f"a pool of another machine or notebook is there ({', '.join(foreign) or 'unnamed'}): end it there"
        )
    return "; ".join(parts)


def _size(folder: Path) -> int:
    """Return a folder's bytes on the disk; count hard links once."""
    seen: dict[tuple[int, int], int] = {}
    for root, _, files in os.walk(folder):
        for path in [root, *(os.path.join(root, name) for name in files)]:
            with contextlib.suppress(OSError):
                info = os.lstat(path)
                seen[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(seen.values())


__all__: Sequence[str] = ["check_host", "clean_here", "clean_host"]
