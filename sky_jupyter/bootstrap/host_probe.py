"""Probe of a host before anything is made there; it refuses an unfit one."""

from __future__ import annotations

import functools
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BootstrapError, MachineError
from ..machines.ssh import scripts
from ..node.system import gpus
from ..node.system.gpus import Devices
from ..spec.pool_spec import PoolSpec
from ..util.text import format_size

if TYPE_CHECKING:
    from ..machines.base import Machine

CACHE = ".cache/sky_jupyter"
_PATIENCE = 60.0
_SKEW = 5.0
_SHARED = "/dev/shm"
# Bytes below which there is a warning; a container's own /dev/shm has 64 MB.
_LEAST_SHARED = 256 << 20
# Share of the wanted size that suffices, since a file system may count its size in blocks.
_NEARLY = 0.95
_MORE_SHARED = f"give it more (in a pod an emptyDir with medium Memory at {_SHARED}, with Docker --shm-size)"
_SMI_PATIENCE = 20
_HANGS = "hangs"
_NEEDS = "import ssl, ctypes, sqlite3, asyncio, multiprocessing, zlib"
# Programs that later steps run; an image may have a shell and little else.
_TOOLS = ("flock", "gzip", "head", "tar")
_NO_SHELL = re.compile(r"""\bsh['"]?: (executable file not found|(stat [^:]*: )?no such file)""", re.IGNORECASE)
_NEEDS_SHELL = (
    "it has no /bin/sh, through which everything is done there: use an image with a shell and the usual tools, such as "
    "python:3.12-slim, and none that is called distroless or static"
)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_MIN_GLIBC = (2, 17)
# An agent alone has about forty open; the rest is for kernels and what they run.
_MIN_FILES = 64
# Minor versions of glibc that uv has platforms for; a host's platform is the highest that its glibc is not below.
_MANYLINUX = (17, 28, *range(31, 41))


@dataclass(frozen=True)
class HostFacts:
    """Facts of a host that can take part.

    Parameters
    ----------
    machine : str
        Architecture, as ``uname -m`` prints it.
    glibc : tuple of int
        The version of its C library.
    home : str
        The user's home folder there.
    free : int
        Free bytes where environments are kept.
    runtime : str
        A folder for the pool's own files: short, writable, and not removed when the login ends.
    shared : str
        A folder in memory for blobs; ``runtime`` where there is none.
    address : str
        The host's own address in the SSH connection; empty if unknown.
    skew : float
        Seconds by which its clock is ahead of ours.
    python : str
        The host's own interpreter of the required version; empty if there is none.
    python_version : str
        The full version of ``python``.
    pythons : tuple of str
        The versions of all interpreters found.
    has_uv : bool
        True if the required uv is in its cache.
    devices : Devices
        Accelerators that CUDA_VISIBLE_DEVICES, there or in the image, leaves visible.
    driver_hangs : bool
        True if nvidia-smi did not answer.
    path : tuple of str
        Folders of its PATH.
    shared_size : int
        Size in bytes of the host's /dev/shm; 0 if it has none.
    """

    machine: str
    glibc: tuple[int, int]
    home: str
    free: int
    runtime: str
    shared: str
    address: str
    skew: float
    python: str
    python_version: str
    pythons: tuple[str, ...]
    has_uv: bool
    devices: Devices
    driver_hangs: bool = False
    path: tuple[str, ...] = ()
    shared_size: int = 0

    @property
    def cache(self) -> str:
        """Folder of environments, packages and uv, kept from pool to pool."""
        return f"{self.home}/{CACHE}"

    @property
    def platform(self) -> str:
        """Name of the host for uv's ``--python-platform``."""
        minor = max(number for number in _MANYLINUX if (2, number) <= self.glibc)
        return f"{self.machine}-manylinux_2_{minor}"


