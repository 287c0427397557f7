"""Choice of the pool that a line means: a live, a kept or a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..display import views as display
from ..errors import PoolError, SpecError
from ..pool.open_pools import pools
from ..pool.registry.pool_record import PoolRecord
from ..session import cells
from ..session.pools import attach_pool, kept_row, start_pool
from ..spec.pool_spec import PoolSpec
from . import pool_mismatch
from .parsing import ParsedLine

if TYPE_CHECKING:
    from ..pool.pool import Pool


def pool_for(given: ParsedLine) -> Pool:
    """Return the pool that the options mean; start it if there is none."""
    live = pools.current if given.name is None else pools.get(given.name)
    if live is None:
        return taken_up(given) or made(given)
    if given.pool:
        wanted = given.spec(live.spec)
        if live.spec.differences(replace(wanted, image=replace(wanted.image, pip=live.spec.image.pip))):
            raise PoolError(pool_mismatch.other(live.spec, given, live.spec.differences(wanted)))
        if "pip" in given.pool:
            add_packages(live, wanted.image.pip)
    take_limits(live, given)
    pools.use(live)
    return live


def add_packages(pool: Pool, requirements: Sequence[str]) -> None:
    """Install packages on a live pool's nodes, for this pool only."""
    pool.lifecycle.refuse_guest("given more packages")
    with display.DelayedView("packages", failed="not installed", pool=pool.spec.name) as late:
        installed = pool.packages.add(requirements, late.on_event, late.refresh)
    if installed:
        print(f"installed on the nodes: {', '.join(installed)}")


def made(given: ParsedLine) -> Pool:
    """Start a new pool.

    If a pool on other machines has ended, a cell that names no provider is refused: it does not run here instead.
    """
    gone = pools.gone(given.name)
    if gone is not None and given.verb is None and "provider" not in given.pool:
        raise PoolError(gone.refusal("%%sky --provider local", pools.names))
    if given.name is not None and not given.pool and (why := pool_mismatch.name_alone(given)):
        raise PoolError(why)
    spec = given.spec()
    numbers = [one for one in (*(given.on or ()), *(given.only or ())) if isinstance(one, int)]
    top = max(numbers, default=0)
    if top >= spec.world_size:
        ranks = "1 rank, rank 0" if spec.world_size == 1 else f"ranks 0 to {spec.world_size - 1}"
        raise SpecError(f"%%sky: the pool would have {ranks}, not {top}: `%%sky --nodes {top + 1}` makes it larger")
    return started(spec)


def taken_up(given: ParsedLine) -> Pool | None:
    """Attach to the pool that ``--keep`` asks for, if nobody manages it."""
    row = kept_row(given.name or "default") if given.pool.get("keep") else None
    if row is None or row.owner_lives:
        return None
    kept = PoolRecord.read(row).spec
    if differences := kept.differences(given.spec(kept)):
        raise PoolError(pool_mismatch.other(kept, given, differences, attached=False))
    pool = attach_pool(row.id)
    take_limits(pool, given)
    for id in cells.running(pool):
        cells.detach(pool, id)
        print(f"run {id} continues there; `%sky wait` shows it, `%sky interrupt` stops it")
    return pool


def started(spec: PoolSpec) -> Pool:
    """Start a pool.

    If machines elsewhere are not available, later cells do not run on this machine instead.
    """
    try:
        return start_pool(spec)
    except BaseException as error:
        pools.fail(spec, error)
        raise


def take_limits(pool: Pool, given: ParsedLine) -> None:
    """Pass a line's exit timeout and budget on to a live pool."""
    if pool.is_guest and given.pool.get("exit_timeout") is not None:
        pool.lifecycle.refuse_guest("given another exit timeout")
    pool.exit_timeout = given.pool.get("exit_timeout", pool.exit_timeout)
    most = given.pool.get("max_cost")
    if most is not None and most != pool.spec.max_cost:
        pool.raise_budget(most)
