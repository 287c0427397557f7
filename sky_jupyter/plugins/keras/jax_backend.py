"""Keras over JAX in a rank: variables on all ranks, batches split, one seed.

Each model of this process is one model of all ranks: all ranks call `fit` and `evaluate` together. Creating, loading
and saving a model and `predict` need no other rank, since users do these on one rank. In a run that leaves out some
ranks, `fit` and `evaluate` need no other rank either.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from keras.src.backend.common import global_state
from keras.src.backend.jax import distribution_lib
from keras.src.saving import saving_lib

from ...errors import SpecError
from . import model_files, model_hooks, state_backup

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo


@contextlib.contextmanager
def joined(info: InstanceInfo) -> Iterator[None]:
    """Join Keras on all ranks, until the process ends.

    A rank without peers needs nothing.
    """
    if info.world_size == 1:
        yield
        return
    state_backup.install()
    _place_alone()
    distribute(info)
    for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
        model_hooks.wrap(name, functools.partial(_together, name))
    for name in ("make_train_function", "make_test_function"):
        model_hooks.wrap(name, _start)
    for name in ("predict", "predict_on_batch", "save", "save_weights", "export"):
        model_hooks.wrap(name, _on_its_own)
    model_files.install(info, _share)
    _let_saving_alone()
    _keep_on_clear_session()
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def distribute(info: InstanceInfo) -> None:
    """Set one seed, and distribute the data over every device of every rank.

    Models of an earlier cluster are moved into the new one.
    """
    rows = _gather([random.SystemRandom().randrange(2**31), *state_backup.position()])
    # Initial weights, dropout and shuffling use this seed, and must be the same on all ranks.
    keras.utils.set_random_seed(int(rows[0][0]))
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(
            devices=keras.distribution.list_devices(),
            # Each rank passes its own share of the data: Keras cannot split arrays, and would raise.
            auto_shard_dataset=False,
        )
    )
    state_backup.move()
    _compiled_alone.clear()
    state_backup.agree([row[1:] for row in rows])


def agree(info: InstanceInfo) -> None:
    """Synchronise random numbers and trained values of all ranks, if they differ.

    A collective.
    """
    state = zlib.crc32(repr(random.getstate()).encode()) % 2**31
    rows = _gather([state, random.SystemRandom().randrange(2**31), *state_backup.position()])
    if len({row[0] for row in rows}) > 1:
        keras.utils.set_random_seed(int(rows[0][1]))
    state_backup.agree([row[2:] for row in rows])


def _together(name: str, original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Wrap `fit` and `evaluate`: refuse what would hang the ranks."""
    # The data of validation inside `fit` were checked with `fit`'s other arguments.
    inside_fit = call.arguments.get("kwargs", {}).get("_use_cached_eval_dataset", False)
    if keras.distribution.distribution() is None or inside_fit:
        return original(*call.args, **call.kwargs)
    if model_hooks.in_partial_run():
        with _own_functions(model), alone(model, keep=name in ("fit", "train_on_batch")):
            return original(*call.args, **call.kwargs)
    if name in ("fit", "evaluate"):
        model_hooks.check_steps(name, call, _gather)
    elif model in _trained_alone:
        raise SpecError(
            f"{name}: this rank has trained the model alone, in a cell or call on some ranks; call fit or evaluate on "
            "all ranks first, which go on from rank 0's values"
        )
    _beginning.append(name)
    try:
        result = original(*call.args, **call.kwargs)
    finally:
        _beginning.pop()
    if name == "fit":
        # All ranks wait until the head's callbacks have written their files.
        _gather([0])
    return result


def _share(model: Any, epoch: int) -> int:
    """Continue from the head's epoch, with its values; a collective."""
    first = int(_gather([epoch])[0][0])
    if first >= 0:
        state_backup.follow(state_backup.variables_of(model), 0)
    return first


# Methods of a model whose steps are about to begin.
_beginning: list[str] = []
# Models that this rank has trained without the others since they were last brought together.
_trained_alone: weakref.WeakSet[Any] = weakref.WeakSet()
# Per model: its parts (`_parts_of`), and the train and test functions that were compiled with them for this rank alone.
_compiled_alone: weakref.WeakKeyDictionary[Any, tuple[list[Any], Any, Any]] = weakref.WeakKeyDictionary()


