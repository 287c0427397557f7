"""Patch that frees Dask's batched sending from the wall clock, which may jump."""

from __future__ import annotations

from distributed.batched import BatchedSend


def patch_batched_send() -> None:
    """Make Dask's batched streams send whatever the wall clock says.

    A stream stores the time of day before which it sends nothing more, some milliseconds ahead; after the clock is set
    back, that is hours ahead. Without a deadline it sends at once, and batches what arrives while it writes. Each
    process with such streams calls this.
    """
    BatchedSend.next_deadline = property(_none, _forget)


def _none(stream: BatchedSend) -> None:
    """Return None: no deadline."""


def _forget(stream: BatchedSend, deadline: float | None) -> None:
    """Ignore a deadline that Dask sets."""
