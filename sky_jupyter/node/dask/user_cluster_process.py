"""A plain Dask scheduler or worker beside an agent, for the user's own tasks.

    python -m sky_jupyter.node.dask.user_cluster_process FOLDER PARENT ADDRESS CWD [SCHEDULER NAME THREADS]

FOLDER is the pool's, which has its TLS keys, PARENT the process that it ends with, and CWD where tasks run. It
says its address as one line. Neither the pool's scheduler nor its agents ever unpickle what a user submits:
these do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import dask.config
from distributed import Scheduler, Worker

from ..system import processes
from .scheduler import WithoutHttp, listening_host, security

_SETTINGS = {
    "distributed.comm.require-encryption": True,
    "distributed.diagnostics.nvml": False,
}


class PlainScheduler(WithoutHttp, Scheduler):
    """The scheduler of the user's own tasks."""


class PlainWorker(WithoutHttp, Worker):
    """A worker for the user's own tasks, which run in its threads."""


async def serve(folder: Path, address: str, worker: list[str]) -> None:
    """Be a scheduler, or where a scheduler's address is given a worker of it, until the end."""
    server: Scheduler | Worker
    if worker:
        scheduler, name, threads = worker
        server = PlainWorker(
            scheduler,
            name=name,
            nthreads=int(threads),
            host=listening_host(address),
            security=security(folder),
            dashboard=False,
            local_directory=str(folder / "dask"),
        )
    else:
        server = PlainScheduler(
            protocol="tls", host=listening_host(address), port=0, dashboard=False, security=security(folder)
        )
    async with server:
        print(server.address, flush=True)
        # What tasks print goes to the log.
        os.dup2(2, 1)
        await server.finished()


def main() -> None:
    """Entry of ``python -m sky_jupyter.node.dask.user_cluster_process``."""
    folder, parent, address, cwd, *worker = sys.argv[1:]
    processes.die_with_parent(int(parent))
    dask.config.set({**_SETTINGS, "temporary-directory": folder})
    # Where the parent ends otherwise, its end of our input is closed.
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    os.chdir(cwd)
    # As in a rank: modules beside the notebook are found, and only now, when our own are imported.
    sys.path.insert(0, cwd)
    asyncio.run(serve(Path(folder), address, worker))


if __name__ == "__main__":
    main()
