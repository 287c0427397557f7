"""Plugin `accelerate`: the set-up that `accelerate launch` would make.

With it, `Accelerator()` spans all ranks.

Hugging Face's Accelerate, and `Trainer` which uses it, read the environment when they are first used, and keep what
they find. So everything is set before the first cell. The plugin `torch` sets the process group up; if the pool does
not have it, this plugin does. Accelerate's own settings come from the plugin's arguments.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import SpecError
from ..spec.pool_spec import Image, PoolSpec
from ..util.text import nearest
from ..util.validate import is_whole
from .core import rank_resources
from .core.plugin import Plugin
from .torch import BACKENDS, COLLECTIVES, MODULES, NOISE
from .torch import abort as abort_group
from .torch import again as join_again
from .torch import around as around_group
from .torch import check as check_group
from .torch import ended as ended_group
from .torch import torch as torch_plugin

if TYPE_CHECKING:
    from ..node.runtime.instance_info import InstanceInfo

PRECISIONS = ("no", "fp16", "bf16", "fp8")
SETTINGS = ("mixed_precision", "gradient_accumulation_steps", "backend", "fsdp", "deepspeed")
# Settings for which Accelerate's variable has another name.
_FSDP = {"TRANSFORMER_LAYER_CLS_TO_WRAP": "TRANSFORMER_CLS_TO_WRAP"}
_DEEPSPEED = "ACCELERATE_DEEPSPEED_"
_PLAIN = {"GRADIENT_ACCUMULATION_STEPS", "GRADIENT_CLIPPING"}
_TIMEOUT = 300.0
_LAUNCHERS = ("notebook_launcher", "debug_launcher")


def accelerate(config: Mapping[str, Any] | None = None, mixed_precision: str | None = None) -> Plugin:
    """Set up Hugging Face's Accelerate on all ranks.

    ``Accelerator()`` and ``Trainer`` use the pool's process group.

    Parameters
    ----------
    config : mapping, optional
        Settings as in the file of ``accelerate config``: ``mixed_precision``,
        ``gradient_accumulation_steps``, ``backend`` (nccl or gloo), and ``fsdp`` or ``deepspeed``, each a mapping
        of its own settings. The pool sets ranks and addresses.
    mixed_precision : str, optional
        ``"no"``, ``"fp16"``, ``"bf16"`` or ``"fp8"``; the same as in `config`.

    Returns
    -------
    Plugin
        The value for ``plugins=``.

    Raises
    ------
    SpecError
        When a setting is not valid, or `mixed_precision` contradicts `config`.
    """
    settings = dict(config or {})
    if mixed_precision is not None and settings.setdefault("mixed_precision", mixed_precision) != mixed_precision:
        raise SpecError("accelerate: mixed_precision is given twice, and once otherwise in config")
    _check(settings)
    return Plugin(
        name="accelerate",
        args=tuple((key, _plain(settings[key])) for key in SETTINGS if key in settings),
        behind=("torch",),
        preload=(*MODULES, "accelerate"),
        collective=True,
        noise=NOISE,
        collectives=COLLECTIVES,
        transform=_transform,
        around_process=functools.partial(_around, settings),
        again=functools.partial(_again, settings),
        abort=_abort,
        check=_check_step,
        ended=_ended,
        gone="what Accelerator() has prepared",
    )


def _check(settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name not in SETTINGS:
            raise SpecError(
                f"accelerate has no setting {name!r}; its settings are {', '.join(SETTINGS)}"
                f"{nearest(str(name), SETTINGS)}. Ranks and addresses are the pool's own"
            )
    precision, backend = settings.get("mixed_precision", "no"), settings.get("backend", "gloo")
    if precision not in PRECISIONS:
        raise SpecError(f"accelerate(mixed_precision={precision!r}): it is one of {', '.join(PRECISIONS)}")
    if backend not in BACKENDS:
        raise SpecError(f"accelerate(backend={backend!r}): the backends are {', '.join(BACKENDS)}")
    steps = settings.get("gradient_accumulation_steps", 1)
    if not is_whole(steps, 1):
        raise SpecError(f"accelerate(gradient_accumulation_steps={steps!r}) must be a whole number above 0")
    for name in ("fsdp", "deepspeed"):
        if not isinstance(settings.get(name, {}), Mapping):
            raise SpecError(f"accelerate: {name} must be a mapping of its settings, not {settings[name]!r}")
    if "fsdp" in settings and "deepspeed" in settings:
        raise SpecError("accelerate: fsdp and deepspeed contradict each other; give one of them")


def _transform(image: Image, spec: PoolSpec) -> Image:
    if not any(plugin.name == "torch" for plugin in spec.plugins):
        image = torch_plugin().transform_image(image, spec)
    return image.adding(pip=("accelerate",))


def variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that `accelerate launch` would set for these settings."""
    env = {}
    if "mixed_precision" in settings:
        env["ACCELERATE_MIXED_PRECISION"] = str(settings["mixed_precision"])
    if "gradient_accumulation_steps" in settings:
        env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(settings["gradient_accumulation_steps"])
    if "fsdp" in settings:
        env["ACCELERATE_USE_FSDP"] = "true"
        for key, value in settings["fsdp"].items():
            name = key.upper().removeprefix("FSDP_")
            env[f"FSDP_{_FSDP.get(name, name)}"] = _text(value)
    if "deepspeed" in settings:
        env["ACCELERATE_USE_DEEPSPEED"] = "true"
        for key, value in settings["deepspeed"].items():
            name = key.upper().removeprefix("DEEPSPEED_")
            env[f"ACCELERATE_{name}" if name in _PLAIN else _DEEPSPEED + name] = _text(value)
    return env


