"""Nodes as processes of the notebook's own machine: the default, with nothing to set up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ProvisionError
from ..machines.local import LocalMachine
from ..node import accelerators
from ..spec import PoolSpec
from .base import MachineRecord, Offer


@dataclass(frozen=True)
class Local:
    """Local nodes. They share the machine, its memory and its accelerators."""

    kind = "local"
    minds = ()
    makes = False

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """This machine, for nothing."""
        return [Offer("this machine", 0.0)]

    def create(self, spec: PoolSpec, count: int, pool: str) -> Sequence[str]:
        """Ids only: the processes come with the host, which ends with the pool.

        Raises
        ------
        ProvisionError
            When the spec asks for accelerators that this machine does not have.
        """
        if spec.accelerator is not None:
            have = accelerators.present({**os.environ, **spec.full_image.env})
            each = f"each of {count} nodes, which share this machine" if count > 1 else "each node"
            if have.of_kind(spec.accelerator.kind) < spec.accelerator.count * count:
                raise ProvisionError(f"the pool needs {spec.accelerator} on {each}; this machine has {have}")
            if not have.can_be_shared(count * spec.ranks_per_node):
                raise ProvisionError(accelerators.why_not_shared(have, count * spec.ranks_per_node))
        return [f"{pool}-{number}" for number in range(count)]

    def list(self, pool: str) -> Sequence[MachineRecord]:
        """Nothing outlives the host, so there is nothing to find."""
        return []

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Always there."""
        return [MachineRecord(id, "running") for id in ids]

    def destroy(self, ids: Sequence[str]) -> None:
        """Nothing to do beyond the host's own end."""

    def connect(self, id: str) -> LocalMachine:
        """The notebook's machine."""
        return LocalMachine()

    def __str__(self) -> str:
        return "local"
