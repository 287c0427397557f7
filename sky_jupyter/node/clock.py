"""What Dask measures by the machine's clock, held to its length where that clock is set meanwhile."""

from __future__ import annotations

from distributed import batched
from distributed.batched import BatchedSend


def keep_streams_moving() -> None:
    """Have Dask's message streams go on at once after the clock was set back.

    Such a stream notes the time of day before which it sends nothing more, some milliseconds ahead:
    after a clock set back by a day, a day ahead. Called by each process that has such streams.
    """
    BatchedSend.next_deadline = property(_deadline, _set_deadline)


def _deadline(stream: BatchedSend) -> float | None:
    noted: float | None = stream.__dict__.get("next_deadline")
    if noted is not None:
        # Never further ahead than when it was noted.
        noted = stream.__dict__["next_deadline"] = min(noted, batched.time() + stream.interval)
    return noted


def _set_deadline(stream: BatchedSend, noted: float | None) -> None:
    stream.__dict__["next_deadline"] = noted
