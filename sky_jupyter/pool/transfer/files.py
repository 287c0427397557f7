"""Upload and download of files and folders, and of the values of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CaptureError, LinkLost, SpecError, TransferError
from ...machines.local_machine import absolute
from ...node.files.file_manifest import shown
from ..base.event_loop import Tick, no_tick
from ..base.events import Listener, ignore
from ..context import TransferContext
from ..hosts import launch
from ..hosts import remote_host as remotely
from .download import Download
from .transfer_job import Transfer
from .upload import Upload

if TYPE_CHECKING:
    from ..runs.run import Run

# Values up to this size are sent to each host directly, which is faster than through another one.
SMALL = 1 << 20
# Paths without a name of their own: a home or a parent folder.
_NAMELESS = re.compile(r"(~[^/]*|(.*/)?\.\.)/*\Z", re.DOTALL)


def put(
    pool: TransferContext,
    local: str | os.PathLike[str],
    remote: str | None = None,
    on: Sequence[int] | None = None,
    listener: Listener = ignore,
    tick: Tick = no_tick,
) -> Transfer:
    """Send a file or folder to nodes; see `Compute.put`."""
    nodes = check_nodes(pool, on)
    source = absolute(local)
    if not os.path.exists(source):
        raise SpecError(shown(f"{local} is not there; put takes a file or folder of this machine"))
    name = Path(os.path.abspath(source)).name
    # A name that begins with "~" is not a home folder here.
    own = f"./{name}" if name.startswith("~") else name
    target = own if remote is None else f"{remote}{name}" if remote.endswith("/") else remote
    if not target.strip():
        raise SpecError("an empty name is not a path on a node")
    sending = Upload(pool, source, nodes, listener)
    return sending.wait(sending.put(target) if sending.away else sending.put_here(target), tick)


def get(
    pool: TransferContext,
    remote: str,
    local: str | os.PathLike[str] | None = None,
    on: Sequence[int] | None = None,
    listener: Listener = ignore,
    tick: Tick = no_tick,
) -> Transfer:
    """Fetch a file or folder from nodes; see `Compute.get`."""
    nodes = [0] if on is None else check_nodes(pool, on)
    if not remote.strip():
        raise SpecError("an empty name is not a path on a node")
    if local is None and _NAMELESS.match(remote):
        raise SpecError(shown(f"{remote} gives no name here: say where it is to go, as in `%sky get {remote} NAME`"))
    fetching = Download(pool, nodes, listener)
    return fetching.wait(fetching.get(remote, None if local is None else str(local)), tick)


def is_small(folder: Path) -> bool:
    """Return whether files are small enough for direct sending."""
    return sum(path.stat().st_size for path in folder.iterdir()) <= SMALL


def ship(
    pool: TransferContext, run: Run, folder: Path, hosts: Iterable[launch.Host], listener: Listener, tick: Tick
) -> None:
    """Send the blobs in a folder to the hosts of a run.

    Raises CaptureError if that fails, for example for lack of room.
    """
    hosts = list(hosts)
    if is_small(folder):
        remotely.send(hosts, folder, run.id)
        return
    sending = Upload(pool, folder, [node for host in hosts for node in host.nodes], listener, run=run.id)
    try:
        sending.wait(sending.put(), tick)
    except BaseException as error:
        # After a broken link, the next attempt continues with the parts.
        remotely.discard(hosts, run.folder, parts=not isinstance(error, LinkLost))
        if isinstance(error, TransferError):
            raise CaptureError(f"the cell's values could not be sent to the nodes: {error}") from None
        raise


def check_nodes(pool: TransferContext, on: Sequence[int] | None) -> list[int]:
    """Return the nodes, by default all; raise SpecError for others."""
    chosen = list(range(pool.spec.nodes)) if on is None else sorted(set(on))
    wrong = [node for node in chosen if not 0 <= node < pool.spec.nodes]
    if wrong or not chosen:
        raise SpecError(
            f"pool {pool.spec.name!r} has nodes 0 to {pool.spec.nodes - 1}, not {', '.join(map(str, wrong)) or 'none'}"
        )
    return chosen
