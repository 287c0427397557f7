"""Keras over torch in a rank: `fit` averages every gradient.

It starts from the head's weights.

Keras itself does neither: plain `fit` would train a separate model on each rank, without a warning. Nor does Keras
combine the ranks' results of `evaluate`. The process group may be set up before or after this module's `install`: it
is looked for when a model trains. In a run that leaves out some ranks, each rank works alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch
import torch.distributed as dist

from . import model_files, model_hooks

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

# Distance between the seeds from which ranks draw dropout's masks.
_STRIDE = 1_000_003


def install(info: InstanceInfo) -> None:
    """Make `fit`, `train_on_batch` and `evaluate` of Keras models work across ranks."""
    if info.world_size == 1:
        return
    seed(info)
    model_files.install(info, _share)
    model_hooks.wrap("fit", functools.partial(_together, "fit"))
    model_hooks.wrap("train_on_batch", functools.partial(_together, "train_on_batch"))
    model_hooks.wrap("make_train_function", _start)
    for name in ("evaluate", "test_on_batch"):
        model_hooks.wrap(name, functools.partial(_evaluate, name))


def seed(info: InstanceInfo) -> None:
    """Set the same random numbers on all ranks, so that initial weights agree."""
    keras.utils.set_random_seed(zlib.crc32(f"{info.job_id} {sorted(info.ports.items())}".encode()) % 2**31)


def agree() -> None:
    """Synchronise the random numbers if they differ; a collective."""
    if _active():
        state = zlib.crc32(repr((random.getstate(), torch.get_rng_state().tolist())).encode()) % 2**31
        rows = _gather([state, random.SystemRandom().randrange(2**31)])
        if len({row[0] for row in rows}) > 1:
            keras.utils.set_random_seed(int(rows[0][1]))


def _active() -> bool:
    there = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return there and not model_hooks.in_partial_run()


class _Training:
    """Training of a model with the other ranks; begun and ended by `_training`.

    Parameters
    ----------
    model : keras.Model
        The model. It has its variables only when `start` is called.
    method : str
        Name of the method that was called.
    fresh : bool
        True to begin with the head's values.
    """

    def __init__(self, model: Any, method: str, fresh: bool) -> None:
        self.model, self.method, self.fresh = model, method, fresh
        self.parameters: list[Any] = []
        self.handles: list[Any] = []
        self.due = False

    def start(self) -> None:
        """Take over the head's values, and average gradients from now on."""
        if self.handles:
            return
        if self.fresh:
            self.agree()
        if self.method == "fit":
            _draw_apart(self.model, dist.get_rank())
        self.parameters = [variable.value for variable in self.model.trainable_variables]
        self.handles = [item.register_post_accumulate_grad_hook(self.on_gradient) for item in self.parameters]

    def agree(self) -> None:
        """Begin with the head's values; warn if others had different ones."""
        values = [value.detach().cpu().float().numpy() for value in _values(self.model)]
        if model_hooks.must_follow(self.method, _gather(model_hooks.marks_of(values))):
            broadcast(self.model)

    def on_gradient(self, _: Any) -> None:
        """Schedule the averaging at the end of the backward pass, once per pass."""
        if not self.due:
            self.due = True
            torch.autograd.Variable._execution_engine.queue_callback(self.average)

    def average(self) -> None:
        """Average all gradients in one collective, in the same order on all ranks."""
        self.due = False
        with torch.no_grad():
            gradients = [item.grad if item.grad is not None else torch.zeros_like(item) for item in self.parameters]
            # A parameter for which no rank has a gradient stays without one.
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
        """Remove the hooks from the model."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


_running: dict[int, _Training] = {}


@contextlib.contextmanager
def _training(model: Any, method: str, fresh: bool) -> Iterator[None]:
    training = _running[id(model)] = _Training(model, method, fresh)
    # Each rank draws dropout masks of its own here; afterwards all ranks draw the same numbers again.
    apart, afterwards = torch.randint(2**31, (2,)).tolist()
    torch.manual_seed(apart + dist.get_rank() * _STRIDE)
    try:
        yield
    finally:
        del _running[id(model)]
        training.end()
        torch.manual_seed(afterwards)


def _start(original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Start once Keras has built the model and its optimizer."""
    result = original(*call.args, **call.kwargs)
    if id(model) in _running:
        _running[id(model)].start()
    return result


def _together(name: str, original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    if not _active() or id(model) in _running:
        return original(*call.args, **call.kwargs)
    model_hooks.check_steps(name, call, _gather)
    if name == "train_on_batch":
        # A loop of `train_on_batch` takes the head's values only once, at its first step.
        with _training(model, name, fresh=not getattr(model, "train_function", None)):
            return original(*call.args, **call.kwargs)
    callbacks = call.arguments.get("callbacks")
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        call.arguments["callbacks"] = [_CommonLogs(), *keras.tree.flatten(callbacks or [])]
    with _training(model, name, fresh=True):
        result = original(*call.args, **call.kwargs)
    # Running means and similar values came from each rank's own batches.
    broadcast(model)
    return result


class _CommonLogs(keras.callbacks.Callback):
    """Callback that averages an epoch's metrics over all ranks; runs first.

    Otherwise early stopping might stop one rank while the others wait for it.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the numbers in place: other callbacks are given the same dict."""
        if logs is not None:
            _average(logs)


def _average(logs: dict[str, Any]) -> None:
    """Replace a dict's numbers by their means over all ranks; a collective."""
    names = sorted(key for key, value in logs.items() if isinstance(value, (int, float)))
    if names:
        means = torch.tensor([float(logs[name]) for name in names], dtype=torch.float32, device=_device())
        dist.all_reduce(means)
        logs.update(zip(names, (means / dist.get_world_size()).tolist(), strict=True))


def _evaluate(name: str, original: Callable[..., Any], model: Any, call: inspect.BoundArguments) -> Any:
    """Return loss and metrics over all ranks' samples.

    For validation inside `fit`, `_CommonLogs` does this.
    """
    if not _active() or id(model) in _running:
        return original(*call.args, **call.kwargs)
    model_hooks.check_steps(name, call, _gather)
    as_dict = call.arguments.get("return_dict", False)
    call.arguments["return_dict"] = True
    logs = dict(original(*call.args, **call.kwargs))
    _average(logs)
    return logs if as_dict else model._flatten_metrics_in_order(logs)


def _share(model: Any, epoch: int) -> int:
    """Continue from the head's epoch, with its values; a collective."""
    if not _active():
        return epoch
    first = int(_gather([epoch])[0][0])
    if first >= 0:
        broadcast(model)
    return first


def _draw_apart(model: Any, rank: int) -> None:
    """Draw dropout masks of this rank's own while the model trains."""
    for variable in model.variables:
        if rank and variable.name == "seed_generator_state":
            first, count = (int(number) for number in keras.ops.convert_to_numpy(variable.value))
            variable.assign(np.array([(first + rank * _STRIDE) % 2**32, count], "uint32"))


def _values(model: Any) -> list[Any]:
    """Return the tensors of a model and its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    passing = {id(variable) for variable in model.metrics_variables}
    variables = [*model.variables, *(optimizer.variables if optimizer else ())]
    return [variable.value for variable in variables if id(variable) not in passing]


def broadcast(model: Any) -> None:
    """Give all ranks the head's values of the model and its optimizer."""
    with torch.no_grad():
        for value in _values(model):
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
