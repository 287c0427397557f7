"""A run's values to where its ranks find them: what is there already stays there, the rest is written or sent."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...capture.blobs import Blob, BlobFile, Tell, write_part
from ...errors import CaptureError, SkyError
from ...node.files.blob_cache import LEAST, BlobCache, places
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ...util.text import format_size
from ..base.event_loop import Tick, loop, wait_ticking
from ..base.events import Listener, ProgressEvent
from ..base.timeouts import TIMEOUTS
from ..context import TransferContext
from ..hosts import launch, remote_host
from . import broadcast_tree, files

if TYPE_CHECKING:
    from ..runs.run import Run

_SPARE_ROOM = 64 * 10**6
# A person is told how far it is so often.
_TOLD = TIMEOUTS.polls.progress


def ship(pool: TransferContext, run: Run, call: Blob | None, on_send: Listener, tick: Tick) -> dict[str, Any]:
    """Bring a run's values to the machines that it runs on; what its ranks are told of them.

    Raises
    ------
    CaptureError
        When there is no room for them, or they cannot be brought there.
    """
    kind = _Away if pool.machines else _Here
    shipping = kind(pool, run, on_send, tick)
    blobs = [*run.capture.blobs, *([call] if call is not None else [])]
    shipping.bring(blobs)
    told: dict[str, Any] = {"manifest": run.capture.manifest(shipping.path, shipping.cut())}
    shipping.close()
    if call is not None:
        told["blob"] = shipping.path(call)
    return told


def reading(on_send: Listener, tick: Tick) -> Tell:
    """What tells a person, by a listener, how much has been read of large values; ``tick`` is called meanwhile."""
    there = 0

    def tell(more: int) -> None:
        nonlocal there
        there += more
        on_send(ProgressEvent("reading values", f"reading values: {format_size(there)}", there, 0))
        tick()

    return tell


def kept(pool: TransferContext) -> dict[str, int] | None:
    """How much the machine keeps that keeps most, as `BlobCache.stats` has it; None where nobody can say."""
    nodes = [host.nodes[0] for host in pool.hosts if host.nodes[0] not in pool.control.lost]
    with contextlib.suppress(SkyError, FutureTimeout, OSError):
        found = loop().call(broadcast_tree.ask(pool.control, rpc.CACHE_STATS, nodes))
        return max(found.values(), key=lambda facts: facts["kept"], default=None)
    return None


def discard(pool: TransferContext, run: Run) -> None:
    """Remove a run's folders: kernels that have mapped a blob need its name no more."""
    if not pool.hosts:
        # They have ended, and their folders with them.
        return
    if run.brought:
        remote_host.discard(hosts_of(pool, run), run.folder)
    for place in _places(pool):
        shutil.rmtree(place / run.key, ignore_errors=True)


def _places(pool: TransferContext) -> tuple[Path, Path]:
    host = pool.hosts[0]
    return places(host.folder, str(host.blobs))


