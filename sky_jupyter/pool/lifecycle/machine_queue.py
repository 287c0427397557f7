"""Wait for machines in their provider's queue, with a line at each change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import MachineError, ProvisionError, SkyError
from ...providers.base import has_queue, provider_of
from ...providers.provisioning_types import PENDING, QUEUED, MachineRecord
from ...util.text import first_line, format_ranks
from ..base.timeouts import TIMEOUTS
from . import power_renewal

if TYPE_CHECKING:
    from ...providers.base import ConnectionSession
    from ...spec.pool_spec import PoolSpec

_PAUSE, _LONGEST_PAUSE = TIMEOUTS.machines.queue, TIMEOUTS.machines.longest_queue
# Machines that run already are kept on at this interval.
_POWER = TIMEOUTS.machines.power
_MOST_REASONS = 4


class QueuedTooLong(ProvisionError):
    """Raised when machines were queued for ``queue_timeout``; there is no retry."""


def wait(
    spec: PoolSpec,
    nodes: Mapping[str, int],
    session: ConnectionSession,
    tell: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
    ended: Mapping[str, str] | None = None,
) -> list[str]:
    """Wait until no machine is queued; return at once if the provider has no queue.

    Machines that run already are kept on meanwhile.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool.
    nodes : mapping of str to int
        The machines' ids, and their nodes.
    session : ConnectionSession
        For connections to those that run; its ``stop`` ends the wait.
    tell : callable
        Called with a line at each change; never if none is queued.
    is_over : callable
        Polled; returns whether the machines are not needed any more.
    ended : mapping of str to str, optional
        By id, incarnations that have ended: a machine that is still listed with its ended incarnation counts as queued.
        If given, the wait ends when the first machines are back.

    Returns
    -------
    list of str
        The machines that are not queued.

    Raises
    ------
    MachineError
        If a machine has ended, or the wait was stopped.
    ProvisionError
        If the provider refuses to answer, or other machines would end as one of these has.
    QueuedTooLong
        If the wait exceeds ``queue_timeout``.
    """
    if not has_queue(spec.provider) or not nodes:
        return list(nodes)
    told, pause, limit = "", _PAUSE, spec.options.queue_timeout
    began = kept = time.monotonic()
    while True:
        records = _asked(spec, list(nodes), tell if told else None)
        if records is not None:
            waiting = _waiting(records, ended or {})
            there = [id for id in nodes if id not in waiting]
            if not waiting or (there and ended is not None):
                return there
            line = _line(nodes, waiting)
            if line != told:
                tell(line)
                told, pause = line, _PAUSE
        if time.monotonic() - began > limit:
            raise QueuedTooLong(
                f"the machines have waited for {limit:g} s in their queue (Options(queue_timeout={limit:g})): {told}"
            )
        if session.stop.wait(pause) or is_over():
            raise MachineError(next(iter(nodes)), "closed", "stopped")
        pause = min(1.5 * pause, _LONGEST_PAUSE)
        if records is not None and time.monotonic() - kept > _POWER:
            kept = time.monotonic()
            _keep_on(spec, [one.id for one in records if one.is_usable and one.state not in (QUEUED, PENDING)], session)


def _asked(spec: PoolSpec, ids: Sequence[str], tell: Callable[[str], None] | None) -> Sequence[MachineRecord] | None:
    """Return the machines' records; without an answer, report that and return None.

    Without ``tell``, a missing answer is an error.
    """
    try:
        return provider_of(spec).describe(ids)
    except (MachineError, ProvisionError, OSError, TimeoutError) as error:
        if tell is None or (isinstance(error, ProvisionError) and not error.passing):
            raise
        tell(f"{spec.provider} did not answer, and is asked again: {first_line(error)}")
        return None


def _waiting(records: Sequence[MachineRecord], ended: Mapping[str, str]) -> dict[str, str]:
    """Return which machines are queued, and why.

    Raise MachineError if one has ended, and ProvisionError if any other would end in the same way.
    """
    found: dict[str, str] = {}
    for record in records:
        if record.hopeless:
            raise ProvisionError(f"{record.id} is {record.state}: {record.reason}")
        if not record.is_usable:
            raise MachineError(record.id, "closed", f"it is {record.state}: {record.reason or 'no reason is given'}")
        if record.state == QUEUED or (record.incarnation and record.incarnation == ended.get(record.id)):
            found[record.id] = " ".join(record.reason.split()) or QUEUED
    return found


def _line(nodes: Mapping[str, int], waiting: Mapping[str, str]) -> str:
    """Return how many machines run, and why the others do not."""
    reasons: dict[str, list[int]] = {}
    for id, why in waiting.items():
        reasons.setdefault(why, []).append(nodes[id])
    whys = [f"node{'s' if len(which) > 1 else ''} {format_ranks(which, ', ')}: {why}" for why, which in reasons.items()]
    more = f"; {len(whys) - _MOST_REASONS} more reasons" if len(whys) > _MOST_REASONS else ""
    return f"{len(nodes) - len(waiting)} of {len(nodes)} running, {'; '.join(whys[:_MOST_REASONS])}{more}"


def _keep_on(spec: PoolSpec, ids: Sequence[str], session: ConnectionSession) -> None:
    """Keep running machines on while others wait: no host renews power files yet."""
    file = getattr(spec.provider, "power_file", "")
    if not file or not ids:
        return
    with contextlib.suppress(SkyError, OSError, TimeoutError):
        machines = provider_of(spec).connect(ids, session)
        try:
            power_renewal.renew(machines, file)
        finally:
            for machine in machines:
                machine.close()


__all__ = ["QueuedTooLong", "wait"]
