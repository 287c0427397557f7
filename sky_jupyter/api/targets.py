"""Right operands of the operators: a `Compute`, a pool, or ``sky``."""

from __future__ import annotations

from types import ModuleType
from typing import Union

from ..errors import PoolError
from ..pool.open_pools import pools
from ..pool.pool import Pool
from ..session.pools import Holder, live_pool


class Sky:
    """Stands for the current pool, resolved when a call meets it.

    That is the pool of the innermost ``with`` block, or that of ``%%sky``.
    """

    @property
    def pool(self) -> Pool | None:
        """The current pool, or None."""
        return pools.current

    def __repr__(self) -> str:
        live = self.pool
        return f"<sky: the current pool, {'none' if live is None else repr(live.spec.name)}>"


sky = Sky()
"""The current pool: ``train() >> sky``. The package itself does as well, as ``import sky_jupyter as sky`` names it."""

# Written so for Python 3.10, where a Protocol has no ``|`` of its own.
Target = Union[Holder, Pool, Sky, ModuleType]  # noqa: UP007


def pool_of(target: Target) -> Pool:
    """Return the live pool that an operator's right operand names.

    Parameters
    ----------
    target : Compute, Pool, sky or module
        The right operand; `sky` and the package itself are the current pool.

    Returns
    -------
    Pool
        The live pool.

    Raises
    ------
    PoolError
        When it is not started, there is none, or it is something else.
    """
    package = __name__.partition(".")[0]
    if not (isinstance(target, Sky) or getattr(target, "__name__", "") == package):
        return live_pool(target)
    if pools.current is None:
        if (gone := pools.gone()) is not None:
            raise PoolError(gone.refusal("with sky.Compute() as pool:", pools.names))
        raise PoolError("there is no current pool: use `with sky.Compute(...) as pool:`, or make one with `%sky up`")
    return pools.current
