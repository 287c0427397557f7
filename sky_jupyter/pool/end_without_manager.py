"""Program that ends a pool without a manager.

``python -m sky_jupyter.pool.end_without_manager ID`` prints the result as its last line; on failure, it prints the
reason to standard error and exits with status 1.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PoolError, SkyError
from ..node.protocol.host_config import HostConfig
from ..node.protocol.version import PROTOCOL
from ..util import process_identity
from .base.timeouts import TIMEOUTS
from .registry import folder_removal, machine_orders, remote_leftovers
from .registry.machine_sweep import end_pool_machines
from .registry.pool_record import PoolRecord, protocol_of
from .registry.registry import PoolRow, Registry, sweep

if TYPE_CHECKING:
    from ..machines.ssh.types import Prompts

_HOST_ENDS = TIMEOUTS.end.host_process


def end(registry: Registry, id: str, prompts: Prompts | None = None) -> str:
    """End the pool of this id; return the result as a message.

    Raises PoolError if another process manages it, or it cannot be reached. ``prompts`` asks for passphrases; by
    default nothing is asked.
    """
    sweep(registry)
    row = next((row for row in registry.pools() if row.id == id), None)
    if row is None:
        return "the pool has ended already"
    if row.is_local:
        _end_local(registry, row)
        return f"pool {row.name}: ended"
    unsure = _end_far(registry, row, prompts)
    told = f"; {', '.join(unsure)} did not answer: what runs there ends by its lease" if unsure else ""
    return f"pool {row.name}: ended{told}"


def end_named(name: str, prompts: Prompts | None = None) -> str | None:
    """End the pool of this name that no process manages; return the result.

    Returns None if there is no such pool, or this process manages it. Raises PoolError if another process manages it,
    or it cannot be reached or seen from here. ``prompts`` is as in `end`.
    """
    registry = Registry()
    try:
        row = registry.pool(name)
        return None if row is None or row.is_mine else end(registry, row.id, prompts)
    finally:
        registry.close()


def _end_hosts(registry: Registry, row: PoolRow) -> list[str]:
    """End the hosts of another version's pool; return those that may still run."""
    from .hosts import remote_host

    try:
        hosts = PoolRecord.hosts_of(row)
    except PoolError as error:
        raise PoolError(
            f"pool {row.name!r} was made by another version of Sky Jupyter, and only that can end it sooner than "
            f"its lease does: {error}"
        ) from None
    registry.own(row.id)
    try:
        link, there = remote_host.reopen(hosts, row.name, remote_leftovers.Traces(registry, row.id))
        unsure = remote_host.end_all(there)
        link.end()
    except BaseException:
        registry.release(row.id)
        raise
    if machine_orders.of(registry, row.id):
        _must_be_gone(registry, row, end_pool_machines(registry, row.id))
        return []
    folder_removal.remove(row.id, row.folders)
    registry.update(row.id, "ended")
    return sorted(host.name for host in unsure)


def _end_far(registry: Registry, row: PoolRow, prompts: Prompts | None) -> list[str]:
    """End a remote pool: by an attachment, else by the registry's records."""
    from .pool import Pool

    if protocol_of(row) not in (None, PROTOCOL):
        return _end_hosts(registry, row)
    try:
        pool = Pool.attach(row, prompts)
    except SkyError:
        if machine_orders.of(registry, row.id):
            registry.own(row.id)
            _must_be_gone(registry, row, end_pool_machines(registry, row.id))
            return []
        left = remote_leftovers.of(registry, row.id)
        if not left:
            raise
        registry.own(row.id)  # or raise: another process may manage it
        _, failed = remote_leftovers.end(registry, left, prompts)
        if len(failed) == len({trace.host for trace in left}):
            registry.release(row.id)
            raise
        folder_removal.remove(row.id, row.folders)
        registry.update(row.id, "ended")
        return sorted(failed)
    pool.down()
    _must_be_gone(registry, row, ["what was made"] if pool.unended is None else pool.unended)
    return pool.unsure


def _must_be_gone(registry: Registry, row: PoolRow, left: list[str]) -> None:
    """Raise PoolError if machines remain; the next sweep retries."""
    if left:
        registry.release(row.id)
        raise PoolError(f"machines of pool {row.name!r} could not be confirmed to end: {', '.join(left)}")


def _end_local(registry: Registry, row: PoolRow) -> None:
    """End a local pool by its host's process, without the pool's record."""
    registry.own(row.id)  # from now on no other process attaches to it
    host, patience = process_identity.ProcessIdentity(row.host_pid, row.host_started), _HOST_ENDS + _exit_timeout(row)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if row.host_lives:
            process_identity.send(host, number)
        row.host_ends_within(patience)
    if folder_removal.remove(row.id, row.folders) is None:
        registry.release(row.id)
        raise PoolError(f"pool {row.name!r} has a host that cannot be seen from here: it is ended where that runs")
    registry.update(row.id, "ended")


def _exit_timeout(row: PoolRow) -> float:
    """Return the seconds that ranks get for an orderly shutdown."""
    for folder in row.folders:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return HostConfig.read(Path(folder)).exit_timeout
    return 0.0


def main() -> int:
    """Run the program; return its exit status."""
    registry = Registry()
    try:
        print(end(registry, sys.argv[1]))
    except (SkyError, OSError) as error:
        text = str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
        print(" ".join(text.split()), file=sys.stderr)
        return 1
    finally:
        registry.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
