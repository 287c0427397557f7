"""Common parts of transfers: progress, cancellation, retries, copies."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import LinkLost, MachineError, PoolError, SpecError, TransferError
from ...node.files.file_manifest import FILE, ManifestEntry, shown
from ...node.files.piece_transfer import FileTransfer, LocalSource
from ...util.text import format_size
from ..base.event_loop import Tick, loop, wait_ticking
from ..base.events import Listener, NoticeEvent, ProgressEvent
from ..base.timeouts import TIMEOUTS
from ..context import TransferContext
from ..hosts.launch import Host

T = TypeVar("T")
_AGAIN = TIMEOUTS.transfers.again
_FAREWELL = TIMEOUTS.transfers.farewell
_LOOK = TIMEOUTS.polls.transfer


@dataclass(frozen=True)
class Transfer:
    """Result of `put` or `get`; its text is one line.

    Attributes
    ----------
    what : str
        Name of the file or folder.
    size, files : int
        Bytes and number of its files.
    nodes : tuple of int
        Nodes that have it now, or from which it came.
    sent : int
        Bytes of files that crossed the notebook's link; 0 if none had to.
    copied : int
        Bytes that were copied on this machine, for local nodes.
    alone : tuple of int
        Nodes to which the notebook had to send it besides the first one, because no other node reached them.
    """

    what: str
    size: int
    files: int
    nodes: tuple[int, ...]
    sent: int = 0
    copied: int = 0
    alone: tuple[int, ...] = ()

    def __str__(self) -> str:
        files = f"{self.files} files, " if self.files != 1 else ""
        moved = f"{format_size(self.sent)} over the link" if self.sent else "it was there already"
        moved = f"{format_size(self.copied)} copied" if self.copied else moved
        if self.alone:
            moved += (
                f", to {_nodes(self.alone)} from here as no other node reached {'them' if self.alone[1:] else 'it'}"
            )
        return f"{self.what} ({files}{format_size(self.size)}): {_nodes(self.nodes)}; {moved}"


def _nodes(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"


class Stopped(Exception):
    """Signal in a transfer's thread that the user has interrupted it."""


class TransferJob:
    """Transfer in either direction, with its listener and its cancellation."""

    def __init__(self, pool: TransferContext, nodes: Sequence[int], listener: Listener) -> None:
        self.pool, self.nodes, self.listener = pool, nodes, listener
        self.stop = threading.Event()
        self.control = pool.control
        # Whether the nodes are on other machines.
        self.away = not pool.hosts[0].here

    def wait(self, work: Coroutine[Any, Any, T], tick: Tick) -> T:
        """Run work on the loop; an interrupt cancels it."""
        over = threading.Event()

        async def whole() -> T:
            try:
                return await work
            finally:
                over.set()

        future = loop().submit(whole())
        try:
            with self.pool.watchdog.telling(self.listener):
                wait_ticking(future, tick)
            return future.result()
        except BaseException:
            self.stop.set()
            future.cancel()
            # Wait until the nodes' copies have ended: the next transfer may be of the same files.
            over.wait(_FAREWELL)
            raise

    def tell(self, what: str, there: int, total: int, more: str = "") -> None:
        """Report a part's progress; raise `Stopped` after an interrupt."""
        if self.stop.is_set():
            raise Stopped
        percent = f", {100 * there // total} %" if total else ""
        text = f"{what}{more}: {format_size(there)} of {format_size(total)}{percent}"
        self.listener(ProgressEvent(what, text, there, total))

    def host(self, node: int) -> Host:
        """Return the host of a remote node."""
        (host,) = (host for host in self.pool.hosts if node in host.nodes)
        assert not host.here
        return host

    def name(self, node: int) -> str:
        """Return a node's name for messages."""
        for host in self.pool.hosts:
            if node in host.nodes and not host.here:
                return f"node {node} ({host.machine.name})"
        return f"node {node}"

    async def over_the_link(self, node: int, move: Callable[[Any], T]) -> T:
        """Call ``move`` with a node's machine; retry after breaks.

        Raises TransferError if the machine has no room or refuses.
        """
        machine: Any = self.host(node).machine
        while True:
            try:
                return await asyncio.to_thread(move, machine)
            except LinkLost:
                self.listener(NoticeEvent(f"the link to {self.name(node)} is down; this resumes when it is back"))
                await asyncio.sleep(_AGAIN)
                await self._until_up(machine)
            except MachineError as error:
                raise TransferError(f"{self.name(node)}: {str(error).removeprefix(f'{error.host}: ')}") from None

    async def _until_up(self, machine: Any) -> None:
        while not await asyncio.to_thread(lambda: machine.up):
            if self.pool.state != "ready":
                raise PoolError(f"pool {self.pool.spec.name!r} is gone: {self.pool.broken or self.pool.state}")
            await asyncio.sleep(_AGAIN)


async def copy(job: TransferJob, text: str, source: Path, target: Path, entries: Sequence[ManifestEntry]) -> int:
    """Copy a file or folder on this machine; return the bytes copied.

    Raises TransferError if that fails.
    """
    take = FileTransfer(target, entries, LocalSource(source))
    task = asyncio.ensure_future(take.run())
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK)
            job.tell(text, take.there, take.total)
    finally:
        task.cancel()
    if take.state == "failed":
        raise TransferError(take.why)
    return take.got


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently, each to its end; raise the first error."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


def is_itself(source: Path, target: Path) -> bool:
    """Return whether two paths are the same; refuse nested ones."""
    if os.path.exists(target) and os.path.samefile(source, target):
        return True
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise SpecError(shown(f"{target} is inside {source}: a folder cannot be copied into itself"))
    return False


def advice(root: ManifestEntry, target: str | Path) -> str:
    """Return what to do about a target of another kind."""
    into = f"write {target}/ to have it in that folder, or " if root.kind == FILE else ""
    return f"{into}name another place"
