"""Run notebook cells on every node of a pool: ``import sky_jupyter as sky``.

In a notebook: ``%load_ext sky_jupyter``, then ``%%sky --nodes 2 --plugins jax,keras`` over a cell.
In a script: ``with sky.Compute(nodes=2) as pool: train() @ pool``.

The face is lazy: a name's module is imported when the name is first used, so that importing this
package costs nothing, and a node needs only what it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_HOMES = {
    "Accelerator": "accelerators",
    "BootstrapError": "errors",
    "BroadcastError": "pool.failures",
    "CaptureError": "errors",
    "CellError": "pool.results",
    "CellResult": "pool.results",
    "Compute": "api",
    "Future": "api",
    "Group": "api",
    "Image": "image",
    "InstanceInfo": "node.runtime",
    "Local": "providers",
    "LogConfig": "options",
    "NotInPoolError": "errors",
    "Options": "options",
    "PendingCall": "api",
    "PipIndex": "image",
    "Plugin": "plugins",
    "PoolError": "errors",
    "ProvisionError": "errors",
    "RankDied": "errors",
    "RemoteError": "errors",
    "RemoteRepr": "node.standins",
    "SSH": "providers",
    "SkyError": "errors",
    "Spec": "api",
    "SpecError": "errors",
    "Worker": "options",
    "barrier": "node.named",
    "counter": "node.named",
    "dict": "node.named",
    "function": "api",
    "gather": "api",
    "included": "node.modules",
    "instance_info": "node.runtime",
    "is_head": "node.runtime",
    "lock": "node.named",
    "queue": "node.named",
    "set": "node.named",
    "shard": "node.shard",
    "silent": "node.runtime",
    "sky": "api",
    "stderr": "node.runtime",
    "stdout": "node.runtime",
    "stream": "api.streams",
}
_MODULES = ("accelerators", "plugins")

# `from sky_jupyter import *` takes nobody's own `dict` and `set` away.
_STARLESS = ("dict", "set")

__all__ = [  # noqa: PLE0604
    "__version__",
    "load_ipython_extension",
    "unload_ipython_extension",
    *_MODULES,
    *(name for name in _HOMES if name not in _STARLESS),
]

if TYPE_CHECKING:
    from . import accelerators as accelerators
    from . import plugins as plugins
    from .accelerators import Accelerator as Accelerator
    from .api import Compute as Compute
    from .api import Future as Future
    from .api import Group as Group
    from .api import PendingCall as PendingCall
    from .api import Spec as Spec
    from .api import function as function
    from .api import gather as gather
    from .api import sky as sky
    from .api.streams import stream as stream
    from .errors import BootstrapError as BootstrapError
    from .errors import CaptureError as CaptureError
    from .errors import NotInPoolError as NotInPoolError
    from .errors import PoolError as PoolError
    from .errors import ProvisionError as ProvisionError
    from .errors import RankDied as RankDied
    from .errors import RemoteError as RemoteError
    from .errors import SkyError as SkyError
    from .errors import SpecError as SpecError
    from .image import Image as Image
    from .image import PipIndex as PipIndex
    from .node.modules import included as included
    from .node.named import barrier as barrier
    from .node.named import counter as counter
    from .node.named import dict as dict  # noqa: A004 - what Skyward calls it
    from .node.named import lock as lock
    from .node.named import queue as queue
    from .node.named import set as set  # noqa: A004 - what Skyward calls it
    from .node.runtime import InstanceInfo as InstanceInfo
    from .node.runtime import instance_info as instance_info
    from .node.runtime import is_head as is_head
    from .node.runtime import silent as silent
    from .node.runtime import stderr as stderr
    from .node.runtime import stdout as stdout
    from .node.shard import shard as shard
    from .node.standins import RemoteRepr as RemoteRepr
    from .options import LogConfig as LogConfig
    from .options import Options as Options
    from .options import Worker as Worker
    from .plugins import Plugin as Plugin
    from .pool.failures import BroadcastError as BroadcastError
    from .pool.results import CellError as CellError
    from .pool.results import CellResult as CellResult
    from .providers import SSH as SSH
    from .providers import Local as Local


def _find(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOMES:
        # With what makes pools: before a file of the user's breaks an import in the midst of it.
        if _HOMES[name] == "api" and (problem := importlib.import_module(".bootstrap.hidden", __name__).problem()):
            raise ImportError(problem)
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    hint = "" if name.startswith("_") else importlib.import_module(".api.elsewhere", __name__).hint(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


if not TYPE_CHECKING:
    # Checkers know the names by their imports above, and are to tell of others.
    __getattr__ = _find


def __dir__() -> list[str]:
    return sorted([*__all__, *_STARLESS])


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext sky_jupyter`` calls."""
    from .bootstrap import hidden

    if problem := hidden.problem():
        from IPython.core.error import UsageError

        raise UsageError(problem)
    from . import magics

    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext sky_jupyter`` calls: ends the pools that are not kept."""
    from . import magics

    magics.unload(shell)
