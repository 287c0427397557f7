"""End of a pool without a manager, by another program: the server holds no pool."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from ..errors import PoolError
from ..pool.registry.registry import PoolRow

# Seconds: distant machines that do not answer take the longest.
_PATIENCE = 120.0
# If this package runs from a checkout, the program must find it there too.
_ROOT = str(Path(__file__).resolve().parents[2])


class Ends:
    """Tasks that end pools; one object per server.

    A second request for the same end waits for the first.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[str]] = {}

    def __contains__(self, pool: str) -> bool:
        return pool in self._tasks

    async def end(self, row: PoolRow) -> str:
        """End a pool, or wait for its end if that is running; see `end`."""
        task = self._tasks.get(row.id)
        if task is None:
            task = self._tasks[row.id] = asyncio.create_task(end(row))
            task.add_done_callback(lambda _: self._tasks.pop(row.id, None))
        # If a page disconnects meanwhile, the end continues for the others.
        return await asyncio.shield(task)


async def end(row: PoolRow) -> str:
    """End a pool by the program; return the outcome in words.

    Parameters
    ----------
    row : PoolRow
        The pool's row in the registry.

    Returns
    -------
    str
        A text about what was ended.

    Raises
    ------
    PoolError
        When the pool has a manager by now, or cannot be reached.
    """
    if not row.is_here:
        raise PoolError(f"pool {row.name} has its processes or keys on machine {row.machine}, and is ended there")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sky_jupyter.pool.end_without_manager", row.id),
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(program.communicate(), _PATIENCE)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        raise PoolError(f"pool {row.name} has not ended within {_PATIENCE:.0f} s; its lease will end it") from None
    lines = (out if program.returncode == 0 else errors).decode("utf-8", "replace").strip().splitlines()
    text = lines[-1] if lines else f"the program that ends pool {row.name} failed"
    if program.returncode:
        raise PoolError(text)
    return text