def hosts_of(pool: TransferContext, run: Run) -> list[launch.Host]:
    """The hosts of a run's ranks; all where any of them may take it."""
    nodes = {rank // pool.spec.ranks_per_node for rank in run.outcomes}
    return [host for host in pool.hosts if not nodes or nodes & set(host.nodes)]


class _Shipping:
    """What both have: the machine that the notebook is on, where all is written first."""

    def __init__(self, pool: TransferContext, run: Run, on_send: Listener, tick: Tick) -> None:
        self.pool, self.run, self.on_send, self.tick = pool, run, on_send, tick
        self.kept = BlobCache(_places(pool), make=False)
        run.folder = self.kept.places[0] / run.id
        run.folder.mkdir(mode=0o700)

    def path(self, blob: Blob) -> str:
        """Where ranks find a blob, below the node's folders of blobs."""
        return f"{self.run.id}/{blob.digest}"

    def bring(self, blobs: Iterable[Blob]) -> None:
        """Bring blobs to all machines of the run."""
        raise NotImplementedError

    def cut(self) -> dict[str, dict[int, str]]:
        """Bring each rank its parts of what is cut, one after the other; their paths, by name and rank."""
        raise NotImplementedError

    def close(self) -> None:
        """All is where ranks find it."""

    def parts_of(self, ranks: Iterable[int]) -> Iterable[tuple[str, int, Blob]]:
        """Some ranks' parts of what is cut; each is made when its turn comes."""
        for rank in ranks:
            for one in self.run.capture.cut:
                yield one.name, rank, self.run.capture.part(one, rank)

    def write(self, parts: Sequence[BlobFile], folder: str = "") -> Path:
        """Write files into the run's folder, or into one in it, where there is room for all; that folder."""
        size = sum(part.size for part in parts)
        target = self.room(size) / self.run.id
        if target != self.run.folder:
            self.kept.make(target)
        if folder:
            target /= folder
            target.mkdir(mode=0o700)
        there, told = 0, time.monotonic()

        def tell(more: int) -> None:
            nonlocal there, told
            there += more
            if time.monotonic() - told > _TOLD or there == more:
                told = time.monotonic()
                text = f"writing values: {format_size(there)} of {format_size(size)}, {100 * there // size} %"
                self.on_send(ProgressEvent("writing values", text, there, size))
                self.tick()

        for part in parts:
            write_part(part, target, tell if size >= LEAST else _untold)
        return target

    def room(self, size: int) -> Path:
        """The place here for so many bytes: shared memory, or else the disk.

        Raises
        ------
        CaptureError
            When neither has room.
        """
        memory, disk = self.kept.places[0], self.pool.hosts[0].folder
        if shutil.disk_usage(memory).free > size + _SPARE_ROOM:
            return memory
        self.make_room(size + _SPARE_ROOM)
        for place, room in ((memory, memory), (self.kept.places[-1], disk)):
            if shutil.disk_usage(room).free > size + _SPARE_ROOM:
                return place
        free = format_size(shutil.disk_usage(disk).free)
        raise CaptureError(
            f"the cell needs {format_size(size)} for the notebook's values on the nodes, and "
            f"{format_size(_SPARE_ROOM)} to spare; {disk} has {free} free; make large values inside the cell, or set "
            "TMPDIR to a larger disk"
        )

    def make_room(self, size: int) -> None:
        """Have what no name holds dropped, where that is in the way."""

    def ask(self, call: AgentCall, nodes: Iterable[int], **arguments: Any) -> dict[int, Any]:
        """Ask agents while ``tick`` is called; NodeLost where one of them does not answer any more."""
        future = loop().submit(broadcast_tree.ask(self.pool.control, call, nodes, **arguments))
        try:
            with self.pool.watchdog.telling(self.on_send):
                wait_ticking(future, self.tick)
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _untold(size: int) -> None:
    """Of little, nothing is told."""


class _Here(_Shipping):
    """The nodes are this machine's: what is written is where they find it."""

    def bring(self, blobs: Iterable[Blob]) -> None:
        parts = {part.name: part for blob in blobs for part in blob.parts}
        large = {name: part.size for name, part in parts.items() if part.size >= LEAST}
        lacking = self.kept.link_into_run(self.run.id, large) if large else []
        there = large.keys() - set(lacking)
        if missing := [part for name, part in parts.items() if name not in there]:
            self.write(missing)
        self.kept.add(self.run.id, lacking)

    def cut(self) -> dict[str, dict[int, str]]:
        paths: dict[str, dict[int, str]] = {}
        for name, rank, blob in self.parts_of(self.run.outcomes):
            self.bring([blob])
            paths.setdefault(name, {})[rank] = self.path(blob)
            # One part at a time is in memory.
            del blob
        return paths

    def make_room(self, size: int) -> None:
        control, head = self.pool.control, self.pool.hosts[0].nodes[0]
        with contextlib.suppress(SkyError, FutureTimeout):
            loop().call(control.ask(rpc.MAKE_ROOM, [head], size=size))


class _Away(_Shipping):
    """The nodes are other machines: what one of them lacks is written here, and sent from here."""

    def bring(self, blobs: Iterable[Blob]) -> None:
        parts = [part for blob in blobs for part in blob.parts]
        if parts:
            self.run.brought = True
            hosts = hosts_of(self.pool, self.run)
            folder, lacking = self.stage(parts, hosts)
            if folder is not None:
                files.ship(self.pool, self.run, folder, hosts, self.on_send, self.tick)
            self.keep(hosts, lacking)

    def cut(self) -> dict[str, dict[int, str]]:
        if not self.run.capture.cut:
            return {}
        self.run.brought = True
        paths: dict[str, dict[int, str]] = {}
        small: list[tuple[launch.Host, Path]] = []
        for host in hosts_of(self.pool, self.run):
            for name, rank, blob in self.parts_of(self.ranks_of(host)):
                paths.setdefault(name, {})[rank] = self.path(blob)
                folder, lacking = self.stage(blob.parts, [host], f"{rank}-{name}")
                del blob
                if folder is not None and files.is_small(folder):
                    small.append((host, folder))
                elif folder is not None:
                    files.ship(self.pool, self.run, folder, [host], self.on_send, self.tick)
                    shutil.rmtree(folder)
                    self.keep([host], lacking)
        remote_host.send_each(small, self.run.id)
        return paths

    def close(self) -> None:
        # Nobody needs what was written here any more, however long the run is.
        for place in self.kept.places:
            shutil.rmtree(place / self.run.id, ignore_errors=True)

    def ranks_of(self, host: launch.Host) -> list[int]:
        """The run's ranks on a host."""
        return [rank for rank in self.run.outcomes if rank // self.pool.spec.ranks_per_node in host.nodes]

    def stage(
        self, parts: Sequence[BlobFile], hosts: Sequence[launch.Host], folder: str = ""
    ) -> tuple[Path | None, list[str]]:
        """Write what hosts lack into the run's folder here, or one in it; that folder, and the large files in it."""
        large = {part.name: part.size for part in parts if part.size >= LEAST}
        lacking: set[str] = set()
        if large:
            nodes = [node for host in hosts for node in host.nodes]
            lacking.update(*self.ask(rpc.LINK_BLOBS, nodes, run=self.run.id, files=large).values())
        missing = {part.name: part for part in parts if part.name in lacking or part.name not in large}
        return (self.write([*missing.values()], folder) if missing else None), sorted(lacking)

    def keep(self, hosts: Sequence[launch.Host], names: Sequence[str]) -> None:
        """Have hosts keep what they were sent."""
        if names:
            self.ask(
                rpc.STORE_BLOBS, [node for host in hosts for node in host.nodes], run=self.run.id, names=list(names)
            )


__all__ = ["discard", "hosts_of", "kept", "reading", "ship"]
