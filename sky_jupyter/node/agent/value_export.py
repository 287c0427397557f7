"""Transfer of ranks' values to the notebook, by calls of the manager.

A rank writes a value to a file, in shared memory if there is room. A notebook on the same machine maps that file; any
other gets it over the link. The file is removed once the manager has it, does not want it any more, or is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...util.background_tasks import BackgroundTasks
from .kernel_client import RankKernel

# Seconds that a reply waits for progress.
_LINGER = 0.15


@dataclass
class _Job:
    request: str
    rank: RankKernel
    places: list[Path]
    task: asyncio.Task[dict[str, Any]]
    # The turn of the call that began it.
    turn: list[Any]


class ValueExport:
    """Exports of a node's values; made by the agent.

    Parameters
    ----------
    node : int
        The node's number.
    folder : Path
        Folder for files that do not fit into shared memory.
    blobs : str
        The pool's folder in shared memory.
    ranks : mapping of int to RankKernel
        The node's ranks.
    """

    def __init__(self, node: int, folder: Path, blobs: str, ranks: Mapping[int, RankKernel]) -> None:
        self.folders = [Path(blobs), folder]
        self.name = f"value-{node}-"
        self.ranks = ranks
        self._jobs: dict[str, _Job] = {}
        self._releasing = BackgroundTasks()
        folder.mkdir(mode=0o700, exist_ok=True)
        # Left by an earlier agent of this node.
        for place in self.folders:
            for stale in place.glob(f"{self.name}*"):
                stale.unlink(missing_ok=True)

    async def sky_fetch_values(
        self, keys: dict[int, str], wanted: list[str], turn: list[Any], content: dict[str, Any]
    ) -> dict[int, Any]:
        """Start writing ranks' values to files; return the progress of each.

        A value that is being written already is not started again.

        Parameters
        ----------
        keys : dict of int to str
            The manager's key of each rank's fetch; ranks of other nodes are ignored.
        wanted : list of str
            All keys that the manager still wants; other fetches that earlier calls began are dropped.
        turn : list
            When the manager made the list: its generation, the number of the call, and a guest's id. Calls may overtake
            each other.
        content : dict
            Request to the rank; see `ResultStore.export`.

        Returns
        -------
        dict
            For each rank ``"waits"``, whether it is busy with something else; ``"there"`` and ``"total"``,
            bytes; and ``"end"``, its end event, once it has one.
        """
        # Another notebook's fetches must not be dropped.
        earlier = [key for key, job in self._jobs.items() if job.turn[2:] == turn[2:] and job.turn < turn]
        self._drop([key for key in earlier if key not in wanted])
        mine = {rank: key for rank, key in keys.items() if rank in self.ranks}
        for rank, key in mine.items():
            if key not in self._jobs:
                self._begin(rank, key, turn, content)
        left = [self._jobs[key].task for key in mine.values() if not self._jobs[key].task.done()]
        if left:
            await asyncio.wait(left, timeout=_LINGER)
        # A concurrent call may have dropped one.
        return {rank: self._facts(self._jobs[key]) for rank, key in mine.items() if key in self._jobs}

    async def sky_discard_values(self, keys: list[str]) -> None:
        """Drop fetches by key, and remove their files."""
        self._drop(keys)

    async def sky_release_value(self, run: str, ranks: Collection[int]) -> None:
        """Ask ranks to drop a run's value; do not wait for it."""
        for number in ranks:
            if number in self.ranks:
                content = {"kind": "release", "of": run}
                self._releasing.start(self.ranks[number].request(f"release-{run}-{number}", content))

    # -- parts -------------------------------------------------------------------------------------

    def _begin(self, number: int, key: str, turn: list[Any], content: dict[str, Any]) -> None:
        rank, request = self.ranks[number], f"fetch-{key}"
        places = [folder / f"{self.name}{key}" for folder in self.folders if folder.is_dir()]
        asked = {**content, "kind": "fetch", "places": list(map(str, places))}
        self._jobs[key] = _Job(request, rank, places, asyncio.create_task(rank.request(request, asked)), turn)

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            job = self._jobs.pop(key, None)
            if job is None:
                continue
            if not job.task.done():
                if job.rank.busy_with == job.request:
                    # A fetch only reads, so an interrupt does no harm.
                    if pid := job.rank.pid:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGINT)
                else:
                    # It is still queued.
                    job.task.cancel()
            job.task.add_done_callback(functools.partial(_remove, job.places))

    def _facts(self, job: _Job) -> dict[str, Any]:
        there = total = 0
        for path in job.places:
            with contextlib.suppress(OSError):
                info = os.stat(path)
                there, total = min(info.st_blocks * 512, info.st_size), info.st_size
        facts = {"waits": job.rank.busy_with not in (job.request, None), "there": there, "total": total}
        return {**facts, "end": job.task.result()} if job.task.done() else facts


def _remove(places: Iterable[Path], _: asyncio.Task[Any]) -> None:
    for path in places:
        path.unlink(missing_ok=True)
