"""Shipping of a run's values to its ranks, unless nodes have them."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...capture.blobs import Blob, BlobFile, write_part
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
# The limit of characters of the values' names in the run's log.
_MOST_NAMES = 200
# The interval of progress reports.
_TOLD = TIMEOUTS.polls.progress


def ship(pool: TransferContext, run: Run, call: Blob | None, on_send: Listener, tick: Tick) -> dict[str, Any]:
    """Send a run's values to its machines; return the paths for its ranks.

    Raises CaptureError if there is no room for them, or they cannot be sent.
    """
    kind = _Away if pool.machines else _Here
    shipping = kind(pool, run, on_send, tick)
    blobs = [*run.capture.blobs, *([call] if call is not None else [])]
    values = [one for one in run.capture.bindings if one.blob is not None]
    began = time.perf_counter()
    shipping.bring(blobs)
    told: dict[str, Any] = {"manifest": run.capture.manifest(shipping.path, shipping.cut())}
    if values:
        names = ", ".join(one.name for one in values)[:_MOST_NAMES]
        run.events.note("sent", names, seconds=time.perf_counter() - began, bytes=shipping.sent)
    for one in values:
        run.events.note("value", one.name, bytes=one.blob.size if one.blob is not None else None)
    shipping.close()
    if call is not None:
        told["blob"] = shipping.path(call)
    return told


def kept(pool: TransferContext) -> dict[str, int] | None:
    """Return `BlobCache.stats` of the machine with the fullest cache."""
    nodes = [host.nodes[0] for host in pool.hosts if host.nodes[0] not in pool.control.lost]
    with contextlib.suppress(SkyError, FutureTimeout, OSError):
        found = loop().call(broadcast_tree.ask(pool.control, rpc.CACHE_STATS, nodes))
        return max(found.values(), key=lambda facts: facts["kept"], default=None)
    return None


def discard(pool: TransferContext, run: Run) -> None:
    """Remove a run's folders; kernels keep the blobs mapped."""
    if not pool.hosts:
        # The hosts have ended, and removed their folders.
        return
    if run.brought:
        remote_host.discard(hosts_of(pool, run), run.folder)
    for place in _places(pool):
        shutil.rmtree(place / run.key, ignore_errors=True)


def _places(pool: TransferContext) -> tuple[Path, Path]:
    host = pool.hosts[0]
    return places(host.folder, host.blobs)


def hosts_of(pool: TransferContext, run: Run) -> list[launch.Host]:
    """Return the hosts of a run's ranks (all if none are chosen) that are not off."""
    nodes = {rank // pool.spec.ranks_per_node for rank in run.outcomes}
    off = pool.control.off if pool.has_control else set()
    return [host for host in pool.hosts if (not nodes or nodes & set(host.nodes)) and not off >= set(host.nodes)]


class _Shipping:
    """Shipping of one run's values: all are written to this machine first."""

    def __init__(self, pool: TransferContext, run: Run, on_send: Listener, tick: Tick) -> None:
        self.pool, self.run, self.on_send, self.tick = pool, run, on_send, tick
        # Bytes that the nodes lacked.
        self.sent = 0
        self.kept = BlobCache(_places(pool), make=False)
        # Made with the first file in it.
        run.folder = self.kept.places[0] / run.id

    def path(self, blob: Blob) -> str:
        """Return a blob's path below the node's folders of blobs."""
        return f"{self.run.id}/{blob.digest}"

    def bring(self, blobs: Iterable[Blob]) -> None:
        """Send blobs to all machines of the run."""
        raise NotImplementedError

    def cut(self) -> dict[str, dict[int, str]]:
        """Send each rank its shards; return name -> rank -> path."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what is no longer needed here."""

    def parts_of(self, ranks: Iterable[int]) -> Iterable[tuple[str, int, Blob]]:
        """Yield (name, rank, blob) of sharded values, each made on demand."""
        for rank in ranks:
            for one in self.run.capture.cut:
                yield one.name, rank, self.run.capture.part(one, rank)

    def write(self, parts: Sequence[BlobFile], folder: str = "") -> Path:
        """Write files into the run's folder, or one in it; return it."""
        size = sum(part.size for part in parts)
        self.sent += size
        target = self.room(size) / self.run.id
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
        """Return a local folder with room, in memory or else on disk.

        Raises CaptureError if neither has room.
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
        """Evict unused blobs from the cache if they are in the way."""

    def ask(self, call: AgentCall, nodes: Iterable[int], **arguments: Any) -> dict[int, Any]:
        """Call agents, with ticks; raise NodeLost for silent ones."""
        future = loop().submit(broadcast_tree.ask(self.pool.control, call, nodes, **arguments))
        try:
            with self.pool.watchdog.telling(self.on_send):
                wait_ticking(future, self.tick)
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _untold(size: int) -> None:
    """Report nothing: small values are written at once."""


class _Here(_Shipping):
    """Shipping to local nodes, which find the files where they are written."""

    def bring(self, blobs: Iterable[Blob]) -> None:
        parts = {part.name: part for blob in blobs for part in blob.parts}
        large = {name: part.size for name, part in parts.items() if part.size >= LEAST}
        lacking = self.kept.link_into_run(self.run.id, large) if large else []
        there = large.keys() - set(lacking)
        if missing := [part for name, part in parts.items() if name not in there]:
            self.write(missing)
        if lacking:
            self.kept.add(self.run.id, lacking)

    def cut(self) -> dict[str, dict[int, str]]:
        paths: dict[str, dict[int, str]] = {}
        for name, rank, blob in self.parts_of(self.run.outcomes):
            self.bring([blob])
            paths.setdefault(name, {})[rank] = self.path(blob)
            # Only one part at a time is in memory.
            del blob
        return paths

    def make_room(self, size: int) -> None:
        control, head = self.pool.control, self.pool.hosts[0].nodes[0]
        with contextlib.suppress(SkyError, FutureTimeout):
            loop().call(control.ask(rpc.MAKE_ROOM, [head], size=size))


class _Away(_Shipping):
    """Shipping to remote nodes: what they lack is written here, then sent."""

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
        # The local files are not needed during the run.
        for place in self.kept.places:
            shutil.rmtree(place / self.run.id, ignore_errors=True)

    def ranks_of(self, host: launch.Host) -> list[int]:
        """Return the run's ranks on a host."""
        return [rank for rank in self.run.outcomes if rank // self.pool.spec.ranks_per_node in host.nodes]

    def stage(
        self, parts: Sequence[BlobFile], hosts: Sequence[launch.Host], folder: str = ""
    ) -> tuple[Path | None, list[str]]:
        """Write what hosts lack into the run's folder here, or a folder in it.

        Returns the folder, None if nothing is lacking, and the names of its large files.
        """
        large = {part.name: part.size for part in parts if part.size >= LEAST}
        lacking: set[str] = set()
        if large:
            nodes = [node for host in hosts for node in host.nodes]
            lacking.update(*self.ask(rpc.LINK_BLOBS, nodes, run=self.run.id, files=large).values())
        missing = {part.name: part for part in parts if part.name in lacking or part.name not in large}
        return (self.write([*missing.values()], folder) if missing else None), sorted(lacking)

    def keep(self, hosts: Sequence[launch.Host], names: Sequence[str]) -> None:
        """Add sent blobs to the hosts' caches."""
        if names:
            self.ask(
                rpc.STORE_BLOBS, [node for host in hosts for node in host.nodes], run=self.run.id, names=list(names)
            )


__all__ = ["discard", "hosts_of", "kept", "ship"]
