"""``%sky runs``: the newest runs, and which one a verb means."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import PoolError
from ..pool.base.run_titles import short_title
from ..pool.open_pools import pools
from ..pool.registry import registry as registries
from ..pool.registry.rows import notebooks
from .parsing import ParsedLine

if TYPE_CHECKING:
    from ..pool.pool import Pool

_SHOWN = 20
_NOTEBOOK = 30


def find(given: ParsedLine) -> tuple[Pool, str]:
    """Return the pool and run id that a verb means; the newest by default.

    Parameters
    ----------
    given : ParsedLine
        The verb's options.

    Returns
    -------
    tuple of Pool and str
        The pool and the run's id.

    Raises
    ------
    PoolError
        When there is no such run on a pool of this notebook, or several begin like this.
    """
    chosen = pools.all() if given.name is None else [pools.need(given.name)]
    if not chosen:
        raise PoolError("this notebook manages no pool; `%sky attach NAME` takes a kept one up")
    # The nodes may not know a run yet that has just been detached.
    known = {id: (time.time(), pool) for pool in chosen for id in list(pool.detached)}
    known |= {id: (facts["begin"].get("began") or 0.0, pool) for pool in chosen for id, facts in pool.runs().items()}
    fitting = [id for id in _oldest_first(known, chosen) if id.startswith(given.target or "")]
    if not fitting:
        which = f"no run {given.target!r}" if given.target else "no run yet"
        raise PoolError(f"{which} on {', '.join(pool.spec.name for pool in chosen)}; `%sky runs` lists them")
    if given.target and len(fitting) > 1:
        raise PoolError(f"several runs begin with {given.target!r}: {', '.join(fitting)}")
    return known[fitting[-1]][1], fitting[-1]


def _oldest_first(known: Mapping[str, tuple[float, Pool]], chosen: Sequence[Pool]) -> list[str]:
    """Sort run ids by start, even if this machine's clock was set meanwhile."""
    place: dict[str, int] = {}
    with contextlib.suppress(PoolError):
        for pool in chosen:
            pool.registry.flush()
        place = chosen[0].registry.numbers(list(known))
    # A run that the registry does not know is sorted by its own time, and comes before the others.
    return sorted(known, key=lambda run: (place.get(run, 0), known[run][0]))


def table(name: str | None) -> str:
    """Return the newest runs, a line each."""
    with registries.opened() as registry:
        pool = registry.pool(name) if name is not None else None
        if name is not None and pool is None:
            raise PoolError(f"the registry knows no pool {name!r}")
        live = {row.id for row in registry.pools()}
        rows = registry.runs(pool.id if pool is not None else None, limit=_SHOWN)
    if not rows:
        return "no run is recorded"
    lines = []
    several = notebooks(rows)
    width = min(_NOTEBOOK, max(map(len, several.values()), default=0))
    for row in rows:
        took = "" if row.elapsed is None else f"{row.elapsed:.1f} s"
        when = time.strftime("%d %b %H:%M:%S", time.localtime(row.began))
        state = row.state if row.state != "running" or row.pool in live else "lost"
        cell = f"In[{row.cell}]" if row.cell else ""
        name = row.pool_name or row.pool
        notebook = f"{_tail(several[row.notebook] or '-', width):{width}} " if several else ""
        lines.append(f"{row.id}  {name:12} {state:11} {when} {took:>9}  {notebook}{cell:7} {short_title(row.title)}")
    return "\n".join(lines)


def _tail(text: str, width: int) -> str:
    """Shorten a notebook's path at its beginning, as the end says most."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
