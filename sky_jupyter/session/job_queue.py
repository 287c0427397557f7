"""Jobs of a batch scheduler before there is a pool: shown, or submitted and left in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import SpecError

if TYPE_CHECKING:
    from ..spec.pool_spec import PoolSpec


def preview(spec: PoolSpec) -> str:
    """Return the script of a pool's job, and whether the scheduler would take it; submit nothing."""
    return str(_of_jobs(spec, "--dry-run").preview(spec))


def submit(spec: PoolSpec) -> str:
    """Submit a pool's job and leave it in the queue; return what was done."""
    return str(_of_jobs(spec, "--detach").enqueue(spec))


def _of_jobs(spec: PoolSpec, flag: str) -> Any:
    provider: Any = spec.provider
    if not hasattr(provider, "enqueue"):
        raise SpecError(f"{flag} is for pools that are jobs (--provider slurm), not for {provider.kind}")
    return provider


__all__ = ["preview", "submit"]
