"""The scheduler process of the head: Dask's own, over TLS, on one address and a free port."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import dask.config
from distributed import Scheduler
from distributed.http.routing import RoutingApplication
from distributed.scheduler import TaskState, WorkerState
from distributed.security import Security
from tornado.httpserver import HTTPServer

from .monotonic_batching import patch_batched_send
from .shared_state import SharedStateExtension

# The default for both sides: certificates of the pool only, nothing in the clear.
DASK_SETTINGS: dict[str, Any] = {
    "distributed.comm.require-encryption": True,
    # A broadcast would otherwise make a TLS connection to every agent each time.
    "distributed.scheduler.reuse-broadcast-comm": True,
    # Output passes through events, megabytes each; the journal is what keeps it.
    "distributed.admin.low-level-log-length": 1,
    # Counted by the clock of the machine, which may be set; who is there is seen by the connections,
    # and who does not answer is the manager's to notice.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.work-stealing": False,
    # A function call waits here until a rank is free for it: nobody knows how long the one before takes.
    "distributed.scheduler.worker-saturation": 1.0,
    # How often a call may lose its node is for each to say.
    "distributed.scheduler.allowed-failures": 1000,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.tick.limit": "30s",
    "distributed.admin.system-monitor.interval": "2s",
    # Nobody looks at either; as they are, they fill for hours.
    "distributed.admin.system-monitor.log-length": 10,
    "distributed.admin.log-length": 100,
    "distributed.diagnostics.nvml": False,
}


class WithoutHttp:
    """A Dask server without its web server, which would listen on one port more, in the clear."""

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Nothing is listened to; what Dask looks for when it stops is there."""
        self.http_application = RoutingApplication([])
        self.http_server = HTTPServer(self.http_application)


# What the names of function calls, as tasks, begin with; which note says how often one may lose its node.
CALL, RETRIES = "sky-call", "sky_retries"


class PoolScheduler(WithoutHttp, Scheduler):
    """A pool's scheduler."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commons = SharedStateExtension(self)

    def is_rootish(self, ts: TaskState) -> bool:
        """Whether a task waits for a free place: Dask's rule, and any function call that may be on any rank."""
        call = isinstance(ts.key, str) and ts.key.startswith(CALL)
        anywhere = not (ts.resource_restrictions or ts.worker_restrictions or ts.host_restrictions)
        return (call and anywhere) or super().is_rootish(ts)

    async def add_worker(self, comm: Any, *, address: str, **facts: Any) -> None:
        """Take a worker in, or tell it at once that its address is taken: Dask would have it wait for ever.

        So it is where an agent is back before its former connection is seen to be gone, at an address that stays.
        """
        if comm is not None and self.coerce_address(address) in self.workers:
            await comm.write({"status": "error", "message": f"there is a worker at {address}", "time": time.time()})
            return
        await super().add_worker(comm, address=address, **facts)

    async def remove_worker(self, address: str, **how: Any) -> Any:
        """Let a worker go; of the calls that it had, those that may not lose another are not begun again."""
        worker = self.workers.get(address)
        if worker is not None and not how.get("expected"):
            self._end_calls(worker)
        return await super().remove_worker(address, **how)

    def _end_calls(self, worker: WorkerState) -> None:
        for ts in worker.processing:
            if _at_its_end(ts):
                ts.suspicious = self.allowed_failures
        for ts in worker.has_what:
            # It is over, and what it answered is nowhere else. Without its function it cannot be done again.
            if _at_its_end(ts) and len(ts.who_has or ()) == 1:
                ts.run_spec = None


def _at_its_end(ts: TaskState) -> bool:
    retries = (ts.annotations or {}).get(RETRIES)
    return retries is not None and ts.suspicious >= retries


def listening_host(address: str) -> str:
    """Return an address as Dask takes it for ``host``: IPv6 ones go in brackets."""
    return f"[{address}]" if ":" in address else address


def security(folder: Path) -> Security:
    """The pool's TLS material, as the manager laid it into the pool's folder."""
    names = {
        f"tls_{role}_{part}": str(folder / f"pool.{part}")
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=str(folder / "pool.ca"), require_encryption=True, **names)


def serve(folder: Path, address: str, port: int, write: int) -> None:
    """Run the scheduler until the process ends; its address goes to the file descriptor ``write``.

    A ``port`` of 0 is a free one.
    """
    dask.config.set({**DASK_SETTINGS, "temporary-directory": str(folder)})
    patch_batched_send()
    asyncio.run(_serve(folder, address, port, write))


async def _serve(folder: Path, address: str, port: int, write: int) -> None:
    async with PoolScheduler(
        protocol="tls", host=listening_host(address), port=port, dashboard=False, security=security(folder)
    ) as scheduler:
        os.write(write, f"{scheduler.address}\n".encode())
        os.close(write)
        await scheduler.finished()
