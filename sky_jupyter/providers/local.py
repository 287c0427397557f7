"""Local provider: nodes as processes of the notebook's own machine, the default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ProvisionError, SpecError
from ..machines.local_machine import LocalMachine
from ..node.system import gpus
from ..spec.pool_spec import PoolSpec
from .base import ConnectionSession, MachineRecord, Offer, Order

# Number of ranks that any machine can run; above it, the maximum of ranks per core. Then the bytes that each rank needs
# at least, without and with a framework.
_FEW, _PER_CORE = 8, 4
_BARE, _WITH_FRAMEWORK = 100e6, 500e6
_RANKS_PER_AGENT = 64


@dataclass(frozen=True)
class Local:
    """Local nodes, which share the machine, its memory and its accelerators."""

    kind = "local"
    provisions = False
    survives_manager = False
    offline = False
    supported_options = ()
    notice = ""

    @property
    def ranks_per_agent(self) -> int:
        """The most ranks whose agents share one process; see docs/design-agents.md."""
        return int(os.environ.get("SKY_RANKS_PER_AGENT") or _RANKS_PER_AGENT)

    def default_nodes(self) -> int:
        """Return 1."""
        return 1

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return this machine, at no cost."""
        return [Offer("this machine", 0.0)]

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Return ids; the processes are started with the host process, and end with it.

        Raise ProvisionError if this machine lacks the accelerators, cannot share them equally among the ranks, or is
        too small for so many ranks.
        """
        ranks = count * spec.ranks_per_node
        if not spec.options.crowded and (why := _too_many(spec, ranks)):
            raise ProvisionError(why)
        have = gpus.present({**os.environ, **spec.full_image.env})
        if spec.accelerator is not None:
            each = f"each of {count} nodes, which share this machine" if count > 1 else "each node"
            if have.of_kind(spec.accelerator.kind) < spec.accelerator.count * count:
                raise ProvisionError(
                    f"the pool needs {spec.accelerator} on {each}; this machine has {have}. Leave --accelerator out to "
                    "run on what there is, or name hosts that have it: --hosts gpu1,gpu2"
                )
        # All ranks share a single accelerator: the quickstart's two ranks run on a laptop with one GPU.
        if len(have) > 1 and not have.can_be_shared(ranks):
            raise ProvisionError(gpus.why_not_shared(have, ranks))
        return [f"{order.pool}-{number}" for number in range(count)]

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return nothing: no node outlives the host process."""
        return []

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return all machines as running."""
        return [MachineRecord(id, "running") for id in ids]

    def destroy(self, ids: Sequence[str]) -> None:
        """Do nothing: nodes end with the host process."""

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[LocalMachine]:
        """Return the notebook's machine for each node."""
        return [LocalMachine() for _ in ids]

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Return None: nodes are created as needed."""
        return None

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> Local:
        """Return the same provider; raise SpecError if machines are added by name."""
        if add:
            raise SpecError(f"hosts cannot be added to {self} pools: say how many there shall be")
        return self

    def __str__(self) -> str:
        return "local"


def _too_many(spec: PoolSpec, ranks: int) -> str:
    """Return why a machine is too small for so many ranks; empty if it is not."""
    if ranks <= _FEW:
        return ""
    from ..node.system.metrics import MachineMonitor

    machine = MachineMonitor()
    needed = ranks * (_WITH_FRAMEWORK if spec.plugins else _BARE)
    if ranks <= _PER_CORE * machine.cores and needed <= machine.memory / 2:
        return ""
    return (
        f"{ranks} rank processes, which need about {needed / 1e9:.1f} GB, on this machine's {machine.cores:g} cores "
        f"and {machine.memory / 1e9:.0f} GB: more than {_PER_CORE} a core, or half of the memory. --yes "
        "(Options(crowded=True)) makes them all the same"
    )
