"""``%sky sweep``: terminate machines of pools that nobody owns any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..display.base.prompts import person
from ..errors import PoolError, SkyError
from ..pool.registry import orphaned_machines, provider_accounts
from ..pool.registry.machine_sweep import SWEEP_LIMIT, Swept, sweep_pools
from ..pool.registry.registry import Registry, sweep
from ..pool.registry.rows import clock
from ..providers import provider_registry
from ..providers.base import Provisioner, is_provisioner
from ..util.pool_cost import UNKNOWN, PoolCost, dollars
from ..util.text import first_line

if TYPE_CHECKING:
    from ..providers.base import Provider

_NOTHING = (
    "no machine was ever bought from here; `%sky sweep --provider NAME` looks at a provider all the same, such as "
    "for machines that another computer has bought"
)


def lines(chosen: str | None, provider: Provider | None, *, all_regions: bool) -> Iterator[str]:
    """Terminate unowned machines; yield a line for each, ended or left.

    Parameters
    ----------
    chosen : str, optional
        Id or name of a pool of another computer, whose machines are ended too.
    provider : Provider, optional
        The provider to ask; by default, those that machines were bought from.
    all_regions : bool
        Whether to look in all regions of the account, not only where machines were bought.

    Yields
    ------
    str
        What was done with a pool or a machine.

    Raises
    ------
    PoolError
        When machines could not be confirmed to end, or a provider did not answer.
    """
    registry = Registry()
    failed: list[str] = []
    try:
        sweep(registry)
        swept = person.wait(lambda: sweep_pools(registry))
        yield from _pools(swept)
        failed += [f"pool {name}: {why}" for name, why in swept.failed.items()]
        asked = list(_asked(registry, provider, failed))
        if not asked and not failed and not swept.pools:
            yield _NOTHING
        seen: set[str] = set()
        for one, regions in asked:
            try:
                yield from _at(registry, one, regions, chosen, seen, failed, all_regions=all_regions)
            except (SkyError, OSError, TimeoutError) as error:
                failed.append(f"{one}: {first_line(error)}")
    finally:
        registry.close()
    if failed:
        raise PoolError(f"not all is known to have ended: {'; '.join(failed)}; try again")


def _asked(
    registry: Registry, provider: Provider | None, failed: list[str]
) -> Iterator[tuple[Provisioner, Sequence[str]]]:
    """Yield the providers to ask, each with the regions to look in."""
    if provider is not None:
        if not is_provisioner(provider):
            raise PoolError(f"provider {provider.kind!r} makes no machines: there is nothing to sweep")
        yield provider, ()
        return
    for purchase in provider_accounts.of(registry):
        try:
            yield provider_registry.restore(purchase.provider, purchase.recipe), purchase.regions
        except SkyError as error:
            failed.append(first_line(error))


def _at(
    registry: Registry,
    provider: Provisioner,
    regions: Sequence[str],
    chosen: str | None,
    seen: set[str],
    failed: list[str],
    *,
    all_regions: bool,
) -> Iterator[str]:
    """Terminate strays at one provider; add the machines that it shows to ``seen``.

    ``seen`` has the machines that other providers have shown, which may be of the same account.
    """

    def look() -> list[orphaned_machines.Stray]:
        places = provider.all_regions() if all_regions else regions
        return orphaned_machines.look(registry, provider, places, () if chosen is None else (chosen,))

    found = [one for one in person.wait(look) if one.record.id not in seen]
    if not found and not seen:
        yield f"{provider}: no machine of ours is there"
    seen.update(one.record.id for one in found)
    left = person.wait(lambda: orphaned_machines.end(provider, found, SWEEP_LIMIT))
    if left:
        failed.append(f"{provider}: {', '.join(left)}")
    for one in found:
        if one.record.id not in left:
            yield _line(one)


def _pools(swept: Swept) -> Iterator[str]:
    for name in swept.pools:
        yield f"pool {name}: all machines that were made for it have ended{_cost(swept.costs.get(name))}"


def _cost(cost: PoolCost | None) -> str:
    if cost is None or not cost.machines:
        return ""
    return f"; it has cost {UNKNOWN if cost.total is None else dollars(cost.total)}"


def _line(one: orphaned_machines.Stray) -> str:
    record = one.record
    facts = [record.kind, record.market, record.zone or record.region]
    facts += [] if record.launched is None else [f"since {clock(record.launched)}"]
    facts += [] if one.dollars is None else [dollars(one.dollars)]
    about = ", ".join(filter(None, facts))
    return f"{'ended' if one.ends else 'left'}: {record.id} ({about}): {one.why}"


__all__ = ["lines"]
