"""How the ranks that share one machine share it: whose devices, how many threads, which interface.

The plugins' hooks use this inside rank processes; it needs nothing but the standard library and
psutil, which the control plane brings to every node.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import psutil

from ...errors import SkyError, SpecError
from ...spec.pool_spec import PoolSpec

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

# Where a user's environments are, below the folder for caches.
_CACHE = "sky_jupyter"
# An address and a port.
Place = tuple[str, int]
# What gloo prints, from native code, for each group of ranks. Threads of one process that do so at
# the same time mix their pieces up, so that any order of the pieces is such a line.
GLOO_NOISE = (
    r"(?=.*(?:\[Gloo\]|is connected to|peer ranks))"
    r"(?:\[Gloo\] Rank |\d+| ?is connected to | ?peer ranks\. ?|Expected number of connected peer ranks is : ?)+"
)
# The first line of what it says where it is to warn.
NCCL_NOISE = r"(?:\S+:\d+:\d+ \[\d+\] )?NCCL version \d+\.\S+"
# How long a rank's end may wait for a framework that waits for others.
LEAVE_SECONDS = 3.0

log = logging.getLogger(__name__)


def place(info: InstanceInfo) -> tuple[int, int]:
    """This rank's number among the ranks of its machine, and how many those are.

    Local nodes are several nodes on one machine, so that this is more than ``local_rank``.
    """
    nodes = [node for node, addr in enumerate(info.peers) if addr == info.addr]
    return nodes.index(info.node) * info.ranks_per_node + info.local_rank, len(nodes) * info.ranks_per_node


def share(total: int, index: int, count: int) -> list[int]:
    """The part of `total` devices that is for the process `index` of `count`; empty if they are too few."""
    each = total // count
    return list(range(index * each, (index + 1) * each))


def kept_folder(name: str) -> Path | None:
    """A private folder of this machine's that later pools find again; None where there can be none.

    It lies where environments do: `%sky clean` removes it.
    """
    environments = Path(sys.prefix).parent
    if environments.name == "environments" and environments.parent.name == _CACHE:
        cache = environments.parent
    else:
        cache = platformdirs.user_cache_path(_CACHE)
    path = cache / "compiled" / name
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        about = path.lstat()
    except OSError as error:
        log.info("nothing is kept for later pools: %s", error)
        return None
    # What others can write there would be run here.
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
    return path if private else None


def check_accelerators(spec: PoolSpec) -> None:
    """Refuse more ranks on a node than accelerators: collectives need one each."""
    if spec.accelerator is not None and spec.accelerator.count < spec.ranks_per_node:
        raise SpecError(
            f"{spec.ranks_per_node} ranks per node cannot share {spec.accelerator.count} x {spec.accelerator.kind}; "
            f"ask for --accelerator {spec.accelerator.kind}:{spec.ranks_per_node} or fewer --ranks-per-node"
        )


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interface(addr: str) -> str | None:
    """The name of the network interface that has this address, such as ``lo`` or ``eth0``."""
    wanted = {str(found[4][0]) for found in socket.getaddrinfo(addr, None)}
    if any(ipaddress.ip_address(item.split("%")[0]).is_loopback for item in wanted):
        # All of 127.0.0.0/8 is the loopback interface's, which lists one address.
        wanted |= {"127.0.0.1", "::1"}
    for name, addresses in psutil.net_if_addrs().items():
        # A link-local IPv6 address carries its scope, as in fe80::1%eth0.
        if any(entry.address.split("%")[0] in wanted for entry in addresses):
            return name
    return None


def prepare_nccl(info: InstanceInfo) -> None:
    """Have NCCL reach the other ranks where they know each other, and say what goes wrong.

    What a person has set, or an administrator in NCCL's files, is left so.
    """
    if info.world_size == 1:
        return
    wanted = {}
    if name := interface(info.addr):
        # By itself it takes the first interface that is up, such as one of containers. Without = this is a prefix.
        wanted["NCCL_SOCKET_IFNAME"] = f"={name}"
    if ":" in info.addr:
        wanted["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    if info.accelerators:
        wanted["NCCL_DEBUG"] = "WARN"
    settled = _set_for_nccl()
    for key, value in wanted.items():
        if key not in settled:
            os.environ.setdefault(key, value)


def _set_for_nccl() -> set[str]:
    """The variables that NCCL's own files set; what is in the environment would count for more."""
    own = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    found = set()
    for file in (own, "/etc/nccl.conf"):
        with contextlib.suppress(OSError):
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
            found |= {line.partition("=")[0].strip() for line in lines if not line.lstrip().startswith("#")}
    return found


_reserved: dict[str, socket.socket] = {}


