"""Programs that start torch's process group by themselves, in a rank of a pool.

Programs for torchrun call `init_process_group` and `destroy_process_group`. In a rank, `init_process_group` finds the
pool's group and has nothing to do. If there is no group, the ranks meet through the pool's own store, so that no free
port is needed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..core import rank_resources

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

_NAME = "init_process_group"
_WAY_OUT = (
    "make smaller groups with dist.new_group(), or have the group left to your program: --plugins 'torch(init=False)'"
)


@dataclass
class _Meeting:
    """Rendezvous of this rank's programs with those of the others.

    Parameters
    ----------
    info : InstanceInfo
        The rank's description.
    store : object
        The pool's store, to which every rank is connected.
    count : int
        Number of groups that programs have made here; each has its own keys in the store.
    """

    info: InstanceInfo
    store: Any
    count: int = 0


# At most one item, added when the rank is set up.
_meetings: list[_Meeting] = []


def install(info: InstanceInfo, store: Any) -> None:
    """Let programs of this rank meet at a store, in place of an earlier one."""
    _meetings[:] = [_Meeting(info, store)]
    original = original_init()
    if getattr(distributed_c10d, _NAME) is not original:
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        _init(signature.bind(*args, **kwargs).arguments)

    init_process_group.sky_original = original  # type: ignore[attr-defined]
    # Some of torch's own modules have imported it by name.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed") and vars(module).get(_NAME) is original:
            setattr(module, _NAME, init_process_group)


def original_init() -> Callable[..., None]:
    """Return torch's own `init_process_group`."""
    found: Callable[..., None] = getattr(distributed_c10d, _NAME)
    return getattr(found, "sky_original", found)


def start(call: Mapping[str, Any]) -> None:
    """Start a process group with torch's own `init_process_group`."""
    # Only for gloo: NCCL's threads must be fast.
    gloo = call.get("backend") == "gloo"
    with rank_resources.patient_threads() if gloo else contextlib.nullcontext():
        original_init()(**call)


def ended(info: InstanceInfo) -> str:
    """Return in words what a program has ended of the pool's group."""
    return "" if dist.is_initialized() and dist.get_world_size() == info.world_size else "torch's process group"


def _init(call: dict[str, Any]) -> None:
    (meeting,) = _meetings
    info = meeting.info
    here = {"rank": info.rank, "world_size": info.world_size}
    ours = all(call.get(name) in (None, -1, mine) for name, mine in here.items())
    if dist.is_initialized():
        if not ours or dist.get_world_size() != info.world_size:
            raise ValueError(
                f"a process group of {dist.get_world_size()} ranks is set up already, in which this is rank "
                f"{dist.get_rank()}; the plugin torch does so before the first cell, and init_process_group() needs no "
                f"rank= and world_size= here: leave them out, {_WAY_OUT}"
            )
        if _suits(call.get("backend")):
            _heed_timeout(call.get("timeout"))
            return
        dist.destroy_process_group()
    if not ours or call.get("store") is not None or call.get("init_method") not in (None, "env://"):
        with rank_resources.noting_connections("torch"):
            start(call)
        return
    meeting.count += 1
    store = dist.PrefixStore(f"program-{meeting.count}", meeting.store)
    with rank_resources.noting_connections("torch"):
        start({**call, **here, "init_method": None, "store": store})


def _suits(asked: Any) -> bool:
    """Return True if the existing group fits the backend that a program asks for.

    Raise ValueError if no group of these ranks can have that backend.
    """
    text = str(asked).lower()
    if asked is None or text == "undefined":
        return True
    gpu = torch.cuda.is_available()
    by_device: Mapping[str, str] = dict(pair.split(":", 1) for pair in text.split(",")) if ":" in text else {"": text}
    wanted = {backend for device, backend in by_device.items() if gpu or device != "cuda"}
    if "nccl" in wanted and not gpu:
        raise ValueError(
            f"init_process_group({asked!r}): this rank sees no GPU, and the plugin torch has set the process group up "
            f"with {dist.get_backend()}; leave the backend out, or write 'gloo'"
        )
    return wanted == {dist.get_backend()}


def _heed_timeout(timeout: Any) -> None:
    """Apply a program's timeout to the existing group."""
    heed = getattr(distributed_c10d, "_set_pg_timeout", None)
    if timeout is not None and heed is not None:
        heed(timeout)
