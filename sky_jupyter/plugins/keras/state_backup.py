"""Backup of a model's values in Keras over JAX.

The values survive an aborted step and a new cluster.

Keras donates a model's values to each training step, which writes the new values into their memory. If a broken
collective ends the step, neither old nor new values are left. On CPUs, where collectives can be broken, a step here
writes into the memory of the values before last instead.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from . import model_hooks

# In bytes. A smaller array is allocated as fast as its memory is reused.
_LARGE = 1 << 16
# Number of parts in a prediction's state. Predictions work on copies; see `jax_backend.alone`.
_PREDICTED = 2
_STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")

# The step that was taken last, while its training goes on.
_last_step: list[_Step] = []
# The model that was trained last.
_trained: list[weakref.ReferenceType[Any]] = []


def install() -> None:
    """Make training and evaluation keep a model's values until new ones exist."""
    from keras.src.backend.jax import trainer

    if jax.default_backend() != "cpu" or not hasattr(trainer, "jit"):
        return
    original = trainer.jit

    def jit(function: Callable[..., Any], *, donate_argnums: Any = None, **options: Any) -> Any:
        if donate_argnums != 0:
            return original(function, donate_argnums=donate_argnums, **options)
        return _Step(original, function, options)

    trainer.jit = jit
    model_hooks.wrap("_get_jax_state", _note_state)
    for name in ("fit", "evaluate", "train_on_batch"):
        model_hooks.wrap(name, functools.partial(_safely, name))


class _Step:
    """Compiled step ``(state, data) -> (logs, state)`` that leaves its input intact.

    Parameters
    ----------
    jit : callable
        Keras's own `jit`.
    function : callable
        The step.
    options : dict
        For `jit`.
    """

    def __init__(self, jit: Callable[..., Any], function: Callable[..., Any], options: dict[str, Any]) -> None:
        def step(state: Any, room: Any, *data: Any) -> Any:
            return function(state, *data)

        self._giving = jit(function, donate_argnums=0, **options)
        self._step = jit(step, donate_argnums=1, keep_unused=True, **options)
        # Positions of the large arrays in the state, and unused arrays of their shapes.
        self._large: list[tuple[int, int]] | None = None
        self._room: list[Any] = []
        self._made: Any = None
        # State at the start of the last step: the newest one that is known to be complete.
        self.given: Any = None

    def __call__(self, state: Any, *data: Any) -> Any:
        if len(state) == _PREDICTED:
            return self._giving(state, *data)
        # An aborted step may have returned without an error; this call then raises.
        jax.block_until_ready([part[-1] for part in state if part])
        if self._large is None:
            self._large = _large(state)
        # If this step made the current values itself, the values before them are unused, and their memory is free.
        if self._made is None or any(state[i][j] is not self._made[i][j] for i, j in self._large):
            self._room = [_room_for(state[i][j]) for i, j in self._large]
        self.given, _last_step[:] = state, [self]
        logs, made = self._step(state, self._room, *data)
        # An array that a step returns unchanged may share memory: it must not be overwritten.
        self._large = [(i, j) for i, j in self._large if made[i][j] is not state[i][j]]
        self._room, self._made = [state[i][j] for i, j in self._large], made
        return logs, made

    def release(self) -> None:
        """Free the memory between one training and the next."""
        self._room, self._made, self.given = [], None, None


def _large(state: Any) -> list[tuple[int, int]]:
    places = [(part, index) for part, values in enumerate(state) for index in range(len(values))]
    return [(i, j) for i, j in places if isinstance(state[i][j], jax.Array) and state[i][j].nbytes >= _LARGE]


def _room_for(value: Any) -> Any:
    """Return an empty array, allocated without any other rank."""
    empty = np.empty(value.sharding.shard_shape(value.shape), value.dtype)
    parts = [jax.device_put(empty, device, may_alias=False) for device in value.sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, parts)


