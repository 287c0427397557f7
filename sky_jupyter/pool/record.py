"""What a kept pool leaves in its folder, so that a later manager can take it up again.

The folder and the file are readable by their user only, like the pool's keys beside it: whoever can
write there is the user.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from ..errors import PoolError
from ..spec import PoolSpec

if TYPE_CHECKING:
    from .registry import PoolRow

_NAME = "pool.record"


@dataclass(frozen=True)
class PoolRecord:
    """A pool, as its first manager made it.

    Parameters
    ----------
    spec : PoolSpec
        With its plugins.
    scheduler : str
        Its address, which it keeps when it is started anew.
    ids : tuple of str
        The provider's ids of the machines.
    hosts : tuple of dict
        Of each host its nodes, folders and process; see `launch.adopt`.
    direct : bool
        Whether agents can be reached without the scheduler in between.
    shape : int
        How often its nodes were changed.
    ends : float, optional
        When it ends by its ttl, as the clock of this machine has it.
    """

    spec: PoolSpec
    scheduler: str
    ids: tuple[str, ...]
    hosts: tuple[dict[str, Any], ...]
    direct: bool
    shape: int = 0
    ends: float | None = None

    def write(self, folder: Path) -> None:
        """Leave it in the pool's folder; it appears whole or not at all."""
        temporary = folder / f"{_NAME}.new"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(cloudpickle.dumps(self))
        os.replace(temporary, folder / _NAME)

    @classmethod
    def read(cls, row: PoolRow) -> PoolRecord:
        """The record of a pool that the registry knows.

        Raises
        ------
        PoolError
            When there is none, when it is not this user's, or cannot be read.
        """
        if not row.folders:
            raise PoolError(f"pool {row.name!r} is not ready; `%sky status` says when it is")
        path = Path(row.folders[0]) / _NAME
        try:
            with path.open("rb") as file:
                for facts in (os.fstat(file.fileno()), path.parent.stat()):
                    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
                        raise PoolError(f"{path} is not this user's own, and is not read")
                record = cloudpickle.load(file)
        except FileNotFoundError:
            raise PoolError(f"pool {row.name!r} is gone, or was not made with --keep") from None
        except PoolError:
            raise
        except Exception as error:
            raise PoolError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
        if not isinstance(record, cls):
            raise PoolError(f"{path} holds no pool")
        return record
