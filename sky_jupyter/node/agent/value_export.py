"""Values of ranks on their way to the notebook: what the manager asks of an agent.

A rank writes a value to a file, in shared memory where that has room. On this machine the notebook
maps that very file; from another one it comes over the link. The file is gone as soon as the manager
has it, or wants it no longer, or is another one.
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

from ...util.tasks import BackgroundTasks
from .kernel_client import RankKernel

# So long an answer waits for news.
_LINGER = 0.15


@dataclass
class _Job:
    request: str
    rank: RankKernel
    places: list[Path]
    task: asyncio.Task[dict[str, Any]]


class ValueExport:
    """One an agent, made by it.

    Parameters
    ----------
    node : int
        Its number.
    folder : Path
        Where files go for which shared memory has no room.
    blobs : str
        The pool's folder in shared memory.
    ranks : mapping of int to RankKernel
        The node's.
    """

    def __init__(self, node: int, folder: Path, blobs: str, ranks: Mapping[int, RankKernel]) -> None:
        self.folders = [Path(blobs), folder]
        self.name = f"value-{node}-"
        self.ranks = ranks
        self._jobs: dict[str, _Job] = {}
        self._releasing = BackgroundTasks()
        folder.mkdir(mode=0o700, exist_ok=True)
        # What an agent before this one left.
        for place in self.folders:
            for stale in place.glob(f"{self.name}*"):
                stale.unlink(missing_ok=True)

    async def sky_fetch_values(
        self, keys: dict[int, str], wanted: list[str], content: dict[str, Any]
    ) -> dict[int, Any]:
        """Have ranks write a value to a file, unless they are at it; how far each is.

        Parameters
        ----------
        keys : dict of int to str
            The ranks, those of this node among them, each with the name that the manager has for this.
        wanted : list of str
            All such names that it still wants.
        content : dict
            What a rank is asked for; see `ResultStore.export`.

        Returns
        -------
        dict
            For each rank ``"waits"``, whether it is busy with something else; ``"there"`` and ``"total"``,
            bytes; and ``"end"``, how it ended, once it has.
        """
        self._drop(key for key in list(self._jobs) if key not in wanted)
        mine = {rank: key for rank, key in keys.items() if rank in self.ranks}
        for rank, key in mine.items():
            if key not in self._jobs:
                self._begin(rank, key, content)
        left = [self._jobs[key].task for key in mine.values() if not self._jobs[key].task.done()]
        if left:
            await asyncio.wait(left, timeout=_LINGER)
        # One may have been dropped meanwhile.
        return {rank: self._facts(self._jobs[key]) for rank, key in mine.items() if key in self._jobs}

    async def sky_discard_values(self, keys: list[str]) -> None:
        """Forget what was asked for under these names, and remove the files."""
        self._drop(keys)

    async def sky_release_value(self, run: str, ranks: Collection[int]) -> None:
        """Have ranks let go of the value of a run, when they have time; nobody waits for it."""
        for number in ranks:
            if number in self.ranks:
                content = {"kind": "release", "of": run}
                self._releasing.start(self.ranks[number].request(f"release-{run}-{number}", content))

    # -- parts -------------------------------------------------------------------------------------

    def _begin(self, number: int, key: str, content: dict[str, Any]) -> None:
        rank, request = self.ranks[number], f"fetch-{key}"
        places = [folder / f"{self.name}{key}" for folder in self.folders if folder.is_dir()]
        asked = {**content, "kind": "fetch", "places": list(map(str, places))}
        self._jobs[key] = _Job(request, rank, places, asyncio.create_task(rank.request(request, asked)))

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            job = self._jobs.pop(key, None)
            if job is None:
                continue
            if not job.task.done():
                if job.rank.busy_with == job.request:
                    # What it holds is only read: there is no harm in a stop, but for what else it has started.
                    if pid := job.rank.pid:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGINT)
                else:
                    # It has not begun.
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