def _note_state(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Back up values that Keras takes out of the variables until the first step ends."""
    state = original(*call.args, **call.kwargs)
    if call.arguments.get("purge_model_variables"):
        names = [name for name in _STATE if call.arguments.get(name)]
        model._jax_state = dict(zip(names, state, strict=True))
    return state


def _safely(name: str, original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Leave the newest complete values in the variables, however the training ends."""
    if name != "evaluate" and not model_hooks.in_partial_run():
        _trained[:] = [weakref.ref(model)]
    try:
        return original(*call.args, **call.kwargs)
    except BaseException:
        with contextlib.suppress(Exception):
            model.jax_state_sync()
        _restore(model)
        raise
    finally:
        if name == "fit" and _last_step:
            _last_step.pop().release()


def _restore(model: Any) -> None:
    """Restore the values before the last step, if the model has lost its own."""
    given = _last_step[0].given if _last_step else None
    optimizer = getattr(model, "optimizer", None)
    parts = [model.trainable_variables, model.non_trainable_variables, model.metrics_variables]
    if given is not None and len(given) == len(_STATE):
        parts.insert(2, optimizer.variables if optimizer else [])
    if given is None or [len(part) for part in parts] != [len(part) for part in given]:
        return
    pairs = [pair for part, values in zip(parts, given, strict=True) for pair in zip(part, values, strict=True)]
    if all(_readable(variable) for variable, _ in pairs):
        return
    for variable, value in pairs:
        variable._value = value


# -- a new cluster -----------------------------------------------------------------------------------


def move() -> None:
    """Move the values of all models into the current cluster, without communication.

    Functions that were compiled for the old cluster are dropped: Keras compiles them again when needed.
    """
    distribution = keras.distribution.distribution()
    for item in gc.get_objects():
        if issubclass(type(item), keras.Variable):
            _move(item, distribution)
        elif issubclass(type(item), keras.Model):
            item.train_function = item.test_function = item.predict_function = None
            item._jax_state = None


def _move(variable: Any, distribution: Any) -> None:
    if not _readable(variable):
        return
    spread, variable._layout = getattr(variable, "_layout", None) is not None, None
    # The layout is None at this point: a distribution would return the one that a variable has.
    _place(variable, _host(variable), distribution.get_variable_layout(variable) if spread else None)


def _place(variable: Any, value: np.ndarray, layout: Any) -> None:
    """Give a variable a value that all ranks have, without communication."""
    variable._layout = layout
    if layout is None:
        variable._value = jax.numpy.asarray(value)
        return
    sharding = getattr(layout, "backend_layout", layout)
    parts = [jax.device_put(value, device) for device in sharding.addressable_devices]
    variable._value = jax.make_array_from_single_device_arrays(value.shape, sharding, parts)


# -- one step apart ----------------------------------------------------------------------------------


def _last_trained() -> Any:
    return _trained[0]() if _trained else None


def position() -> list[int]:
    """Return a hash of the last trained model's shapes, and its number of steps.

    Ranks with the same hash have trained the same model. Both numbers are 0 if they are unknown.
    """
    model = _last_trained()
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    if model is None or iterations is None or not all(map(_readable, variables_of(model))):
        return [0, 0]
    shapes = [(tuple(variable.shape), str(variable.dtype)) for variable in variables_of(model)]
    return [zlib.crc32(repr(shapes).encode()) % 2**31 or 1, int(_host(iterations)) % 2**31]


def agree(positions: Sequence[Sequence[int]]) -> None:
    """Continue from the furthest rank's values after an interrupt; a collective.

    Parameters
    ----------
    positions : sequence
        The result of `position` on each rank.
    """
    model = _last_trained()
    marks, steps = zip(*positions, strict=True)
    if model is None or not marks[0] or len(set(marks)) > 1 or len(set(steps)) == 1:
        return
    follow(variables_of(model), steps.index(max(steps)))


def values_of(variables: Sequence[Any]) -> list[np.ndarray] | None:
    """Return the values of variables; None if that needs the other ranks."""
    return [_host(item) for item in variables] if all(map(_readable, variables)) else None


def follow(variables: Sequence[Any], source: int) -> None:
    """Give all ranks the values that one of them has; a collective."""
    mine = jax.process_index() == source
    values = multihost_utils.broadcast_one_to_all([_host(item) for item in variables], is_source=mine)
    for variable, value in zip(variables, values, strict=True):
        _place(variable, np.asarray(value), variable._layout)


def variables_of(model: Any) -> list[Any]:
    """Return all variables of a model, its metrics and its optimizer, each once."""
    optimizer = getattr(model, "optimizer", None)
    found = [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer else ())]
    return list({id(variable): variable for variable in found}.values())


def _readable(variable: Any) -> bool:
    value = getattr(variable, "_value", None)
    if not isinstance(value, jax.Array) or value.is_deleted() or not value.is_fully_replicated:
        return False
    try:
        value.block_until_ready()
    except Exception:
        return False  # the step that should have made it was aborted
    return True


def _host(variable: Any) -> np.ndarray:
    return np.asarray(variable._value.addressable_data(0))
