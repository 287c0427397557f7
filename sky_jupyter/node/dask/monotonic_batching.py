"""What Dask measures by the machine's clock, freed of it: that clock may be set meanwhile."""

from __future__ import annotations

from distributed.batched import BatchedSend


def patch_batched_send() -> None:
    """Have Dask's message streams send whatever the machine's clock says.

    Such a stream notes the time of day before which it sends nothing more, milliseconds ahead; where
    the clock is set back before that has come, it is hours ahead. Without such a time it sends at once,
    and batches what gathers while it writes. Called by each process that has such streams.
    """
    BatchedSend.next_deadline = property(_none, _forget)


def _none(stream: BatchedSend) -> None:
    """No time to wait for."""


def _forget(stream: BatchedSend, deadline: float | None) -> None:
    """Dask's own deadline, which is not kept."""
