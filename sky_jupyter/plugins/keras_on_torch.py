"""Keras over torch in a rank: `fit` starts from the head's weights and averages every gradient.

Keras itself does neither, and plain `fit` would train each rank's model apart without a word. The
process group may be set up before or after this: it is looked for when a model trains.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import torch
import torch.distributed as dist

from . import keras_model


def install() -> None:
    """Have `fit` and `train_on_batch` of every Keras model train with the other ranks."""
    keras_model.wrap("fit", functools.partial(_together, "fit"))
    keras_model.wrap("train_on_batch", functools.partial(_together, "train_on_batch"))
    keras_model.wrap("make_train_function", _start)


def _active() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _Training:
    """A model while it trains with the other ranks; made by `_together`, which ends it.

    Parameters
    ----------
    model : keras.Model
        The model; it has its variables only once `start` is called.
    """

    def __init__(self, model: Any, fresh: bool) -> None:
        self.model, self.fresh = model, fresh
        self.parameters: list[Any] = []
        self.handles: list[Any] = []
        self.due = False

    def start(self) -> None:
        """Take over the head's values, and average gradients from now on."""
        if self.handles:
            return
        if self.fresh:
            broadcast(self.model)
        self.parameters = [variable.value for variable in self.model.trainable_variables]
        self.handles = [item.register_post_accumulate_grad_hook(self.on_gradient) for item in self.parameters]

    def on_gradient(self, _: Any) -> None:
        """After one gradient is there: once a backward pass, have them all averaged at its end."""
        if not self.due:
            self.due = True
            torch.autograd.Variable._execution_engine.queue_callback(self.average)

    def average(self) -> None:
        """One collective for all gradients, in the same order on all ranks."""
        self.due = False
        with torch.no_grad():
            gradients = [item.grad if item.grad is not None else torch.zeros_like(item) for item in self.parameters]
            # A parameter without a gradient on any rank shall stay without one.
            there = [float(item.grad is not None) for item in self.parameters]
            exact = functools.reduce(torch.promote_types, (item.dtype for item in gradients), torch.float32)
            flat = torch.cat([item.reshape(-1).to(exact) for item in [*gradients, gradients[0].new_tensor(there)]])
            dist.all_reduce(flat)
            *parts, counts = flat.split([item.numel() for item in gradients] + [len(gradients)])
            for item, part, count in zip(self.parameters, parts, counts.tolist(), strict=True):
                if count:
                    mean = (part / dist.get_world_size()).reshape(item.shape).to(item.dtype)
                    item.grad = mean if item.grad is None else item.grad.copy_(mean)

    def end(self) -> None:
        """Leave the model's gradients to themselves again."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


_running: dict[int, _Training] = {}


@contextlib.contextmanager
def _training(model: Any, fresh: bool) -> Iterator[None]:
    training = _running[id(model)] = _Training(model, fresh)
    try:
        yield
    finally:
        del _running[id(model)]
        training.end()


def _start(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Keras makes the train function once the model and its optimizer are built: all values exist."""
    result = original(*call.args, **call.kwargs)
    if id(model) in _running:
        _running[id(model)].start()
    return result


def _together(name: str, original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    if not _active() or id(model) in _running:
        return original(*call.args, **call.kwargs)
    keras_model.check_steps(name, call, _gather)
    if name == "train_on_batch":
        # A loop of these starts from common values once, at its first step.
        with _training(model, fresh=not getattr(model, "train_function", None)):
            return original(*call.args, **call.kwargs)
    callbacks = call.arguments.get("callbacks")
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        call.arguments["callbacks"] = [_CommonLogs(), *keras.tree.flatten(callbacks or [])]
    with _training(model, fresh=True):
        result = original(*call.args, **call.kwargs)
    # Running means and the like came from each rank's own batches.
    broadcast(model)
    return result


class _CommonLogs(keras.callbacks.Callback):
    """Makes an epoch's metrics those of all ranks, first of all callbacks.

    Otherwise early stopping might end one rank, and the others would wait for it.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the numbers in place: the other callbacks are given the same dict."""
        names = sorted(key for key, value in (logs or {}).items() if isinstance(value, (int, float)))
        if logs is None or not names:
            return
        means = torch.tensor([float(logs[name]) for name in names], dtype=torch.float32, device=_device())
        dist.all_reduce(means)
        for name, value in zip(names, (means / dist.get_world_size()).tolist(), strict=True):
            logs[name] = value


def broadcast(model: Any) -> None:
    """Give all ranks the head's values of the model and its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    with torch.no_grad():
        for variable in [*model.variables, *(optimizer.variables if optimizer else ())]:
            value = variable.value
            data = value.data.contiguous().to(_device())
            dist.broadcast(data, src=0)
            value.data.copy_(data)


def _gather(row: list[int]) -> Sequence[Sequence[int]]:
    mine = torch.tensor(row, dtype=torch.int64, device=_device())
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return [item.tolist() for item in rows]


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
