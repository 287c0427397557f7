"""Machines that have ended or restarted, as the provider that made them says."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import SkyError
from ...providers.base import has_queue
from ...providers.provisioning_types import PENDING, QUEUED
from . import incarnations

if TYPE_CHECKING:
    from ...providers.provisioning_types import MachineRecord
    from ...spec.pool_spec import PoolSpec


@dataclass(frozen=True)
class Loss:
    """End of all that ran on a machine.

    Attributes
    ----------
    why : str
        What happened, for a message.
    returns : bool
        Whether the machine comes back under its id, or has.
    """

    why: str
    returns: bool


def loss_of(spec: PoolSpec, ids: Sequence[str], known: Mapping[str, str]) -> Loss | None:
    """Return how one of these machines ended or restarted, if its provider says so.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool.
    ids : sequence of str
        The machines.
    known : mapping of str to str
        The incarnations that the pool has been prepared on, by id.

    Returns
    -------
    Loss or None
        The first loss.
    """
    with contextlib.suppress(SkyError):
        for record in incarnations.described(spec, ids):
            if (loss := _loss(spec, record, known)) is not None:
                return loss
    return None


def why_ended(spec: PoolSpec, ids: Sequence[str], known: Mapping[str, str]) -> str:
    """Return why everything on one of these machines ended, or ""; see `loss_of`."""
    loss = loss_of(spec, ids, known)
    return loss.why if loss is not None else ""


def _loss(spec: PoolSpec, record: MachineRecord, known: Mapping[str, str]) -> Loss | None:
    reason = f" ({' '.join(record.reason.split())})" if record.reason else ""
    if not record.is_usable:
        return Loss(f"its machine has ended{reason}", returns=False)
    if not has_queue(spec.provider):
        return None
    if incarnations.is_another(record, known):
        return Loss(f"its machine has restarted{reason}", returns=True)
    # A machine was running when it was prepared: if it is pending now, its processes are gone.
    if record.state in (QUEUED, PENDING):
        return Loss(f"its machine was taken away{reason}; it restarts as soon as it is back", returns=True)
    return None


__all__ = ["Loss", "loss_of", "why_ended"]
