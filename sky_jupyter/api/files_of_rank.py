"""The files of a rank, for the notebook's libraries: `files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SpecError
from ..pool.open_pools import pools
from ..pool.pool import Pool
from ..session.pools import live_pool

if TYPE_CHECKING:
    from .compute import Compute
    from .fsspec_files import RankFiles


def files(rank: int, pool: Compute | Pool | str | None = None) -> RankFiles:
    """Return the files of a rank's node as an `fsspec` file system, for reading.

    The node's agent reads them, as the pool's user on that machine, also while the rank computes::

        fs = sky.files(0)
        fs.ls("out")
        table = pandas.read_csv(fs.open("out/loss.csv"))

    A relative path starts in the ranks' working folder, as for ``%sky get``; ``~`` is the home folder.

    Parameters
    ----------
    rank : int
        The rank.
    pool : Compute or str, optional
        The pool, or its name; by default the current one.

    Returns
    -------
    RankFiles
        The file system: ``ls``, ``info``, ``open``, ``cat_file``, ``get``, ``find``, ``glob`` and fsspec's other
        methods that only read. A missing file raises `FileNotFoundError`, as on this machine.

    Raises
    ------
    SpecError
        When there is no such rank.
    PoolError
        When there is no such pool.
    """
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise SpecError(f"files() takes a rank's number, not {rank!r}")
    live = pools.need(pool) if pool is None or isinstance(pool, str) else live_pool(pool)
    live.check_ranks([rank])
    # Imported here: `fsspec` takes longer to import than all the rest.
    from .fsspec_files import RankFiles

    return RankFiles(live, rank)
