"""Refusals: why a line does not get its pool, and what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..pool.open_pools import pools
from ..pool.registry.ended_pools import changes
from ..pool.registry.rows import PoolRow
from ..session.pools import kept_row, managed_row
from ..spec.pool_spec import PoolSpec
from ..util.redaction import without_secrets
from ..util.text import nearest
from . import leftover_pools
from .parsing import ParsedLine


def other(spec: PoolSpec, given: ParsedLine, differences: Sequence[str], *, attached: bool = True) -> str:
    """Explain why options for another pool of that name are refused.

    Parameters
    ----------
    spec : PoolSpec
        The pool as it is.
    given : ParsedLine
        The line's options.
    differences : sequence of str
        What the options ask for and the pool lacks, from `PoolSpec.differences`.
    attached : bool
        Whether this notebook manages the pool; if not, it is a kept pool that nobody manages.

    Returns
    -------
    str
        The message, with a line for each thing that the user can do.
    """
    name, wanted = spec.name, given.spec(spec)
    options = changes(spec, wanted)
    asked = f"and the options ask for another one: {'; '.join(differences)}"
    if not attached:
        ways = [
            ("use it as it is", f"`%sky attach {name}`"),
            ("end it", f"`%sky down {name}`"),
            ("make one besides", "give another --name"),
        ]
        return "\n".join([f"a kept pool {name!r} is running, {asked}", *_rows(ways)])
    ways = [("use it as it is", "leave these options out")]
    if more := [text for text in wanted.image.pip if text not in spec.image.pip]:
        added = shlex.quote(",".join(map(without_secrets, more)))
        ways.append(("add packages", f"`%%sky --name {name} --pip {added}`"))
    if wanted.nodes != spec.nodes:
        ways.append(("change its nodes", f"`%sky resize {wanted.nodes} --name {name}`"))
    ways += [
        ("recreate it", f"`%sky restart --name {name} {options}`".replace(" `", "`") + "; its names are lost"),
        ("make one besides", f"`%%sky {options} --name OTHER`"),
    ]
    return "\n".join([f"pool {name!r} is live, {asked}", *_rows(ways)])


def _rows(ways: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(what) for what, _ in ways) + 2
    return [f"  {what + ':':{width}}{how}" for what, how in ways]


def ways_to_managed(row: PoolRow) -> str:
    """Say how a pool that another notebook manages can be used."""
    over = f", `%sky attach {row.name} --take-over` takes it over" if row.may_outlive else ""
    return f"pool {row.name!r} is managed by {row.who}; `%sky join {row.name}` runs cells there as its guest{over}"


def name_alone(given: ParsedLine) -> str:
    """Explain why a name without pool options starts no pool; empty if it does."""
    name = given.name or ""
    row = kept_row(name) or managed_row(name)
    if row is not None and row.owner_lives:
        return ways_to_managed(row)
    if row is not None:
        return leftover_pools.kept(row)
    if given.verb is not None:
        # `%sky up` makes a pool of this name.
        return ""
    there = pools.names
    near = nearest(name, there) or (f"; live: {', '.join(there)}." if there else ".")
    return f"no pool {name!r} here{near} (`%%sky --nodes N --name {name}` makes one)"
