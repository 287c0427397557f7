"""Keras over JAX in a rank: variables on all ranks, batches split among them, one seed.

Every model made in this process is one model of all ranks: making its variables, `fit` and
`evaluate` are steps that all ranks take together. `predict` and saving are made to need nobody
else, since people do them on one rank.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras
from jax.experimental import multihost_utils
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib

from . import keras_kept, keras_model

if TYPE_CHECKING:
    from ..node.runtime import InstanceInfo


@contextlib.contextmanager
def joined(info: InstanceInfo) -> Iterator[None]:
    """Keras on all ranks, until the process ends; a rank without peers needs nothing."""
    if info.world_size == 1:
        yield
        return
    keras_kept.install()
    distribute(info)
    for name in ("fit", "evaluate"):
        keras_model.wrap(name, functools.partial(_together, name))
    for name in ("predict", "predict_on_batch", "save", "save_weights", "export"):
        keras_model.wrap(name, _on_its_own)
    _let_saving_alone()
    _keep_on_clear_session()
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def distribute(info: InstanceInfo) -> None:
    """One seed, and every device of every rank for the data; a step of all ranks together.

    Models that are there already, from an earlier cluster, come along.
    """
    rows = _gather([random.SystemRandom().randrange(2**31), *keras_kept.position()])
    # Initial weights, dropout and shuffling draw from it, and must agree.
    keras.utils.set_random_seed(int(rows[0][0]))
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(
            devices=keras.distribution.list_devices(),
            # Each rank passes its own share: Keras cannot split arrays and raises.
            auto_shard_dataset=False,
        )
    )
    keras_kept.move()
    keras_kept.agree([row[1:] for row in rows], info.rank)


def agree(info: InstanceInfo) -> None:
    """Have all ranks draw the same random numbers, and train the same values, from here on, if they would not.

    All call it together.
    """
    state = zlib.crc32(repr(random.getstate()).encode()) % 2**31
    rows = _gather([state, random.SystemRandom().randrange(2**31), *keras_kept.position()])
    if len({row[0] for row in rows}) > 1:
        keras.utils.set_random_seed(int(rows[0][1]))
    keras_kept.agree([row[2:] for row in rows], info.rank)


def _together(name: str, original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """`fit` and `evaluate`: refuse at once what would have the ranks wait for each other for ever."""
    # Validation inside `fit` was looked at with its other arguments.
    inside_fit = call.arguments.get("kwargs", {}).get("_use_cached_eval_dataset", False)
    if keras.distribution.distribution() is not None and not inside_fit:
        keras_model.check_steps(name, call, _gather)
    return original(*call.args, **call.kwargs)


def _gather(row: list[int]) -> Sequence[Sequence[int]]:
    import numpy as np

    gathered: Sequence[Sequence[int]] = multihost_utils.process_allgather(np.asarray(row, np.int32)).tolist()
    return gathered


def _on_its_own(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    with alone(model):
        return original(*call.args, **call.kwargs)


@contextlib.contextmanager
def alone(model: Any) -> Iterator[None]:
    """The model with copies of its values on this rank's first device, and no distribution.

    What runs inside needs no other rank. Afterwards the model's values are the common ones again,
    also after an interrupt; variables that were made inside join the distribution then.
    """
    distribution = keras.distribution.distribution()
    held = {id(item): (item, item._value, item._layout) for item in keras_kept.variables_of(model)}
    values = [value for _, value, _ in held.values() if value is not None]
    # Values that are spread over ranks, as ModelParallel does, cannot be had without the others.
    if distribution is None or not all(value.is_fully_replicated for value in values):
        yield
        return
    keras.distribution.set_distribution(None)
    try:
        for variable, value, _ in held.values():
            variable._layout = None
            if value is not None:
                # A copy, because `predict` gives its buffers away to XLA.
                shard = value.addressable_data(0)
                variable._value = jax.device_put(shard, shard.device, may_alias=False)
        yield
    finally:
        keras.distribution.set_distribution(distribution)
        for variable, value, layout in held.values():
            variable._value, variable._layout = value, layout
        for variable in keras_kept.variables_of(model):
            if id(variable) not in held:
                variable._layout = distribution.get_variable_layout(variable)
                variable.assign(variable._value)


def _let_saving_alone() -> None:
    """Whatever saves a model, pickling included, looks at fresh objects, whose variables must be nobody else's."""
    original = getattr(saving_lib, "get_attr_skipset", None)
    if original is None:
        return

    @functools.wraps(original)
    def get_attr_skipset(*args: Any, **kwargs: Any) -> Any:
        distribution = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            return original(*args, **kwargs)
        finally:
            keras.distribution.set_distribution(distribution)

    saving_lib.get_attr_skipset = get_attr_skipset


def _keep_on_clear_session() -> None:
    """`keras.utils.clear_session` drops the distribution too, and ranks would train apart silently."""
    original = keras.utils.clear_session

    @functools.wraps(original)
    def clear_session(*args: Any, **kwargs: Any) -> None:
        distribution = keras.distribution.distribution()
        original(*args, **kwargs)
        keras.distribution.set_distribution(distribution)

    keras.utils.clear_session = keras.backend.clear_session = global_state.clear_session = clear_session