def programs_port(info: InstanceInfo, name: str) -> int:
    """A port of the head for what the user's programs start by themselves: the plugin's own listens elsewhere.

    The head keeps the system from giving it to anybody else; who binds it by name has it.
    """
    port = info.ports.get(f"{name}.programs", 0)
    if port and not info.is_head:
        return port
    family = socket.AF_INET6 if ":" in info.head_addr else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    # With it on both sides, a socket that does not listen is in nobody's way. Elsewhere than on Linux it may be.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        holder.bind((info.head_addr, port))
        port = int(holder.getsockname()[1])
    if sys.platform != "linux":
        holder.close()
    if before := _reserved.pop(name, None):
        before.close()
    _reserved[name] = holder
    return port or info.port(name)


@dataclass(frozen=True)
class _Noted:
    """What a framework opened when it joined its peers.

    Parameters
    ----------
    connections : dict of int to str
        File descriptor -> inode.
    places : set
        Where it listens for peers: addresses and ports.
    other : set
        What was listened at before.
    addr : str
        Where all that is listened at later is for peers; empty where that is not so.
    """

    connections: dict[int, str]
    places: set[Place]
    other: set[Place]
    addr: str = ""


_collectives: dict[str, _Noted] = {}


@contextlib.contextmanager
def noting_connections(name: str) -> Iterator[None]:
    """Remember what a framework opens inside as that of its collectives."""
    connections, other = _connections(), _listened()
    yield
    opened = {fd: inode for fd, inode in _connections().items() if connections.get(fd) != inode}
    _collectives[name] = _Noted(opened, _listened() - other, other)


def note_listening(name: str, addr: str) -> None:
    """Remember what a framework will open at this address from now on as that of its collectives."""
    _collectives[name] = _Noted({}, set(), _listened(), addr)


def break_connections(name: str, *, every: bool = False) -> None:
    """Shut the connections of collectives down, so that one that waits on any of them raises at once.

    Those that were noted, and those that came later for another group of ranks: each has one end in
    the rank that was called, at a place where the framework listens. From `shutdown(2)`, both ends
    learn of it. Established ones only: some frameworks end the process when a socket that listens fails.

    Parameters
    ----------
    every : bool
        Whether the framework listens at a new port, on the same address, for each new group.
    """
    noted = _collectives.get(name)
    if noted is None:
        return
    places = set(noted.places)
    if every or noted.addr:
        addresses = {noted.addr, *(address for address, _ in places)}
        places |= {place for place in _listened() - noted.other if place[0] in addresses}
    for fd, inode in _connections().items():
        # A number is used again; the inode tells whether it is still the same connection.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            if noted.connections.get(fd) == inode or connection.getsockname()[:2] in places:
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> dict[int, str]:
    """This process's established TCP connections: file descriptor -> inode."""
    return {fd: inode for fd, inode, connection in _sockets() if _is_connected(connection)}


def _listened() -> set[Place]:
    """The addresses and ports that this process listens at."""
    listening = socket.SO_ACCEPTCONN
    return {its.getsockname()[:2] for _, _, its in _sockets() if its.getsockopt(socket.SOL_SOCKET, listening)}


def _sockets() -> Iterator[tuple[int, str, socket.socket]]:
    """This process's TCP sockets: file descriptor, inode, and a copy that is open for a moment. Linux tells."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{name}")
                if target.startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as copy:
                        if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                            yield int(name), target, copy


def _is_connected(candidate: socket.socket) -> bool:
    try:
        candidate.getpeername()
    except OSError:
        return False
    return True


def endpoint(addr: str, port: int) -> str:
    """``addr:port``, with the brackets that an IPv6 address needs."""
    return f"[{addr}]:{port}" if ":" in addr else f"{addr}:{port}"


def past_proxies(info: InstanceInfo) -> None:
    """Have this process reach its peers directly, also where a proxy is set for the world outside."""
    for name in ("no_proxy", "NO_PROXY"):
        listed = [item for item in os.environ.get(name, "").split(",") if item]
        os.environ[name] = ",".join(dict.fromkeys([*listed, *info.peers, info.head_addr]))


def wait_for(addr: str, port: int, seconds: float) -> None:
    """Wait until something listens there, as the head's coordinator will in a moment.

    Frameworks try once, and again after a whole second.

    Raises
    ------
    SkyError
        When nothing did in that time.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((addr, port), timeout=max(0.1, end - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise SkyError(
                    f"rank 0's coordinator at {endpoint(addr, port)} could not be reached in {seconds:.0f} s "
                    f"({error}); look at what rank 0 says, and whether this node can reach that address"
                ) from error
            time.sleep(0.01)


def within(seconds: float, call: Callable[[], Any]) -> bool:
    """Run something that may wait for peers that are gone; tell whether it ended in time.

    What hangs is left to a daemon thread: this serves processes that are about to end.
    """

    def quietly() -> None:
        # A peer that is gone is no fault of the one that leaves after it.
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=quietly, name="sky-leave", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
