"""Files that come to a node and go from it: what the manager asks of an agent, and agents of each other.

What crosses the notebook's link once is copied from node to node here, over the agents' own channels.
The kernels have no part in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed import rpc

from ..dask import scheduler
from ..kernel.project_modules import FOLDER
from ..protocol.host_config import HostConfig
from . import compare, staging
from .blob_cache import BlobCache, places
from .file_manifest import ManifestEntry, from_wire, pack, shown, to_wire, unpack, walk
from .open_folder import Beneath, forget
from .transfer import FileTransfer, Want, read

_CONNECT = 5.0
# A source that says nothing for this long is given up.
_PATIENCE = 60.0
# Shared memory is the node's memory: so much of it stays free, or the disk is used.
_SPARE = 64 << 20
_MOST_PLANS = 20
_SPOOL = "arriving"
# A run's folder has its id as its name; nothing else among the blobs is called like this.
_RUN = re.compile(r"[0-9a-f]{8}\Z")
# How often it is looked whether blobs that no name holds have become too many; more seldom where that found none.
_LOOK, _LAST_LOOK = 2.0, 20.0


class AgentSource:
    """Another node's files, asked of its agent; made with that one's address and the root there."""

    def __init__(self, address: str, root: str, security: Any) -> None:
        self._root = root
        self._rpc = rpc(address, timeout=_CONNECT, connection_args=security.get_connection_args("worker"))

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        """Parts of files, one behind the other."""
        asked = json.dumps([self._root, list(wants)]).encode()
        return bytes(await asyncio.wait_for(self._rpc.sky_read_pieces(asked=asked), _PATIENCE))

    async def close(self) -> None:
        """End the connections."""
        await self._rpc.close_rpc()


class FileService:
    """One an agent, made by it.

    Parameters
    ----------
    folder : Path
        The pool's folder on this machine.
    config : HostConfig
        Where relative paths begin, and where blobs are.
    """

    def __init__(self, folder: Path, config: HostConfig) -> None:
        self.folder, self.config = folder, config
        self._places = places(folder, config.blobs)
        self.kept = BlobCache(self._places, config.blob_limit)
        self._plans: dict[str, list[ManifestEntry]] = {}
        self._takes: dict[str, tuple[FileTransfer, asyncio.Task[None]]] = {}

    # -- what the manager asks ---------------------------------------------------------------------

    async def sky_compare_files(
        self, listing: bytes, path: bytes = b"", run: str = "", code: bool = False
    ) -> dict[str, Any]:
        """Where a file or folder would go, and what of it is there.

        Parameters
        ----------
        listing : bytes
            What it consists of, packed.
        path : bytes
            Where the user wants it, as `to_wire` gives it; a relative one begins in the ranks' working folder.
        run : str
            Instead of a path: the run whose blobs they are.
        code : bool
            Instead of a path: whether it is the notebook's own code.
        """

        def find() -> dict[str, Any]:
            entries = unpack(listing)
            root = self._place(path)
            if run:
                # What comes over the link is there until it is whole; on the same file system as the run's folder.
                root = self._room_for(run, entries)
                spool = root.parent / _SPOOL
            elif code:
                root, spool = self.folder / FOLDER, self.folder / f"{FOLDER}-{_SPOOL}"
            else:
                spool = staging.beside(root)
            facts = asdict(compare.diff(root, entries, spool))
            facts["clash"] = shown(facts["clash"])
            return {"path": to_wire(str(root)), "spool": to_wire(str(spool)), "spooled": os.path.isdir(spool), **facts}

        return await asyncio.to_thread(find)

    async def sky_prepare_transfer(self, plan: str, listing: bytes) -> None:
        """Keep the listing of what is to come, with its hashes, under a name for `sky_start_transfer`."""
        entries = await asyncio.to_thread(unpack, listing)
        while len(self._plans) >= _MOST_PLANS:
            # Its manager could not say that it is over; one that is not is given anew.
            del self._plans[next(iter(self._plans))]
        self._plans[plan] = entries

    async def sky_start_transfer(
        self, plan: str, job: str, path: bytes, source: dict[str, Any] | None = None, spool: bytes = b""
    ) -> bool:
        """Begin to take a plan's thing over to a path that `sky_compare_files` gave; False where there is no such plan.

        ``source`` is the address of another node's agent, and the path there; without one, what has
        come here by another way is looked at. A job that is known goes on as it is.
        """
        if plan not in self._plans:
            return False
        if job not in self._takes:
            over = [name for name, (_, task) in self._takes.items() if task.done()]
            for name in over[: max(0, len(over) - _MOST_PLANS)]:
                del self._takes[name]
            place = Path(from_wire(spool)) if spool else None
            take = FileTransfer(Path(from_wire(path)), self._plans[plan], self._source(source), place)
            self._takes[job] = take, asyncio.create_task(take.run())
        return True

    async def sky_transfer_status(self, jobs: list[str]) -> dict[str, dict[str, Any]]:
        """How far jobs are; one that is not known, as after this agent's death, is absent."""
        return {job: self._takes[job][0].status() for job in jobs if job in self._takes}

    async def sky_cancel_transfer(self, plan: str, jobs: list[str]) -> None:
        """Forget a plan and jobs, and end those that are on; what they have of a large file stays for the next."""
        self._plans.pop(plan, None)
        for job in jobs:
            _, task = self._takes.get(job, (None, None))
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                # Not before: until then, nobody else can write what it writes.
                self._takes.pop(job, None)

    async def sky_list_files(self, path: bytes) -> dict[str, Any]:
        """What a path of the user's is here: its whole path, and what it consists of; an error in words."""

        def find() -> dict[str, Any]:
            root = self._place(path)
            listing, why = b"", ""
            try:
                listing = pack(walk(root))
            except OSError as error:
                why = shown(error.strerror or str(error))
            return {"path": to_wire(str(root)), "listing": listing, "error": why}

        return await asyncio.to_thread(find)

    async def sky_delete_code(self, names: list[bytes]) -> None:
        """Remove files of the notebook's own code that it has no more."""
        with contextlib.suppress(FileNotFoundError), Beneath(self.folder / FOLDER) as folder:
            forget(folder, map(from_wire, names))

    async def sky_delete_blobs(self, keep: list[str]) -> None:
        """Remove the blobs of all runs but some."""

        def remove() -> None:
            for place in self._places:
                for path in place.iterdir() if place.is_dir() else ():
                    if _RUN.match(path.name) and path.name not in keep:
                        shutil.rmtree(path, ignore_errors=True)

        await asyncio.to_thread(remove)

    async def sky_link_blobs(self, run: str, files: dict[str, int]) -> list[str]:
        """Have a run find those of the files, with their sizes, that are on this machine; the names of the others."""
        return await asyncio.to_thread(self.kept.link_into_run, run, files)

    async def sky_store_blobs(self, run: str, names: list[str]) -> None:
        """Keep files of a run's for later runs."""
        await asyncio.to_thread(self.kept.add, run, names)

    async def sky_cache_stats(self) -> dict[str, int]:
        """How much is kept on this machine; see `BlobCache.facts`."""
        return await asyncio.to_thread(self.kept.stats)

    async def sky_make_room(self, size: int) -> int:
        """Make room in shared memory, of what no name holds; the bytes that were dropped."""
        return await asyncio.to_thread(self.kept.evict, size, self._places[0])

    async def look_after_blobs(self) -> None:
        """Drop blobs that no name holds where they are too many, for as long as the agent is there."""
        pause = _LOOK
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(OSError):
                dropped = await asyncio.to_thread(self.kept.evict)
                pause = _LOOK if dropped else min(pause * 1.3, _LAST_LOOK)

    # -- what other agents ask ---------------------------------------------------------------------

    async def sky_read_pieces(self, asked: bytes) -> bytes:
        """Parts of files below a root, one behind the other: the root and what is wanted, in JSON."""
        root, wants = json.loads(asked)
        return await asyncio.to_thread(read, Path(root), wants)

    # -- parts -------------------------------------------------------------------------------------

    def _source(self, source: dict[str, Any] | None) -> AgentSource | None:
        if source is None:
            return None
        return AgentSource(source["address"], from_wire(source["path"]), scheduler.security(self.folder))

    def _place(self, path: bytes) -> Path:
        return Path(os.path.normpath(Path(self.config.cwd, os.path.expanduser(from_wire(path)))))

    def _room_for(self, run: str, entries: Iterable[ManifestEntry]) -> Path:
        """The folder of a run's blobs where there is room for them; kernels find it in either place."""
        first, second = (place / run for place in self._places)
        if first == second:
            return first
        needs = compare.diff(first, list(entries)).needs + _SPARE
        if compare.room_at(first) < needs:
            self.kept.evict(needs, self._places[0])
        if compare.room_at(first) < needs and compare.room_at(second) >= needs - _SPARE:
            self.kept.make(second)
            return second
        return first
