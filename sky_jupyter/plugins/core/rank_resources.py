"""Resources that the ranks of one machine share: devices, threads, interfaces.

The plugins' hooks use this inside rank processes. It needs only the standard library and packages that every node has
for the control plane.
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

from ...errors import SkyError, SpecError
from ...spec.pool_spec import PoolSpec

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

# Folder of a user's environments, below the cache folder.
_CACHE = "sky_jupyter"
# An address and a port.
Place = tuple[str, int]
# Output of gloo's native code for each group of ranks. Threads of one process may interleave their pieces, so that any
# order of the pieces matches.
GLOO_NOISE = (
    r"(?=.*(?:\[Gloo\]|is connected to|peer ranks))"
    r"(?:\[Gloo\] Rank |\d+| ?is connected to | ?peer ranks\. ?|Expected number of connected peer ranks is : ?)+"
)
# First line of NCCL's output with NCCL_DEBUG=WARN.
NCCL_NOISE = r"(?:\S+:\d+:\d+ \[\d+\] )?NCCL version \d+\.\S+"
# Seconds that an ending rank waits for a framework, which may wait for other ranks.
LEAVE_SECONDS = 3.0

log = logging.getLogger(__name__)


def place(info: InstanceInfo) -> tuple[int, int]:
    """Return this rank's index among the ranks of its machine, and their number.

    Local nodes are several nodes on one machine, so that the index may exceed ``local_rank``.
    """
    nodes = [node for node, addr in enumerate(info.peers) if addr == info.addr]
    return nodes.index(info.node) * info.ranks_per_node + info.local_rank, len(nodes) * info.ranks_per_node


def share(total: int, index: int, count: int) -> list[int]:
    """Return the devices of process ``index`` of ``count``; empty if too few."""
    each = total // count
    return list(range(index * each, (index + 1) * each))


def kept_folder(name: str) -> Path | None:
    """Return a private folder that later pools reuse; None if there can be none.

    It is beside the environments: `%sky clean` removes it.
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
    # Files in it are executed: nobody else may write there.
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
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def patient_threads() -> Iterator[None]:
    """Make threads started in the block wait their turn instead of preempting others.

    gloo's connection thread wakes when a peer's answer arrives, often while the sending thread still holds the
    connection's lock. If it preempts that thread, it spins on the lock until its time slice ends: with one processor
    per rank, this took three quarters of the training time. Only Linux has such threads (SCHED_BATCH).
    """
    try:
        patient = os.sched_getscheduler(0) == os.SCHED_OTHER
        if patient:
            # This changes only the calling thread; threads that it starts inherit it.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        patient = False
    try:
        yield
    finally:
        if patient:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def interface(addr: str) -> str | None:
    """Return the name of the interface with this address, such as ``lo``."""
    wanted = {str(found[4][0]) for found in socket.getaddrinfo(addr, None)}
    if any(ipaddress.ip_address(item.split("%")[0]).is_loopback for item in wanted):
        # All of 127.0.0.0/8 belongs to the loopback interface, which lists one address.
        wanted |= {"127.0.0.1", "::1"}
    # Imported here: notebooks import the plugins' modules too, for their options, without calling this.
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        # A link-local IPv6 address has a scope, as in fe80::1%eth0.
        if any(entry.address.split("%")[0] in wanted for entry in addresses):
            return name
    return None


def prepare_nccl(info: InstanceInfo) -> None:
    """Set NCCL's interface and warnings for the addresses that the ranks use.

    Variables that a user has set, or an administrator in NCCL's files, are kept.
    """
    if info.world_size == 1:
        return
    wanted = {}
    if name := interface(info.addr):
        # By default NCCL takes the first interface that is up, such as a container bridge. Without "=" the value would
        # be a prefix.
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
    """Return the variables in NCCL's files; the environment would override them."""
    own = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    found = set()
    for file in (own, "/etc/nccl.conf"):
        with contextlib.suppress(OSError):
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
            found |= {line.partition("=")[0].strip() for line in lines if not line.lstrip().startswith("#")}
    return found


