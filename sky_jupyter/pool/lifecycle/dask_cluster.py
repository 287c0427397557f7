"""The user's own Dask cluster on a pool: scheduler, workers and client.

They are separate processes in the pool's environment, under its TLS keys. The control plane's scheduler and
agents never unpickle what is submitted here.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import TYPE_CHECKING, Protocol

from ...errors import NodeLost, PoolError
from ...node.protocol import rpc
from ..base.event_loop import loop
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext

if TYPE_CHECKING:
    from distributed import Client


_PATIENCE = TIMEOUTS.start.dask
_CLOSE = TIMEOUTS.end.dask_client


class DaskContext(PoolContext, Protocol):
    """The pool, and the machines that its head does not reach."""

    @property
    def apart(self) -> dict[str, str]:
        """The machines that the head does not reach, each with a description."""
        ...


class PoolDask:
    """Dask cluster of one pool; started by the first call of `client`."""

    def __init__(self, pool: DaskContext) -> None:
        self._pool = pool
        self._client: Client | None = None
        # The agents' incarnations when it was made: an agent that came later has no worker beside it.
        self._agents: dict[int, str] = {}
        self._lock = threading.Lock()

    def client(self) -> Client:
        """Return a client of the workers; raise PoolError if impossible."""
        pool = self._pool
        pool.require_live()
        if not pool.spec.options.cluster:
            raise PoolError(f"pool {pool.spec.name!r} has no Dask workers: its nodes are independent (cluster=False)")
        with self._lock:
            control = pool.control
            agents = dict(control.incarnations)
            if self._client is None or self._client.status != "running" or agents != self._agents:
                self._close()
                self._client, self._agents = self._connect(), agents
            return self._client

    def _connect(self) -> Client:
        import dask.config
        from distributed import Client

        from ...node.dask import scheduler

        pool = self._pool
        control = pool.control
        apart = pool.apart
        nodes = [node for host in pool.hosts for node in host.nodes if host.name not in apart]
        try:
            address = str(loop().call(control.ask(rpc.START_DASK, [0]))[0])
            loop().call(control.ask(rpc.START_DASK, nodes, scheduler=address))
        except (NodeLost, RuntimeError, OSError) as error:
            raise PoolError(f"the Dask workers of pool {pool.spec.name!r} did not start: {error}") from None
        settings = {"distributed.comm.require-encryption": True}
        with dask.config.set(settings), warnings.catch_warnings():
            # The pool itself reports versions that differ, where that matters.
            warnings.filterwarnings("ignore", message="Mismatched versions found")
            client = Client(
                pool.hosts[0].reach(address),
                security=scheduler.security(pool.hosts[0].folder),
                set_as_default=False,
                name="sky-dask",
            )
        try:
            client.wait_for_workers(len(nodes), timeout=_PATIENCE)
        except BaseException:
            _end(client)
            raise
        return client

    def close(self) -> None:
        """Close the client; the workers end with their agents."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            _end(client)


def _end(client: Client) -> None:
    with contextlib.suppress(Exception):
        client.close(timeout=_CLOSE)
