"""Incarnations of machines: one may come back under its id without its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import MachineError, Unanswered
from ...providers.base import has_queue, provider_of
from ...util.text import first_line

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ...providers.base import ConnectionSession
    from ...providers.provisioning_types import MachineRecord
    from ...spec.pool_spec import PoolSpec


def described(spec: PoolSpec, ids: Sequence[str]) -> Sequence[MachineRecord]:
    """Return the provider's records of machines; raise Unanswered if it is silent."""
    try:
        return provider_of(spec).describe(ids) if ids else ()
    except (OSError, TimeoutError) as error:
        raise Unanswered(f"{spec.provider} did not answer: {first_line(error)}") from error


def connect(spec: PoolSpec, ids: Sequence[str], session: ConnectionSession) -> tuple[list[Machine], dict[str, str]]:
    """Connect to machines; return them and, if they can queue, incarnations by id.

    Raises MachineError also if a machine came back meanwhile: the connection may be to either incarnation.
    """
    before = read(spec, ids)
    machines = list(provider_of(spec).connect(ids, session))
    try:
        after = read(spec, ids)
        if changed := [id for id in ids if before.get(id) != after.get(id)]:
            raise MachineError(changed[0], "closed", "it restarted while it was connected to")
    except BaseException:
        for machine in machines:
            machine.close()
        raise
    return machines, after


def read(spec: PoolSpec, ids: Sequence[str]) -> dict[str, str]:
    """Return machines' incarnations by id; empty if the provider has no queue."""
    if not has_queue(spec.provider):
        return {}
    return {record.id: record.incarnation for record in described(spec, ids) if record.incarnation}


def is_another(record: MachineRecord, known: Mapping[str, str]) -> bool:
    """Return whether a machine is another incarnation than the known one."""
    before = known.get(record.id, "")
    return bool(before and record.incarnation and record.incarnation != before)


__all__ = ["connect", "described", "is_another", "read"]