_reserved: dict[str, socket.socket] = {}


def programs_port(info: InstanceInfo, name: str) -> int:
    """Return a port of the head for programs that the user's code starts.

    The plugin's own coordinator has another port. The head reserves the port; a program that binds it explicitly gets
    it.
    """
    port = info.ports.get(f"{name}.programs", 0)
    if port and not info.is_head:
        return port
    family = socket.AF_INET6 if ":" in info.head_addr else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    # On Linux, if both sockets have SO_REUSEADDR, one that does not listen does not block the port for the other.
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
    """Sockets that a framework opened when it joined its peers.

    Parameters
    ----------
    connections : dict of int to str
        File descriptor -> inode.
    places : set
        Addresses and ports where it listens for peers.
    other : set
        Addresses and ports at which the process listened before.
    addr : str
        Address of all listeners that it opens later; empty if unknown.
    """

    connections: dict[int, str]
    places: set[Place]
    other: set[Place]
    addr: str = ""


_collectives: dict[str, _Noted] = {}


@contextlib.contextmanager
def noting_connections(name: str) -> Iterator[None]:
    """Record the sockets that a framework opens in the block for its collectives."""
    connections, other = _connections(), _listened()
    yield
    opened = {fd: inode for fd, inode in _connections().items() if connections.get(fd) != inode}
    _collectives[name] = _Noted(opened, _listened() - other, other)


def note_listening(name: str, addr: str) -> None:
    """Record that a framework's collectives will use listeners at this address."""
    _collectives[name] = _Noted({}, set(), _listened(), addr)


def break_connections(name: str, *, every: bool = False) -> None:
    """Shut down the connections of collectives, so that a blocked one raises.

    These are the recorded connections, and later connections of other groups of ranks. A later connection is known by
    its accepting end, at an address where the framework listens; after `shutdown(2)` there, both ends see it closed.
    Only established connections are shut down: some frameworks end the process when a listening socket fails. Pass
    ``every`` if the framework listens at a new port of the same address for each new group.
    """
    noted = _collectives.get(name)
    if noted is None:
        return
    places = set(noted.places)
    if every or noted.addr:
        addresses = {noted.addr, *(address for address, _ in places)}
        places |= {place for place in _listened() - noted.other if place[0] in addresses}
    for fd, inode in _connections().items():
        # A descriptor may be reused; the inode tells if it is still the same connection.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            if noted.connections.get(fd) == inode or connection.getsockname()[:2] in places:
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> dict[int, str]:
    """Return this process's established TCP connections: descriptor -> inode."""
    return {fd: inode for fd, inode, connection in _sockets() if _is_connected(connection)}


def _listened() -> set[Place]:
    """Return the addresses and ports at which this process listens."""
    listening = socket.SO_ACCEPTCONN
    return {its.getsockname()[:2] for _, _, its in _sockets() if its.getsockopt(socket.SOL_SOCKET, listening)}


def _sockets() -> Iterator[tuple[int, str, socket.socket]]:
    """Yield TCP sockets (Linux): descriptor, inode, and a temporary duplicate."""
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
    """Return ``addr:port``, with brackets for an IPv6 address."""
    return f"[{addr}]:{port}" if ":" in addr else f"{addr}:{port}"


def past_proxies(info: InstanceInfo) -> None:
    """Exclude the ranks' addresses from this process's proxies."""
    for name in ("no_proxy", "NO_PROXY"):
        listed = [item for item in os.environ.get(name, "").split(",") if item]
        os.environ[name] = ",".join(dict.fromkeys([*listed, *info.peers, info.head_addr]))


def wait_for(addr: str, port: int, seconds: float) -> None:
    """Wait until an address accepts connections; raise SkyError after a timeout.

    Frameworks themselves would retry only after a whole second.
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
    """Run a call in a thread; return True if it ended in time.

    A call that hangs goes on in its daemon thread. Errors of the call are ignored.
    """

    def quietly() -> None:
        # A missing peer is no error for a rank that leaves.
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=quietly, name="sky-leave", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
