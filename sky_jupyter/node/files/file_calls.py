"""Agent's file service: calls of the manager, and of other agents.

Files that came over the notebook's link to one node are copied from node to node over the agents' own channels. The
kernels take no part in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed import rpc

from ..dask import scheduler
from ..kernel.project_modules import FOLDER
from ..protocol.host_config import HostConfig
from . import browsed_files, complete_path, manifest_diff, staging
from .blob_cache import BlobCache, places
from .file_manifest import ManifestEntry, from_wire, pack, shown, to_wire, unpack, walk
from .open_folder import Beneath, forget
from .piece_transfer import FileTransfer, Want, read

_CONNECT = 5.0
# Seconds without an answer after which a source has failed.
_PATIENCE = 60.0
# Shared memory is the node's memory: so much of it stays free, otherwise the disk is used.
_SPARE = 64 << 20
_MOST_PLANS = 20
# Most folders and parts of files that are read at the same time for browsing.
_BROWSERS = 16
_SPOOL = "arriving"
# A run's folder is named by its id; no other entry among the blobs has this form.
_RUN = re.compile(r"[0-9a-f]{8}\Z")


class AgentSource:
    """Source of another node's files; calls that node's agent."""

    def __init__(self, address: str, root: str, security: Any) -> None:
        self._root = root
        self._rpc = rpc(address, timeout=_CONNECT, connection_args=security.get_connection_args("worker"))

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        """Read parts of files and return them concatenated."""
        asked = json.dumps([self._root, list(wants)]).encode()
        return bytes(await asyncio.wait_for(self._rpc.sky_read_pieces(asked=asked), _PATIENCE))

    async def close(self) -> None:
        """Close the connections."""
        await self._rpc.close_rpc()


class FileService:
    """File service of an agent.

    Parameters
    ----------
    folder : Path
        The pool's folder on this machine.
    config : HostConfig
        Configuration with the base of relative paths, and the folder of blobs.
    """

    def __init__(self, folder: Path, config: HostConfig) -> None:
        self.folder, self.config = folder, config
        self._places = places(folder, config.blobs)
        self.kept = BlobCache(self._places, config.blob_limit)
        self._plans: dict[str, list[ManifestEntry]] = {}
        self._takes: dict[str, tuple[FileTransfer, asyncio.Task[None]]] = {}
        # Separate threads, so that a file system that hangs does not block other work.
        self._readers = ThreadPoolExecutor(_BROWSERS, "browse")
        self._free = threading.Semaphore(_BROWSERS)

    # -- calls of the manager ----------------------------------------------------------------------

    async def sky_compare_files(
        self, listing: bytes, path: bytes = b"", run: str = "", code: bool = False
    ) -> dict[str, Any]:
        """Return a transfer's target path and what of its manifest is missing there.

        ``listing`` is the packed manifest. The target is ``path`` (as `to_wire` gives it; relative to the ranks'
        working folder), or the blobs of ``run``, or with ``code`` the folder of the project's modules.
        """

        def find() -> dict[str, Any]:
            entries = unpack(listing)
            root = self._place(path)
            if run:
                # Staging folder for files that come over the link; on the same file system as the run's folder.
                root = self._room_for(run, entries)
                spool = root.parent / _SPOOL
            elif code:
                root, spool = self.folder / FOLDER, self.folder / f"{FOLDER}-{_SPOOL}"
            else:
                spool = staging.beside(root)
            facts = asdict(manifest_diff.diff(root, entries, spool))
            facts["clash"] = shown(facts["clash"])
            return {"path": to_wire(str(root)), "spool": to_wire(str(spool)), "spooled": os.path.isdir(spool), **facts}

        return await asyncio.to_thread(find)

    async def sky_prepare_transfer(self, plan: str, listing: bytes) -> None:
        """Store a manifest with hashes under a name for `sky_start_transfer`."""
        entries = await asyncio.to_thread(unpack, listing)
        while len(self._plans) >= _MOST_PLANS:
            # Plans whose managers are gone stay here; an active plan is sent again.
            del self._plans[next(iter(self._plans))]
        self._plans[plan] = entries

    async def sky_start_transfer(
        self, plan: str, job: str, path: bytes, source: dict[str, Any] | None = None, spool: bytes = b""
    ) -> bool:
        """Start a plan's transfer to a path; False if the plan is unknown.

        The path is one that `sky_compare_files` returned. ``source`` is the address of another node's agent, and the
        path on that node. Without it, files that came to the staging folder are put in place. A known job is not
        started again.
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
        """Return the progress of jobs; an unknown one is absent, as after a restart."""
        return {job: self._takes[job][0].status() for job in jobs if job in self._takes}

    async def sky_cancel_transfer(self, plan: str, jobs: list[str]) -> None:
        """Forget a plan and cancel its jobs.

        Parts of large files stay for the next transfer.
        """
        self._plans.pop(plan, None)
        for job in jobs:
            _, task = self._takes.get(job, (None, None))
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                # Only now: before, another job could write the same files.
                self._takes.pop(job, None)

    async def sky_list_files(self, path: bytes) -> dict[str, Any]:
        """Return a path's manifest and its absolute path, or an error in words."""

        def find() -> dict[str, Any]:
            root = self._place(path)
            listing, why = b"", ""
            try:
                listing = pack(walk(root))
            except OSError as error:
                why = shown(error.strerror or str(error))
            return {"path": to_wire(str(root)), "listing": listing, "error": why}

        return await asyncio.to_thread(find)

    async def sky_complete_path(self, path: bytes) -> list[bytes]:
        """Return the sorted paths that begin with ``path``; folders end with a slash."""
        found = await asyncio.to_thread(complete_path.complete, from_wire(path), self.config.cwd)
        return list(map(to_wire, found))

    async def sky_list_folder(
        self, path: bytes, after: bytes = b"", most: int = browsed_files.MOST_ENTRIES
    ) -> dict[str, Any]:
        """Return a `browsed_files.page` of a folder, or an error's number and text."""
        place = str(self._place(path))
        found = await self._browse(lambda: browsed_files.page(place, from_wire(after), most))
        return {"path": to_wire(place), **found}

    async def sky_read_range(self, path: bytes, start: int, length: int) -> dict[str, Any]:
        """Return a part of a file as ``data``, or an error's number and text."""
        place = str(self._place(path))
        return await self._browse(lambda: {"data": browsed_files.read(place, start, length)})

    async def _browse(self, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return an answer or an error from a thread: the file system may block for ever."""
        if not self._free.acquire(blocking=False):
            return {"error": [errno.EBUSY, "a file system there does not answer, and all readers wait for it"]}

        def work() -> dict[str, Any]:
            try:
                return _or_error(do)
            finally:
                self._free.release()

        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def sky_delete_code(self, names: list[bytes]) -> None:
        """Remove project files that the notebook no longer has."""
        with contextlib.suppress(FileNotFoundError), Beneath(self.folder / FOLDER) as folder:
            forget(folder, map(from_wire, names))

    async def sky_delete_blobs(self, keep: list[str]) -> None:
        """Remove the blobs of all runs except some."""

        def remove() -> None:
            for place in self._places:
                for path in place.iterdir() if place.is_dir() else ():
                    if _RUN.match(path.name) and path.name not in keep:
                        shutil.rmtree(path, ignore_errors=True)

        await asyncio.to_thread(remove)

    async def sky_link_blobs(self, run: str, files: dict[str, int]) -> list[str]:
        """Link cached files into a run's folder; return the names that are missing.

        ``files`` maps names to sizes.
        """
        return await asyncio.to_thread(self.kept.link_into_run, run, files)

    async def sky_store_blobs(self, run: str, names: list[str]) -> None:
        """Cache files of a run for later runs."""
        await asyncio.to_thread(self.kept.add, run, names)

    async def sky_cache_stats(self) -> dict[str, int]:
        """Return the cache's sizes on this machine; see `BlobCache.stats`."""
        return await asyncio.to_thread(self.kept.stats)

    async def sky_make_room(self, size: int) -> int:
        """Evict unreferenced blobs from shared memory; return the bytes freed."""
        return await asyncio.to_thread(self.kept.evict, size, self._places[0])

    # -- calls of other agents ---------------------------------------------------------------------

    async def sky_read_pieces(self, asked: bytes) -> bytes:
        """Return parts of files below a root, concatenated.

        ``asked`` is JSON: the root and the parts.
        """
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
        """Return a run's blob folder with enough room; kernels search both places."""
        first, second = (place / run for place in self._places)
        if first == second:
            return first
        needs = manifest_diff.diff(first, list(entries)).needs + _SPARE
        if manifest_diff.room_at(first) < needs:
            self.kept.evict(needs, self._places[0])
        if manifest_diff.room_at(first) < needs and manifest_diff.room_at(second) >= needs - _SPARE:
            self.kept.make(second)
            return second
        return first


def _or_error(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return an answer, or an OSError's number and text for the manager to raise."""
    try:
        return do()
    except OSError as error:
        return {"error": [error.errno or 0, shown(error.strerror or str(error))]}
    except ValueError as error:
        # The path contains a zero character.
        return {"error": [errno.EINVAL, str(error)]}
