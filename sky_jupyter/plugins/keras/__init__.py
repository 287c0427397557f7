"""Plugin `keras`: plain `fit` trains one model on all ranks, over JAX or torch.

Over TensorFlow the plugin only adds the packages and sets KERAS_BACKEND: there, each rank works by itself.

This module has what the notebook needs. The code for ranks is in `model_hooks`, `model_files` and `random` (for both
backends), `jax_backend`, `state_backup` and `torch_backend`. These import Keras, so only ranks import them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import SkyError, SpecError
from ...spec.accelerators import NVIDIA
from ...spec.pool_spec import Image, PoolSpec
from ...util.text import nearest
from ...util.validate import check_flag
from ..core.plugin import Plugin, given
from ..jax import jax as jax_plugin
from ..torch import torch as torch_plugin

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

TENSORFLOW = "tensorflow"
_TENSORFLOW = re.compile(r"tensorflow\b", re.IGNORECASE)
BACKENDS = ("jax", "torch", "tensorflow")


def keras(backend: str = "jax", quiet: bool = True) -> Plugin:
    """Make Keras train one model: each rank calls ``fit`` with its share of data.

    On several ranks, ``backend="jax"`` needs the plugin `jax` before it, and ``backend="torch"`` the
    plugin `torch`, before or after it. ``backend="tensorflow"`` excludes both: there, training on
    several ranks needs a strategy of ``tf.distribute`` that your code sets up.

    Parameters
    ----------
    backend : str
        ``"jax"``, ``"torch"`` or ``"tensorflow"``.
    quiet : bool
        Leave out progress bars, and callbacks that only write or print, on all ranks except rank 0. A
        ``verbose=`` in the call brings back the progress bars.

    Returns
    -------
    Plugin
        The value for ``plugins=``.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """
    if backend not in BACKENDS:
        raise SpecError(
            f"keras(backend={backend!r}): the backends are {', '.join(BACKENDS)}{nearest(str(backend), BACKENDS)}"
        )
    check_flag("keras(quiet=...)", quiet)
    args = given(backend=None if backend == "jax" else backend, quiet=None if quiet else False)
    if backend == TENSORFLOW:
        return Plugin(
            name="keras",
            args=args,
            fits=_fits_tensorflow,
            transform=functools.partial(_transform, backend),
            around_process=_around_tensorflow,
        )
    return Plugin(
        name="keras",
        args=args,
        behind=("jax",) if backend == "jax" else (),
        fits=functools.partial(_fits, backend),
        preload=("keras", f"{__package__}.{backend}_backend"),
        collective=True,
        transform=functools.partial(_transform, backend),
        around_process=functools.partial(_around, backend, quiet),
        again=functools.partial(_again, backend),
        check=functools.partial(_check, backend),
        around_partial_run=_around_partial_run,
    )


def _fits(backend: str, spec: PoolSpec) -> None:
    """Refuse several ranks without a plugin that joins them."""
    if spec.world_size == 1 or any(plugin.name == backend for plugin in spec.plugins):
        return
    ranks = f"on {spec.world_size} ranks"
    with_torch = '--plugins "keras(backend=torch),torch"'
    if backend == "torch":
        raise SpecError(f"keras(backend=torch) {ranks} needs the plugin torch, which joins them; write {with_torch}")
    raise SpecError(
        f"keras {ranks} needs the plugin that joins them, jax or torch; write --plugins jax,keras or {with_torch}"
    )


def _fits_tensorflow(spec: PoolSpec) -> None:
    for other in ("jax", "torch"):
        if any(plugin.name == other for plugin in spec.plugins):
            raise SpecError(
                f"keras(backend=tensorflow) takes no part in what the plugin {other} sets up: TensorFlow's ranks work "
                f"together by tf.distribute only, which your code sets up; leave {other} out, or write "
                f"{'jax,keras' if other == 'jax' else 'keras(backend=torch),torch'}"
            )


def _transform(backend: str, image: Image, spec: PoolSpec) -> Image:
    if any(plugin.name == "jax" and dict(plugin.args).get("init") is False for plugin in spec.plugins):
        raise SpecError("keras on JAX needs the pool's cluster: write jax() instead of jax(init=False)")
    asked = image.env.get("KERAS_BACKEND", backend)
    if asked != backend:
        raise SpecError(
            f"the variable KERAS_BACKEND={asked} contradicts keras(backend={backend}); "
            f"leave the variable out, or write keras(backend={asked})"
        )
    image = image.adding(pip=("keras",), env={"KERAS_BACKEND": backend})
    if backend == TENSORFLOW:
        return _with_tensorflow(image, spec)
    if any(plugin.name == backend for plugin in spec.plugins):
        return image
    return (jax_plugin() if backend == "jax" else torch_plugin()).transform_image(image, spec)


def _with_tensorflow(image: Image, spec: PoolSpec) -> Image:
    if spec.world_size > 1:
        warnings.warn(
            f"keras(backend=tensorflow) on {spec.world_size} ranks: fit trains each rank's model by itself, unless "
            "your code sets up a strategy of tf.distribute",
            stacklevel=2,
        )
    if any(_TENSORFLOW.match(item) for item in image.pip):
        # Such as tensorflow-cpu, another package that has the same module.
        return image
    nvidia = spec.accelerator is not None and spec.accelerator.maker == NVIDIA
    return image.adding(pip=("tensorflow[and-cuda]" if nvidia else "tensorflow",))


@contextlib.contextmanager
def _around_tensorflow(info: InstanceInfo) -> Iterator[None]:
    os.environ["KERAS_BACKEND"] = TENSORFLOW
    yield


@contextlib.contextmanager
def _around(backend: str, quiet: bool, info: InstanceInfo) -> Iterator[None]:
    os.environ["KERAS_BACKEND"] = backend
    import keras

    if keras.backend.backend() != backend:
        raise SkyError(
            f"Keras was imported with the backend {keras.backend.backend()!r} before the plugin could choose "
            f"{backend!r}; do not import keras in what the ranks load first"
        )
    from . import model_hooks

    if quiet and not info.is_head:
        model_hooks.be_quiet()
    if backend == "jax":
        from . import jax_backend

        with jax_backend.joined(info):
            yield
    else:
        from . import torch_backend

        torch_backend.install(info)
        yield


@contextlib.contextmanager
def _around_partial_run(info: InstanceInfo) -> Iterator[None]:
    """Let a cell that leaves out some ranks use models without waiting for others."""
    if info.world_size == 1:
        yield
        return
    from . import model_hooks

    with model_hooks.partial_run(info.rank):
        yield


def _again(backend: str, info: InstanceInfo) -> None:
    """Set Keras up in the ranks' new cluster; with JAX, move the old models there."""
    if backend == "jax":
        from . import jax_backend

        jax_backend.distribute(info)
    elif info.world_size > 1:
        from . import torch_backend

        torch_backend.seed(info)


def _check(backend: str, info: InstanceInfo) -> None:
    """Synchronise random numbers, and with JAX trained values, after an interrupt."""
    if backend == "jax" and info.world_size > 1:
        from . import jax_backend

        jax_backend.agree(info)
    elif info.world_size > 1:
        from . import torch_backend

        torch_backend.agree()