def look(machine: Machine, python: str, uv: str, env: Mapping[str, str]) -> HostFacts:
    """Ask a host, in one round trip, for all facts that a node depends on.

    Parameters
    ----------
    machine : Machine
        The host.
    python : str
        The required minor version, such as ``"3.12"``.
    uv : str
        The required version of uv.
    env : mapping of str to str
        The image's variables.

    Returns
    -------
    HostFacts
        Its system, resources and software.

    Raises
    ------
    BootstrapError
        When it cannot be a node; phase ``"system"``.
    """
    before = time.time()
    try:
        done = machine.run(_script(python, uv), timeout=_PATIENCE)
    except MachineError as error:
        # As container runtimes say it.
        if _NO_SHELL.search(str(error)):
            raise _unfit(_NEEDS_SHELL) from None
        raise
    middle = (before + time.time()) / 2
    said = done.out.decode("utf-8", "replace")
    rows = [line.split(" ", 1) for line in said.splitlines() if " " in line]
    facts: dict[str, list[str]] = {}
    for name, value in rows:
        facts.setdefault(name, []).append(value.strip())

    def one(name: str) -> str:
        return facts.get(name, [""])[0]

    def number(name: str) -> int:
        # A number that a host does not report, such as a file system's free space, is 0.
        return int(one(name)) if one(name).isdecimal() else 0

    if not facts and done.status in (126, 127):
        raise _unfit(_NEEDS_SHELL)
    if one("system") != "Linux":
        raise _unfit(f"it runs {one('system') or 'an unknown system'}, and nodes need Linux")
    if lacks := facts.get("lacks"):
        raise _unfit(
            f"it has no {', '.join(lacks)}, with which environments are put there: use an image that has them "
            "(Debian: apt-get install coreutils util-linux tar gzip)"
        )
    if (files := one("files")).isdigit() and int(files) < _MIN_FILES:
        raise _unfit(
            f"a process of this user may open {files} files there, and nodes need {_MIN_FILES}: raise it (`ulimit -n` "
            "in ~/.bashrc or ~/.profile, nofile in /etc/security/limits.conf)"
        )
    found = _VERSION.search(one("glibc")) if "glibc" in one("glibc").lower() or "GNU" in one("glibc") else None
    if found is None:
        raise _unfit(
            f"its C library is not glibc ({one('glibc') or 'it does not say'}): packages are built for glibc; "
            "use a Debian, Ubuntu, Fedora or the like"
        )
    glibc = int(found[1]), int(found[2])
    if glibc < _MIN_GLIBC:
        raise _unfit(f"its glibc {found[0]} is older than {_MIN_GLIBC[0]}.{_MIN_GLIBC[1]}; update the system")
    if "cache" not in facts:
        why = "; ".join(facts.get("refused", [])) or said.strip()[-300:]
        raise _unfit(_cache_advice(one("home"), why))
    if "runtime" not in facts:
        raise _unfit("neither /tmp nor /var/tmp can be written; make one of them writable for this user")
    pythons = [row.split(" ", 1) for row in facts.get("python", [])]
    visible = facts["visible"][0].removeprefix("=") if "visible" in facts else None
    own = next(((version, path) for version, path in pythons if f"{version}.".startswith(f"{python}.")), ("", ""))
    return HostFacts(
        machine=one("machine"),
        glibc=glibc,
        home=one("home"),
        free=number("free") * 1024,
        runtime=one("runtime"),
        shared=one("shared") or one("runtime"),
        address=one("address"),
        skew=float(one("clock") or middle) - middle,
        python=own[1],
        python_version=own[0],
        pythons=tuple(dict.fromkeys(version for version, _ in pythons)),
        has_uv=one("uv") == "yes",
        devices=gpus.parse(facts.get("gpu", ()), env.get(gpus.VISIBLE, visible)),
        driver_hangs=_HANGS in facts.get("gpu", ()),
        path=tuple(folder for folder in one("path").split(":") if folder.startswith("/")),
        shared_size=number("memory") * 1024,
    )


def warnings(facts: HostFacts, wanted: int = 0) -> list[str]:
    """Return warnings about a host that can be a node.

    ``wanted`` is the size of shared memory in bytes that its provider has asked for; 0 if none.
    """
    told = _about_shared_memory(facts, wanted)
    if facts.driver_hangs:
        told.append(f"its nvidia-smi does not answer in {_SMI_PATIENCE} s: it counts as a host without accelerators")
    if abs(facts.skew) > _SKEW:
        side = "ahead of" if facts.skew > 0 else "behind"
        told.append(f"its clock is {abs(facts.skew):.0f} s {side} this machine's: times in its logs differ by that")
    return told


def _about_shared_memory(facts: HostFacts, wanted: int) -> list[str]:
    """Warn if a host has less shared memory than values and data loaders use."""
    if not facts.shared.startswith(_SHARED):
        return [f"it has no {_SHARED} that can be written: values go by its disk; {_MORE_SHARED}"]
    has = format_size(facts.shared_size)
    if facts.shared_size < wanted * _NEARLY:
        return [
            f"its {_SHARED} holds {has} of the {format_size(wanted)} that were asked for: the machine's limit of "
            "memory caps it, and counts what is in it too; larger values go by the disk"
        ]
    if 0 < facts.shared_size < _LEAST_SHARED:
        return [
            f"its {_SHARED} holds {has}: larger values go by its disk, and torch's data loaders and NCCL, which use "
            f"it too, fail when it is full; {_MORE_SHARED}"
        ]
    return []