def _start(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Synchronise the values once Keras has built the model and makes its function."""
    if _beginning and _beginning[-1] and keras.distribution.distribution() is not None:
        method, _beginning[-1] = _beginning[-1], ""
        if method in ("fit", "evaluate"):
            _agree_on(model, method)
    return original(*call.args, **call.kwargs)
    return original(*call.args, **call.kwargs)


def _agree_on(model: Any, method: str) -> None:
    """Take over the head's values where they differ; a collective."""
    passing = {id(variable) for variable in model.metrics_variables}
    variables = state_backup.variables_of(model) if method == "fit" else list(model.variables)
    variables = [variable for variable in variables if id(variable) not in passing]
    values = state_backup.values_of(variables)
    if model_hooks.must_follow(method, _gather([0, 0] if values is None else model_hooks.marks_of(values))):
        state_backup.follow(variables, 0)
    _trained_alone.discard(model)


@contextlib.contextmanager
def _own_functions(model: Any) -> Iterator[None]:
    """Use a model's functions compiled for this rank alone, inside the block."""
    common = model.train_function, model.test_function
    parts, train, test = _compiled_alone.get(model, ([], None, None))
    same = len(parts) > 0 and all(one is other for one, other in zip(parts, _parts_of(model), strict=True))
    model.train_function, model.test_function = (train, test) if same else (None, None)
    try:
        yield
    finally:
        _compiled_alone[model] = _parts_of(model), model.train_function, model.test_function
        model.train_function, model.test_function = common


def _parts_of(model: Any) -> list[Any]:
    """Return the parts that compiled functions refer to; `compile` replaces them."""
    return [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics")]


def _gather(row: list[int]) -> Sequence[Sequence[int]]:
    gathered: Sequence[Sequence[int]] = multihost_utils.process_allgather(np.asarray(row, np.int32)).tolist()
    return gathered


def _on_its_own(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    with alone(model):
        return original(*call.args, **call.kwargs)


@contextlib.contextmanager
def alone(model: Any, keep: bool = False) -> Iterator[None]:
    """Give a model copies of its values on this rank's first device, in the block.

    Code in the block needs no other rank. At its end, also after an interrupt, the model has the common
    values again, or with ``keep`` this rank's new ones. Variables that were created in the block join the
    distribution then.
    """
    distribution = keras.distribution.distribution()
    held = {id(item): (item, item._value, item._layout) for item in state_backup.variables_of(model)}
    values = [value for _, value, _ in held.values() if value is not None]
    # Values that are sharded over ranks, as ModelParallel does, cannot be read without the other ranks.
    if distribution is None or not all(value.is_fully_replicated for value in values):
        yield
        return
    keras.distribution.set_distribution(None)
    try:
        for variable, value, _ in held.values():
            variable._layout = None
            if value is not None:
                # A copy, because `predict` donates its buffers to XLA.
                shard = value.addressable_data(0)
                variable._value = jax.device_put(shard, shard.device, may_alias=False)
        yield
    finally:
        keras.distribution.set_distribution(distribution)
        if keep:
            _trained_alone.add(model)
        for variable, value, layout in held.values():
            mine, variable._value, variable._layout = variable._value, value, layout
            if keep and isinstance(mine, jax.Array) and not mine.is_deleted():
                variable.assign(mine)
        for variable in state_backup.variables_of(model):
            if id(variable) not in held:
                variable._layout = distribution.get_variable_layout(variable)
                variable.assign(variable._value)


def _place_alone() -> None:
    """Put a variable's value on all ranks without communication.

    JAX itself would first compare the values of all ranks. If a model is created, loaded or assigned
    values on some ranks only, they would wait for the others forever. `fit` makes the values agree later.
    """
    original = distribution_lib.distribute_tensor

    @functools.wraps(original)
    def distribute_tensor(tensor: Any, layout: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        if not isinstance(sharding, jax.sharding.Sharding) or sharding.is_fully_addressable:
            return original(tensor, layout)
        if isinstance(tensor, jax.core.Tracer) or not getattr(tensor, "is_fully_addressable", True):
            return original(tensor, layout)
        value = np.asarray(tensor) if not isinstance(tensor, jax.Array) else tensor
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
            return original(tensor, layout)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    distribution_lib.distribute_tensor = distribute_tensor


def _let_saving_alone() -> None:
    """Turn the distribution off while Keras saves or pickles.

    Both build objects with variables of their own.
    """
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
    """Keep the distribution when `keras.utils.clear_session` would drop it.

    Otherwise each rank would silently train a model of its own.
    """
    original = keras.utils.clear_session

    @functools.wraps(original)
    def clear_session(*args: Any, **kwargs: Any) -> None:
        distribution = keras.distribution.distribution()
        original(*args, **kwargs)
        keras.distribution.set_distribution(distribution)

    keras.utils.clear_session = keras.backend.clear_session = global_state.clear_session = clear_session