def _plain(value: Any) -> Any:
    """Return a setting as a value that can be compared and shown."""
    return json.dumps(dict(value), sort_keys=True, default=str) if isinstance(value, Mapping) else value


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _around(settings: Mapping[str, Any], info: InstanceInfo) -> Iterator[None]:
    os.environ.update(variables(settings))
    with contextlib.ExitStack() as stack:
        if "torch" not in info.ports:
            stack.enter_context(around_group(settings.get("backend"), _TIMEOUT, _own(info)))
        _settle(settings, info)
        _install_launchers(info)
        yield


def _own(info: InstanceInfo) -> InstanceInfo:
    """Return `info` with this plugin's port, for the group that it sets up itself."""
    return replace(info, ports={**info.ports, "torch": info.port("accelerate")})


def _settle(settings: Mapping[str, Any], info: InstanceInfo) -> None:
    """Set the variables that Accelerate needs once there is a process group."""
    import torch.distributed as dist

    # `torch(init=False)` leaves the group to the program.
    if dist.is_initialized() and dist.get_backend() == "gloo":
        # The machine may have devices that were not assigned to this pool.
        os.environ["ACCELERATE_USE_CPU"] = "true"
    # Otherwise each rank would use all processors, as accelerate sees only one rank of the machine.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, rank_resources.cores() // rank_resources.place(info)[1])))


def _install_launchers(info: InstanceInfo) -> None:
    """Make Accelerate's launchers call the function in this rank.

    Otherwise they would start further processes from each rank.
    """
    import accelerate
    from accelerate import launchers

    for name in _LAUNCHERS:
        launcher = _launcher(getattr(launchers, name), info)
        setattr(launchers, name, launcher)
        setattr(accelerate, name, launcher)


def _launcher(original: Callable[..., None], info: InstanceInfo) -> Callable[..., None]:
    """Return a launcher that calls the function here: the pool's ranks run already.

    It raises ValueError if it is asked for another number of processes than the pool has ranks.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def launch(*args: Any, **kwargs: Any) -> None:
        from accelerate.utils import patch_environment

        given = signature.bind(*args, **kwargs).arguments
        asked = given.get("num_processes")
        if asked is not None and asked * given.get("num_nodes", 1) != info.world_size:
            raise ValueError(
                f"{original.__name__}(num_processes={asked}): a pool's ranks are launched already, and here are "
                f"{info.world_size} of them; leave num_processes out, or make a pool of as many ranks"
            )
        precision = given.get("mixed_precision", "no")
        with patch_environment(**({} if precision == "no" else {"ACCELERATE_MIXED_PRECISION": precision})):
            given["function"](*given.get("args", ()))

    return launch


def _again(settings: Mapping[str, Any], info: InstanceInfo) -> None:
    if "torch" not in info.ports:
        join_again(settings.get("backend"), _TIMEOUT, _own(info))
    state = sys.modules.get("accelerate.state")
    if state is not None:
        # It remembers the old group.
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
    _settle(settings, info)


def _abort(info: InstanceInfo) -> None:
    if "torch" not in info.ports:
        abort_group(info)


def _ended(info: InstanceInfo) -> str:
    return "" if "torch" in info.ports else ended_group(info)


def _check_step(info: InstanceInfo) -> None:
    if "torch" not in info.ports:
        check_group(info)
