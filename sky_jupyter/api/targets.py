"""Right operands of the operators: a `Compute`, a pool, or ``sky``."""

from __future__ import annotations

from types import ModuleType
from typing import Union

from ..errors import PoolError
from ..pool.open_pools import pools
from ..pool.pool import Pool
from ..session.pools import Holder, live_pool
from .dispatch import Runner


class Sky(Runner):
    """Stands for the current pool, resolved when a call meets it.

    That is the pool of the innermost ``with`` block, or that of ``%%sky``.
    """

    @property
    def pool(self) -> Pool | None:
        """The current pool, or None."""
        return pools.current

    @property
    def live_pool(self) -> Pool:
        """The current pool; PoolError where there is none."""
        if pools.current is None:
            if (gone := pools.gone()) is not None:
                raise PoolError(gone.refusal("with sky.Compute() as pool:", pools.names))
            raise PoolError(
                "there is no current pool: use `with sky.Compute(...) as pool:`, or make one with `%sky up`"
            )
        return pools.current

    def __repr__(self) -> str:
        live = self.pool
        return f"<sky: the current pool, {'none' if live is None else repr(live.spec.name)}>"


sky = Sky()
"""The current pool: ``train() >> sky``. The package itself does as well, as ``import sky_jupyter as sky`` names it."""

# Written so for Python 3.10, where a Protocol has no ``|`` of its own.
Target = Union[Holder, Pool, Sky, ModuleType]  # noqa: UP007


class OnPool(Runner):
    """Runs calls on a pool that is there; made by `runner_of`.

    Parameters
    ----------
    pool : Pool
        The pool.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @property
    def live_pool(self) -> Pool:
        """The pool."""
        return self._pool


def runner_of(target: Target) -> Runner:
    """Return what runs the calls that an operator sends to its right operand.

    Parameters
    ----------
    target : Compute, Pool, sky or module
        The right operand; `sky` and the package itself are the current pool.

    Returns
    -------
    Runner
        The right operand itself, where it is one.

    Raises
    ------
    PoolError
        When it is not started, there is none, or it is something else.
    """
    if isinstance(target, Runner):
        return target
    if getattr(target, "__name__", "") == __name__.partition(".")[0]:
        return sky
    return OnPool(live_pool(target))
