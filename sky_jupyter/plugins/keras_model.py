"""How the methods of `keras.Model` are changed in a rank, whatever the backend.

Methods are wrapped on the class, so that plain Keras code does the right thing. A wrapper is
``around(original, model, call)``, with the call's arguments by their names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from ..errors import SpecError

Around = Callable[[Callable[..., Any], Any, inspect.BoundArguments], Any]

# Callbacks that only write or draw: one rank doing so is enough, and several would write one file.
ONLY_WRITE = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)
UNKNOWN = -1
# What must be the same on all ranks for them to take the same steps, in the order gathered.
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
    """Put `around` about the method `name` of every Keras model."""
    original = getattr(keras.Model, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        return around(original, self, call)

    setattr(keras.Model, name, method)


def be_quiet() -> None:
    """Show no bars and write no files on this rank, unless a call says ``verbose=`` itself."""
    for name in ("fit", "evaluate", "predict"):
        wrap(name, _quietly)


def _quietly(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    if call.arguments.get("verbose", "auto") == "auto":
        call.arguments["verbose"] = 0
    callbacks = call.arguments.get("callbacks")
    # A CallbackList comes from a running `fit`, which has been here already.
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
    """Refuse data that would have the ranks take different steps, on all of them alike.

    Without this the ranks with more steps wait for the others for ever, and a shorter last batch
    would silently count for more.

    Parameters
    ----------
    method : str
        The method's name, for the message.
    call : inspect.BoundArguments
        Its arguments on this rank.
    gather : callable
        Brings one list of integers together from all ranks, by rank.
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


def _count(value: int) -> str:
    return "not given" if value == UNKNOWN else str(value)


def steps_of(call: inspect.BoundArguments) -> list[int]:
    """What decides how many steps this rank takes; the order is that of STEPS."""
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
    """How many samples or, of a dataset, how many batches; the other is unknown."""
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
