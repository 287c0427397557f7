"""Costs of machines for which a provider knows only a price per hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .provisioning_types import QUEUED, STOPPED, Charge, MachineRecord

HOUR = 3600.0


def by_the_hour(records: Sequence[MachineRecord], at: float) -> list[Charge]:
    """Return ``hourly`` times the time since ``launched``; see `Provisioner.costs`."""
    return [_charge(record, at) for record in records]


def of(provider: Any, records: Sequence[MachineRecord], at: float) -> list[Charge]:
    """Return a provider's `costs`; `by_the_hour` if it has none."""
    return list(getattr(provider, "costs", by_the_hour)(records, at))


def _charge(record: MachineRecord, at: float) -> Charge:
    if record.hourly is None or record.launched is None or record.state in (QUEUED, STOPPED):
        return Charge()
    return Charge(record.hourly, record.hourly * max(0.0, at - record.launched) / HOUR)


__all__ = ["HOUR", "by_the_hour", "of"]
