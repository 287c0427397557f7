"""Files of a rank's node, read from here: a folder's entries and parts of a file.

The node's agent answers, so it works while the rank computes. It reads as the pool's user on that machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import PoolError, SpecError
from ...node.files.browsed_files import MOST_BYTES, MOST_ENTRIES
from ...node.files.file_manifest import from_wire, to_wire
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ..base.event_loop import loop
from ..context import TransferContext
from .broadcast_tree import ask


@dataclass(frozen=True)
class FileFacts:
    """Facts of a file or folder on a node.

    Attributes
    ----------
    name : str
        Its name in its folder.
    kind : str
        ``"file"``, ``"directory"``, ``"other"``, or ``"link"`` for a broken link.
    size : int
        Its bytes.
    mtime : float
        When it was changed, in seconds since 1970.
    mode : int
        Its type and permissions.
    to : str or None
        The target if it is a link; the other facts are then the target's.
    """

    name: str
    kind: str
    size: int
    mtime: float
    mode: int
    to: str | None = None


@dataclass(frozen=True)
class FolderPage:
    """Page of a folder of a node.

    Attributes
    ----------
    path : str
        The absolute path.
    own : FileFacts
        Facts of the path itself.
    entries : tuple of FileFacts
        The entries, sorted by name; empty if the path is not a folder.
    more : int
        How many entries follow them.
    last : str
        The name after which the next page begins.
    """

    path: str
    own: FileFacts
    entries: tuple[FileFacts, ...]
    more: int
    last: str


def list_folder(pool: TransferContext, rank: int, path: str, after: str = "", most: int = MOST_ENTRIES) -> FolderPage:
    """Return a page of a folder on a rank's node, or a file's facts. Thread-safe.

    Parameters
    ----------
    pool : TransferContext
        The pool.
    rank : int
        The rank.
    path : str
        The path there; a relative one begins in the ranks' working folder, and ``~`` is the home.
    after : str
        The name after which the page begins.
    most : int
        The number of entries at most.

    Returns
    -------
    FolderPage
        The page.

    Raises
    ------
    OSError
        As the node's system raises it: FileNotFoundError, PermissionError and others.
    PoolError
        If the pool has ended, or the node does not answer or lists invalid names.
    """
    found = _ask(pool, rank, rpc.LIST_FOLDER, path=to_wire(path), after=to_wire(after), most=most)
    entries = tuple(map(_entry, found["entries"]))
    last = from_wire(found.get("last", b""))
    return FolderPage(from_wire(found["path"]), _facts(found["self"]), entries, int(found["more"]), last)


def read_range(pool: TransferContext, rank: int, path: str, start: int, length: int) -> bytes:
    """Return bytes of a file of a rank's node; fewer where it ends. Thread-safe.

    Raises OSError as the node's system does, and PoolError if the node does not answer.
    """
    parts: list[bytes] = []
    while length > 0:
        wanted = min(length, MOST_BYTES)
        data = bytes(_ask(pool, rank, rpc.READ_RANGE, path=to_wire(path), start=start, length=wanted)["data"])
        parts.append(data)
        if len(data) < wanted:
            break
        start, length = start + wanted, length - wanted
    return b"".join(parts)


def node_of(pool: TransferContext, rank: int) -> int:
    """Return the node of a rank."""
    return rank // pool.spec.ranks_per_node


def _ask(pool: TransferContext, rank: int, call: AgentCall, *, path: bytes, **more: Any) -> dict[str, Any]:
    if not 0 <= rank < pool.spec.world_size:
        raise SpecError(f"pool {pool.spec.name!r} has ranks 0 to {pool.spec.world_size - 1}, not {rank}")
    pool.require_live()
    node = node_of(pool, rank)
    found: dict[str, Any] = loop().call(ask(pool.control, call, [node], path=path, **more))[node]
    if error := found.get("error"):
        # The number makes it a FileNotFoundError or PermissionError.
        raise OSError(int(error[0]), f"{error[1]} (on rank {rank})", from_wire(path))
    return found


def _entry(facts: dict[str, Any]) -> FileFacts:
    """Return the facts of a folder's entry; raise PoolError if its name is a path."""
    found = _facts(facts)
    if found.name in ("", ".", "..") or "/" in found.name or "\0" in found.name:
        raise PoolError(f"the node lists a file whose name cannot be one: {found.name!r}")
    return found


def _facts(facts: dict[str, Any]) -> FileFacts:
    to = from_wire(facts["to"]) if "to" in facts else None
    return FileFacts(from_wire(facts["name"]), facts["kind"], facts["size"], facts["mtime"], facts["mode"], to)
