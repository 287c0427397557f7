"""The plan of a resize, checked before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import SpecError
from ...providers.base import provider_of
from ...spec.pool_spec import PoolSpec


@dataclass(frozen=True)
class Plan:
    """Target of a resize.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the resized pool.
    ids : tuple of str
        The provider's ids of its machines, by node.
    kept : tuple of int
        Current numbers of the nodes that stay; their positions are the new numbers.
    """

    spec: PoolSpec
    ids: tuple[str, ...]
    kept: tuple[int, ...]

    def is_of(self, spec: PoolSpec) -> bool:
        """Return whether a pool of this spec has these nodes already."""
        return not self.added and len(self.kept) == spec.nodes

    @property
    def added(self) -> tuple[str, ...]:
        """The ids of the new machines."""
        return self.ids[len(self.kept) :]


def of(spec: PoolSpec, ids: Sequence[str], nodes: int | None, add: Sequence[str], remove: Sequence[int]) -> Plan:
    """Plan a resize to a number of nodes, or by hosts to add or remove.

    Raises SpecError if it is not possible.
    """
    made = _plan(spec, ids, nodes, add, remove)
    if made.spec.full_image != spec.full_image:
        raise SpecError(
            f"what the nodes of pool {spec.name!r} have depends on how many they are, by a plugin: "
            f"`%sky restart --nodes {made.spec.nodes}` recreates it"
        )
    return made


def _plan(spec: PoolSpec, ids: Sequence[str], nodes: int | None, add: Sequence[str], remove: Sequence[int]) -> Plan:
    if (nodes is None) == (not add and not remove):
        raise SpecError(
            "a pool is resized to a number of nodes (`%sky resize 3`), or by hosts that are added (--add gpu4) and "
            "nodes that are removed (--remove 2,3)"
        )
    gone = tuple(_removable(spec, remove)) if nodes is None else tuple(range(max(1, nodes), spec.nodes))
    kept = tuple(node for node in range(spec.nodes) if node not in gone)
    current = provider_of(spec)
    spares = current.spares(ids)
    if nodes is not None and spares is not None:
        add = _from(spares, nodes - spec.nodes, nodes)
    staying = [ids[node] for node in kept]
    # Hosts that a number removes stay spares; those that are removed by name do not.
    provider = current.resized(staying, add, [] if nodes is not None else [ids[node] for node in gone])
    count = len(staying) + len(add) if nodes is None else nodes
    chosen = (*staying, *add)
    made = [""] * (count - len(chosen)) if spares is None else []
    return Plan(replace(spec, nodes=count, provider=provider), (*chosen, *made), kept)


def _removable(spec: PoolSpec, remove: Sequence[int]) -> Sequence[int]:
    wrong = [node for node in remove if not 0 <= node < spec.nodes]
    if wrong:
        names = ", ".join(map(str, wrong))
        raise SpecError(f"pool {spec.name!r} has nodes 0 to {spec.nodes - 1}, not {names}")
    if 0 in remove:
        raise SpecError(
            f"node 0 is the head of pool {spec.name!r}, which the others are connected to: it cannot be removed. "
            "Remove other nodes; or recreate the pool with `%sky restart` and other options, or `%sky down` and "
            "`%sky up`"
        )
    return sorted(set(remove))


def _from(spare: Sequence[str], more: int, nodes: int) -> Sequence[str]:
    if more > len(spare):
        lacking = more - len(spare)
        raise SpecError(
            f"{nodes} nodes need {lacking} more host{'s' if lacking > 1 else ''} than the pool knows: name them "
            "(`%sky resize --add gpu4,me@gpu5:2222`)"
        )
    return spare[: max(0, more)]
