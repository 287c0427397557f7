"""Scheduler process of the head: Dask's over TLS, on one address and port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import dask.config
from distributed import Scheduler
from distributed.batched import BatchedSend
from distributed.comm import get_address_host_port
from distributed.http.routing import RoutingApplication
from distributed.scheduler import TaskState, WorkerState
from distributed.security import Security
from distributed.versions import get_versions
from tornado import netutil
from tornado.httpserver import HTTPServer

from ..system import processes
from . import shared_state_listener
from .pings import PingsMany
from .shared_state import SharedStateExtension

_LOOPBACK = "127.0.0.1"
# Settings of both sides of a connection: TLS only.
DASK_SETTINGS: dict[str, Any] = {
    "distributed.comm.require-encryption": True,
    # A broadcast would otherwise make a TLS connection to every agent each time.
    "distributed.scheduler.reuse-broadcast-comm": True,
    # Output passes as events of megabytes; the journal keeps it.
    "distributed.admin.low-level-log-length": 1,
    # It uses the wall clock, which may jump. Connections show which agents are alive, and the manager detects members
    # that do not answer.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.work-stealing": False,
    # Function calls are queued here until a rank is free: their durations are unknown.
    "distributed.scheduler.worker-saturation": 1.0,
    # Each call sets how often it may lose its node.
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
    # Both are unused, and would grow for hours.
    "distributed.admin.system-monitor.log-length": 10,
    "distributed.admin.log-length": 100,
    "distributed.diagnostics.nvml": False,
    # There is no web server; the modules of its pages would be imported.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


# Dask's names of the callbacks that measure its event loop and process, and of timeouts that are not set here.
_MEASUREMENTS = ("tick", "ticks", "monitor", "shift_counters", "idle-timeout", "no-workers-timeout")


class WithoutHttp:
    """Mixin for a Dask server without its web server.

    It would listen on another port, without encryption.
    """

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Set the attributes that Dask uses on stop; listen to nothing."""
        self.http_application = RoutingApplication([])
        self.http_server = HTTPServer(self.http_application)


class WithoutMeasurements:
    """Mixin for a Dask server without periodic work whose results nobody reads.

    An idle pool would spend a third of its time on it.
    """

    def start_periodic_callbacks(self) -> None:
        """Start the remaining callbacks."""
        for name in _MEASUREMENTS:
            self.periodic_callbacks.pop(name, None)  # type: ignore[attr-defined]
        super().start_periodic_callbacks()  # type: ignore[misc]


# Prefix of function calls' task keys, and the annotation that says how often a call may lose its node.
CALL, RETRIES = "sky-call", "sky_retries"


class PoolScheduler(PingsMany, WithoutHttp, WithoutMeasurements, Scheduler):
    """Scheduler of a pool."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commons = SharedStateExtension(self)
        self.serve_pings()

    def is_pinged(self, address: str) -> bool:
        """Return whether an agent is connected."""
        return address in self.workers

    def is_rootish(self, ts: TaskState) -> bool:
        """Return True if a task is queued until a worker is free.

        Besides Dask's rule, this holds for any function call that may run on any rank.
        """
        call = isinstance(ts.key, str) and ts.key.startswith(CALL)
        anywhere = not (ts.resource_restrictions or ts.worker_restrictions or ts.host_restrictions)
        return (call and anywhere) or super().is_rootish(ts)

    async def add_worker(self, comm: Any, *, address: str, **facts: Any) -> None:
        """Add a worker; refuse an address in use at once, so that it retries.

        This happens when an agent reconnects, at a fixed address, before its former connection is known to have ended.
        Dask would let it wait for ever.
        """
        if comm is not None and self.coerce_address(address) in self.workers:
            await comm.write({"status": "error", "message": f"there is a worker at {address}", "time": time.time()})
            return
        for ts in self.unrunnable:
            # These tasks were to continue on their node, and no other node was there: Dask would wait only for that
            # address.
            if ts.loose_restrictions:
                ts.worker_restrictions, ts.loose_restrictions = set(), False
        await super().add_worker(comm, address=address, **facts)

    async def remove_worker(self, address: str, **how: Any) -> Any:
        """Remove a worker; fail its calls that may not lose another node."""
        worker = self.workers.get(address)
        if worker is not None and not how.get("expected"):
            self._end_calls(worker)
        return await super().remove_worker(address, **how)

    def _end_calls(self, worker: WorkerState) -> None:
        for ts in worker.processing:
            if _at_its_end(ts):
                ts.suspicious = self.allowed_failures
        for ts in worker.has_what:
            # It has finished, and its result is on this worker only. Without its run_spec it cannot be repeated.
            if _at_its_end(ts) and len(ts.who_has or ()) == 1:
                ts.run_spec = None


def _at_its_end(ts: TaskState) -> bool:
    retries = (ts.annotations or {}).get(RETRIES)
    return retries is not None and ts.suspicious >= retries


def listening_host(address: str) -> str:
    """Return an address for Dask's ``host``, with IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def security(folder: Path) -> Security:
    """Return the pool's TLS settings, from files in the pool's folder."""
    names = {
        f"tls_{role}_{part}": str(folder / f"pool.{part}")
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=str(folder / "pool.ca"), require_encryption=True, **names)


def patch_batched_send() -> None:
    """Patch Dask's batched streams to send whatever the wall clock says.

    A stream stores the time of day before which it sends nothing more, some milliseconds ahead; after the clock is set
    back, that is hours ahead. Without a deadline it sends at once, and batches what arrives while it writes. Each
    process with such streams calls this function.
    """
    BatchedSend.next_deadline = property(_none, _forget)


def _none(stream: BatchedSend) -> None:
    """Return None: no deadline."""


def _forget(stream: BatchedSend, deadline: float | None) -> None:
    """Ignore a deadline that Dask sets."""


def prepare_forks() -> None:
    """Do once what each forked Dask process would otherwise do as it starts."""
    get_versions()
    # Tornado makes a context with the system's certificates at a server's first connection, though it is not needed. On
    # other systems, that may start a thread; earlier versions of Tornado have made it at their import.
    if sys.platform == "linux" and callable(make := netutil._client_ssl_defaults):
        make()


def serve(folder: Path, address: str, port: int, write: int) -> None:
    """Run the scheduler until it ends; write its address to descriptor ``write``.

    If ``port`` is 0, a free port is used.
    """
    dask.config.set({**DASK_SETTINGS, "temporary-directory": str(folder)})
    patch_batched_send()
    processes.allow_many_files()
    asyncio.run(_serve(folder, address, port, write))


async def _serve(folder: Path, address: str, port: int, write: int) -> None:
    async with PoolScheduler(
        protocol="tls", host=listening_host(address), port=port, dashboard=False, security=security(folder)
    ) as scheduler:
        await _listen_on_loopback(scheduler)
        _listener = shared_state_listener.listen(scheduler.commons, folder)
        os.write(write, f"{scheduler.address}\n".encode())
        os.close(write)
        await scheduler.finished()


async def _listen_on_loopback(scheduler: PoolScheduler) -> None:
    """Listen on the same port of loopback too: port forwards to a pod need it.

    If another process has that port on loopback, the manager must reach the scheduler's own address.
    """
    host, port = get_address_host_port(scheduler.address)
    if host == _LOOPBACK:
        return
    with contextlib.suppress(OSError):
        await scheduler.listen(
            f"tls://{_LOOPBACK}:{port}",
            allow_offload=False,
            handshake_overrides={"pickle-protocol": 4, "compression": None},
            **scheduler.security.get_listen_args("scheduler"),
        )
