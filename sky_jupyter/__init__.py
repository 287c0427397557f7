"""Notebook cells on every node of a pool: ``import sky_jupyter as sky``.

In a notebook: ``%load_ext sky_jupyter``, then ``%%sky --nodes 2 --plugins jax,keras`` over a cell.
In a script: ``with sky.Compute(nodes=2) as pool: train() @ pool``.

The package is lazy: a name's module is imported when the name is first used. Importing the package is fast, and a node
imports only the modules that it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_HOMES = {
    "AWS": "providers",
    "Accelerator": "spec.accelerators",
    "BootstrapError": "errors",
    "BroadcastError": "pool.runs.broadcast_error",
    "CaptureError": "errors",
    "CellError": "pool.runs.result",
    "CellResult": "pool.runs.result",
    "Compute": "api",
    "Future": "api",
    "Group": "api",
    "Image": "spec.image",
    "InstanceInfo": "node.runtime.instance_info",
    "Kubeflow": "providers",
    "Kubernetes": "providers",
    "Local": "providers",
    "LogConfig": "spec.options",
    "NotInPoolError": "errors",
    "Options": "spec.options",
    "PendingCall": "api",
    "PipIndex": "spec.image",
    "Plugin": "plugins",
    "PoolError": "errors",
    "ProvisionError": "errors",
    "RankDied": "errors",
    "RemoteError": "errors",
    "RemoteRepr": "node.serialization.unpicklable_placeholders",
    "SSH": "providers",
    "SkyError": "errors",
    "Slurm": "providers",
    "Spec": "api",
    "SpecError": "errors",
    "Worker": "spec.options",
    "barrier": "node.shared.named_objects",
    "counter": "node.shared.named_objects",
    "dict": "node.shared.named_objects",
    "files": "api",
    "function": "api",
    "gather": "api",
    "included": "node.kernel.project_modules",
    "instance_info": "node.runtime.instance_info",
    "interruption": "node.runtime.interruption",
    "is_head": "node.runtime.instance_info",
    "lock": "node.shared.named_objects",
    "offers": "providers.offer_list",
    "on_interruption": "node.runtime.interruption",
    "queue": "node.shared.named_objects",
    "set": "node.shared.named_objects",
    "shard": "node.runtime.shard",
    "silent": "node.runtime.output_filters",
    "sky": "api",
    "stderr": "node.runtime.output_filters",
    "stdout": "node.runtime.output_filters",
    "stream": "api",
}
_MODULES = {"accelerators": "spec.accelerators", "plugins": "plugins"}

# `from sky_jupyter import *` must not shadow the builtins `dict` and `set`.
_STARLESS = ("dict", "set")

__all__ = [  # noqa: PLE0604
    "__version__",
    "load_ipython_extension",
    "unload_ipython_extension",
    *_MODULES,
    *(name for name in _HOMES if name not in _STARLESS),
]

if TYPE_CHECKING:
    from . import plugins as plugins
    from .api import Compute as Compute
    from .api import Future as Future
    from .api import Group as Group
    from .api import PendingCall as PendingCall
    from .api import Spec as Spec
    from .api import files as files
    from .api import function as function
    from .api import gather as gather
    from .api import sky as sky
    from .api import stream as stream
    from .errors import BootstrapError as BootstrapError
    from .errors import CaptureError as CaptureError
    from .errors import NotInPoolError as NotInPoolError
    from .errors import PoolError as PoolError
    from .errors import ProvisionError as ProvisionError
    from .errors import RankDied as RankDied
    from .errors import RemoteError as RemoteError
    from .errors import SkyError as SkyError
    from .errors import SpecError as SpecError
    from .node.kernel.project_modules import included as included
    from .node.runtime.instance_info import InstanceInfo as InstanceInfo
    from .node.runtime.instance_info import instance_info as instance_info
    from .node.runtime.instance_info import is_head as is_head
    from .node.runtime.interruption import interruption as interruption
    from .node.runtime.interruption import on_interruption as on_interruption
    from .node.runtime.output_filters import silent as silent
    from .node.runtime.output_filters import stderr as stderr
    from .node.runtime.output_filters import stdout as stdout
    from .node.runtime.shard import shard as shard
    from .node.serialization.unpicklable_placeholders import RemoteRepr as RemoteRepr
    from .node.shared.named_objects import barrier as barrier
    from .node.shared.named_objects import counter as counter
    from .node.shared.named_objects import dict as dict  # noqa: A004 - what Skyward calls it
    from .node.shared.named_objects import lock as lock
    from .node.shared.named_objects import queue as queue
    from .node.shared.named_objects import set as set  # noqa: A004 - what Skyward calls it
    from .plugins import Plugin as Plugin
    from .pool.runs.broadcast_error import BroadcastError as BroadcastError
    from .pool.runs.result import CellError as CellError
    from .pool.runs.result import CellResult as CellResult
    from .providers import AWS as AWS
    from .providers import SSH as SSH
    from .providers import Kubeflow as Kubeflow
    from .providers import Kubernetes as Kubernetes
    from .providers import Local as Local
    from .providers import Slurm as Slurm
    from .providers.offer_list import offers as offers
    from .spec import accelerators as accelerators
    from .spec.accelerators import Accelerator as Accelerator
    from .spec.image import Image as Image
    from .spec.image import PipIndex as PipIndex
    from .spec.options import LogConfig as LogConfig
    from .spec.options import Options as Options
    from .spec.options import Worker as Worker


def _find(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name in _HOMES:
        # Before the API is imported: one of the user's files may shadow a package that it needs.
        if _HOMES[name] == "api" and (
            problem := importlib.import_module(".bootstrap.shadowing_files", __name__).problem()
        ):
            raise ImportError(problem)
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    hint = "" if name.startswith("_") else importlib.import_module(".api.skyward_names", __name__).hint(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


if not TYPE_CHECKING:
    # Type checkers know the names from the imports above, and must report unknown ones.
    __getattr__ = _find


def __dir__() -> list[str]:
    return sorted([*__all__, *_STARLESS])


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; IPython calls this for ``%load_ext sky_jupyter``."""
    from .bootstrap import shadowing_files

    if problem := shadowing_files.problem():
        from IPython.core.error import UsageError

        raise UsageError(problem)
    from .util.garbage import collections_paused

    with collections_paused():
        # `from . import magics` would ask `_find` first, which imports the API to give a hint.
        from .magics import load
    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics and end the pools that are not kept, for ``%unload_ext``."""
    from .magics import unload

    unload(shell)
