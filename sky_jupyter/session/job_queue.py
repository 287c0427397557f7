"""Jobs of a batch scheduler before their pool starts: show, submit, take up.

The spec of a pool whose job was left in the queue is kept beside the registry until the job is taken up or gone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import cloudpickle

from ..errors import SpecError
from ..spec.pool_spec import PoolSpec
from ..util.atomic_write import atomic_write
from ..util.state_folder import queued_specs

if TYPE_CHECKING:
    from collections.abc import Iterator


def preview(spec: PoolSpec) -> str:
    """Return a job's script, and whether the scheduler accepts it; submit nothing."""
    return str(_of_jobs(spec, "--dry-run").preview(spec))


def submit(spec: PoolSpec) -> str:
    """Submit a pool's job and leave it in the queue; return what was done."""
    said = str(_of_jobs(spec, "--detach").enqueue(spec))
    file = _file(spec.name)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_write(file) as part:
        part.write(cloudpickle.dumps(spec))
    return said


def left(name: str | None) -> PoolSpec | None:
    """Return the spec of the job that nobody took up; None unless there is just one.

    Parameters
    ----------
    name : str, optional
        The pool's name; it may be left out if there is one such job.

    Returns
    -------
    PoolSpec or None
        The spec of the job, which is queued or running.

    Raises
    ------
    ProvisionError
        If the scheduler cannot be asked.
    """
    found = []
    for spec in _specs([_file(name)] if name is not None else sorted(queued_specs().glob("*"))):
        if _of_jobs(spec, "--detach").is_left_in_queue(spec):
            found.append(spec)
        else:
            _file(spec.name).unlink(missing_ok=True)
    return found[0] if len(found) == 1 else None


def _specs(files: list[Path]) -> Iterator[PoolSpec]:
    for file in files:
        # A file of another version may need classes that have changed since.
        with contextlib.suppress(Exception):
            spec = cloudpickle.loads(file.read_bytes())
            if isinstance(spec, PoolSpec):
                yield spec


def _file(name: str) -> Path:
    # A pool's name is a valid file name, but the user may give any text.
    return queued_specs() / quote(name, safe="")


def _of_jobs(spec: PoolSpec, flag: str) -> Any:
    provider: Any = spec.provider
    if not hasattr(provider, "enqueue"):
        raise SpecError(f"{flag} is for pools that are jobs (--provider slurm), not for {provider.kind}")
    return provider


__all__ = ["left", "preview", "submit"]