def check_alike(facts: Mapping[str, HostFacts], spec: PoolSpec) -> None:
    """Refuse hosts that differ in kind, and accelerators that do not fit the spec.

    ``facts`` are by the hosts' names, in the order of the nodes. Raise BootstrapError with the node and what it lacks;
    an error about accelerators lists those of all hosts.
    """
    head, first = next(iter(facts.items()))
    has = "; ".join(f"{name}: {host.devices}" for name, host in facts.items())
    for node, (name, host) in enumerate(facts.items()):
        refuse = functools.partial(BootstrapError, "system", node=node, host=name)
        if host.machine != first.machine:
            raise refuse(
                f"its processor is {host.machine}, and {head} has {first.machine}: a pool's hosts must be of one "
                "architecture; make two pools"
            )
        wanted = spec.accelerator
        if wanted is not None and host.devices.of_kind(wanted.kind) < wanted.count:
            raise refuse(f"the pool needs {wanted} on each node, and it has {host.devices} ({has})")
        if host.devices.kinds != first.devices.kinds:
            raise refuse(
                f"it has other accelerators than {head} ({has}): a pool's collectives need the same on all; make two "
                f"pools, or choose the same on all with {gpus.VISIBLE}"
            )
        if host.devices.all and not host.devices.can_be_shared(spec.ranks_per_node):
            raise refuse(gpus.why_not_shared(host.devices, spec.ranks_per_node))


def _script(python: str, uv: str) -> str:
    cache = scripts.path(f"~/{CACHE}")
    probe = f"{cache}/.probe-$$"
    ask = f"{_NEEDS}; import sys; print('python', '.'.join(map(str, sys.version_info[:3])), sys.executable)"
    steps = [
        'echo "system $(uname -s)"',
        'echo "machine $(uname -m)"',
        f"for _sky_c in {' '.join(_TOOLS)}; do command -v $_sky_c >/dev/null || echo lacks $_sky_c; done",
        'echo "glibc $(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1)"',
        'echo "clock $(date +%s.%N 2>/dev/null)"',
        'echo "home $HOME"',
        'echo "files $(ulimit -n)"',
        'echo "path $PATH"',
        'set -- $SSH_CONNECTION; echo "address ${3:-}"',
        # Pipe through cat, which reports why the file cannot be written, where the shell itself may not. The file is
        # also run: this detects a full disk, a read-only one, and one mounted noexec.
        f"_sky_e=$( {{ mkdir -p -m 700 -- {cache} && printf '#!/bin/sh\\nexit 0\\n' | cat >{probe} && "
        f'chmod 700 {probe} && {probe}; }} 2>&1 ) && [ -s {probe} ] && echo cache ok || echo "refused $_sky_e"',
        f"rm -f -- {probe}",
        f'echo "free $(df -Pk {cache} 2>/dev/null | tail -n 1 | {{ read -r _ _ _ f _; echo $f; }})"',
        # Prefer a job's own folders, which are removed with it. A socket's path must be short.
        'for _sky_d in "${SKY_JOB_FOLDER:-}" /tmp /var/tmp; do [ -n "$_sky_d" ] && [ ${#_sky_d} -le 48 ] && '
        '[ -w "$_sky_d" ] && echo "runtime $_sky_d" && break; done',
        'for _sky_d in "${SKY_JOB_SHARED:-}" /dev/shm; do [ -n "$_sky_d" ] && [ -d "$_sky_d" ] && [ -w "$_sky_d" ] && '
        'echo "shared $_sky_d" && break; done',
        'echo "memory $(df -Pk /dev/shm 2>/dev/null | tail -n 1 | { read -r _ s _; echo $s; })"',
        f"for _sky_p in python{python} python3; do _sky_x=$(command -v $_sky_p) && "
        f'"$_sky_x" -I -c {shlex.quote(ask)} 2>/dev/null; done',
        f"[ -x {cache}/bin/{shlex.quote('uv-' + uv)} ] && echo uv yes",
        '[ -z "${CUDA_VISIBLE_DEVICES+x}" ] || echo "visible =$CUDA_VISIBLE_DEVICES"',
        # With a driver that hangs, nvidia-smi hangs too.
        f"_sky_t=; command -v timeout >/dev/null && _sky_t='timeout -s KILL {_SMI_PATIENCE}'; "
        f"command -v nvidia-smi >/dev/null && {{ $_sky_t nvidia-smi {' '.join(gpus.QUERY)} 2>/dev/null; "
        f"[ $? -ne 137 ] || echo {_HANGS}; }} | "
        'while read -r _sky_g; do echo "gpu $_sky_g"; done',
    ]
    return "; ".join(steps) + "; :"


def _cache_advice(home: str, why: str) -> str:
    if home in ("", "/"):
        # As for a user without an entry in /etc/passwd.
        return (
            f"HOME is {home or 'not set'} there, where nothing can be written ({why}): set it to a folder that the "
            "user may write to, such as a volume of the container"
        )
    if "No space" in why or "quota" in why:
        return f"{home} has no space left ({why}); make room there"
    if "Read-only" in why:
        return f"{home} cannot be written ({why}); use a user whose home can"
    if "ermission denied" in why or "not permitted" in why:
        return (
            f"nothing can be written or run below {home}/{CACHE} ({why}): environments are kept there; let the user "
            "write to it, and mount it without noexec"
        )
    return f"{home}/{CACHE} cannot be used: {why or 'it did not say why'}"


def _unfit(text: str) -> BootstrapError:
    return BootstrapError("system", text)
