"""``%sky pull``: fetch a variable of the nodes into the notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pool.open_pools import pools
from ..session.pools import pull_value
from ..util.text import rank_label
from .option_table import chosen
from .parsing import ParsedLine

if TYPE_CHECKING:
    from ..pool.pool import Pool


def pull(given: ParsedLine, pool: Pool, namespace: dict[str, Any]) -> str:
    """Assign a variable of the nodes in the notebook; describe it in a line."""
    from ..pool.transfer import pull_variable

    name = str(given.target)
    alias = given.alias or name
    how = "stack" if given.stack else "concat" if given.concat else None
    ranks = chosen(given.on, pool.spec.world_size)
    value = pull_value(pool, name, ranks, how)
    namespace[alias] = value
    for live in pools.all():
        # The ranks that it comes from keep their value of this name: it was only read.
        if live is pool and alias == name:
            pull_variable.note(live.ledger, name, namespace, live.spec.world_size)
        else:
            live.ledger.notebook_wrote([alias])
    return f"{alias}: {_about(value)} from {rank_label(pool.check_ranks(ranks))}"


def names(pool: Pool | None) -> list[str]:
    """Return the nodes' variables, as far as is known without asking them."""
    if pool is None:
        return []
    facts = pool.ledger.facts({})
    return [one.name for one in facts if not one.gone and one.origin != "module" and one.name not in pool.modules]


def _about(value: Any) -> str:
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{kind} {'x'.join(map(str, shape)) or 'of one number'}"
    return f"{kind} of {len(value)}" if isinstance(value, (list, tuple, dict, set)) else kind
