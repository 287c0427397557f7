"""Process of a plain Dask scheduler or worker for the user's tasks.

    python -m sky_jupyter.node.dask.user_cluster_process FOLDER PARENT ADDRESS CWD [SCHEDULER NAME THREADS]

FOLDER is the pool's and has its TLS keys, PARENT is the process that it ends with, and CWD is where tasks run. It
prints its address as one line. These processes unpickle what a user submits; the pool's scheduler and agents never do.
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
    """Scheduler of the user's tasks."""


class PlainWorker(WithoutHttp, Worker):
    """Worker for the user's tasks, which run in its threads."""


async def serve(folder: Path, address: str, worker: list[str]) -> None:
    """Run a scheduler, or a worker of a given scheduler, until it ends."""
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
        # Tasks' output goes to the log.
        os.dup2(2, 1)
        await server.finished()


def main() -> None:
    """Run ``python -m sky_jupyter.node.dask.user_cluster_process``."""
    folder, parent, address, cwd, *worker = sys.argv[1:]
    processes.die_with_parent(int(parent))
    dask.config.set({**_SETTINGS, "temporary-directory": folder})
    # Without PDEATHSIG, the parent's end closes standard input.
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    os.chdir(cwd)
    # As in a rank, modules beside the notebook are importable; only now, after our own imports.
    sys.path.insert(0, cwd)
    asyncio.run(serve(Path(folder), address, worker))


if __name__ == "__main__":
    main()
