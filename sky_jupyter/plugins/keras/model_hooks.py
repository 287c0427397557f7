"""Hooks on the methods of `keras.Model` in a rank, whatever the backend.

Methods are wrapped on the class, so that plain Keras code works across ranks. A wrapper is
``around(original, model, call)``, where ``call`` has the arguments by their names.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from ...errors import SpecError
from ...util.text import rank_label
from . import random

Around = Callable[[Callable[..., Any], Any, inspect.BoundArguments], Any]

# Callbacks that only write or draw: one rank is enough, and several would write the same file.
ONLY_WRITE = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)
UNKNOWN = -1
# About how many numbers of a variable are hashed, to find out whether two ranks have the same values.
_SAMPLES = 4096
# Values that must be equal on all ranks for them to take the same steps, in the order gathered.
STEPS = (
    "samples",
    "batches",
    "batch_size",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation samples",
    "validation batches",
    "validation_batch_size",
    "validation_steps",
    "validation_freq",
)


def wrap(name: str, around: Around) -> None:
    """Wrap the method `name` of every Keras model in `around`."""
    original = getattr(keras.Model, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        return around(original, self, call)

    setattr(keras.Model, name, method)


_partial: list[None] = []


def in_partial_run() -> bool:
    """Tell whether the current run leaves out some ranks; nothing may wait for them."""
    return bool(_partial)


@contextlib.contextmanager
def partial_run(rank: int) -> Iterator[None]:
    """Use models and random numbers of this rank alone, inside the block."""
    _partial.append(None)
    try:
        with random.own(rank):
            yield
    finally:
        _partial.pop()


def be_quiet() -> None:
    """Show no progress bars on this rank, and drop callbacks that only write or draw.

    A call's ``verbose=`` brings back the progress bars.
    """
    for name in ("fit", "evaluate", "predict"):
        wrap(name, _quietly)


def _quietly(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    if in_partial_run():
        return original(*call.args, **call.kwargs)
    if call.arguments.get("verbose", "auto") == "auto":
        call.arguments["verbose"] = 0
    callbacks = call.arguments.get("callbacks")
    # A CallbackList comes from a running `fit`, whose callbacks were filtered already.
    if callbacks is not None and not isinstance(callbacks, keras.callbacks.CallbackList):
        kept = [item for item in keras.tree.flatten(callbacks) if not isinstance(item, ONLY_WRITE)]
        for item in kept:
            if getattr(item, "verbose", 0):
                item.verbose = 0
        call.arguments["callbacks"] = kept
    return original(*call.args, **call.kwargs)


def check_steps(
    method: str, call: inspect.BoundArguments, gather: Callable[[list[int]], Sequence[Sequence[int]]]
) -> None:
    """Refuse, on all ranks, data with which ranks would take different steps.

    Without this check, the ranks with more steps would wait for the others forever, and a shorter last
    batch would silently count for more. Raise SpecError.

    Parameters
    ----------
    method : str
        The method's name, for the message.
    call : inspect.BoundArguments
        Its arguments on this rank.
    gather : callable
        Returns the lists of integers of all ranks, by rank; a collective.
    """
    by_rank = gather(steps_of(call))
    for position, what in enumerate(STEPS):
        values = [int(row[position]) for row in by_rank]
        if len(set(values)) > 1:
            listed = ", ".join(f"rank {rank}: {_count(value)}" for rank, value in enumerate(values[:16]))
            more = "" if len(values) <= 16 else f", and {len(values) - 16} more"
            raise SpecError(
                f"{method}: the ranks differ in {what} ({listed}{more}), but ranks that train one model take the "
                "same steps. Give each rank equally many samples, as sky.shard(..., drop_last=True) does, and call "
                f"{method} with the same arguments on all ranks"
            )


def marks_of(values: Sequence[np.ndarray]) -> list[int]:
    """Return a hash of the shapes of a model's values, and one of the values."""
    shapes = repr([(value.shape, str(value.dtype)) for value in values])
    content = 0
    for value in values:
        flat = value.reshape(-1)
        content = zlib.crc32(flat[:: max(1, flat.size // _SAMPLES)].tobytes(), content)
    return [zlib.crc32(shapes.encode()) % 2**31, content % 2**31]


def must_follow(method: str, by_rank: Sequence[Sequence[int]]) -> bool:
    """Return True, and warn, if the models' values differ: all take the head's then.

    ``by_rank`` has the `marks_of` of each rank's model. Raise SpecError if the models have different shapes.
    """
    for position, what in enumerate(("shapes", "values")):
        others = [rank for rank, row in enumerate(by_rank) if row[position] != by_rank[0][position]]
        if others and what == "shapes":
            raise SpecError(
                f"{method}: the model of {rank_label(others)} has other variables than that of rank 0; "
                f"make it on all ranks in the same way, and then call {method}"
            )
        if others:
            warnings.warn(
                f"{method}: the model's values on {rank_label(others)} were not those of rank 0, as after a cell "
                "on some ranks only; all ranks go on from rank 0's",
                stacklevel=4,
            )
            return True
    return False


def _count(value: int) -> str:
    return "not given" if value == UNKNOWN else str(value)


def steps_of(call: inspect.BoundArguments) -> list[int]:
    """Return the values that decide this rank's number of steps, as STEPS lists them."""
    given = call.arguments
    samples, batches = _lengths(given.get("x"))
    validation = given.get("validation_data")
    held_out = validation[0] if isinstance(validation, (tuple, list)) else validation
    validation_samples, validation_batches = _lengths(held_out)
    return [
        samples,
        batches,
        _whole(given.get("batch_size")),
        _whole(given.get("epochs")),
        _whole(given.get("initial_epoch")),
        _whole(given.get("steps_per_epoch", given.get("steps"))),
        validation_samples,
        validation_batches,
        _whole(given.get("validation_batch_size")),
        _whole(given.get("validation_steps")),
        _whole(given.get("validation_freq")),
    ]


def _lengths(data: Any) -> tuple[int, int]:
    """Return the number of samples, or of a dataset's batches."""
    if data is None:
        return UNKNOWN, UNKNOWN
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    shape = getattr(leaves[0], "shape", None) if leaves else None
    try:
        if shape is not None and len(shape) > 0:
            return int(shape[0]), UNKNOWN
        return UNKNOWN, len(data)
    except (TypeError, ValueError, AttributeError):
        return UNKNOWN, UNKNOWN  # a generator, or a dataset that does not know its own length


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else UNKNOWN
