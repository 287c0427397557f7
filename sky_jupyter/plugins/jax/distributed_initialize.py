"""Programs that start JAX's cluster by themselves, in a rank of a pool.

Programs for JAX across processes call `jax.distributed.initialize` and `shutdown`. In a rank, `initialize` finds the
pool's cluster. `shutdown` only hides it, until a program asks for it again or the run is over. A real shutdown would
make every array that spans ranks unusable. Besides, where ranks can outlive each other, they do not wait for each
other in a shutdown, and JAX aborts those that leave after the head.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax._src import distributed, xla_bridge

from ..core import rank_resources

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

_WAY_OUT = "have the cluster left to your program: --plugins 'jax(init=False)'"
# Part of JAX's message about an option that was set too late.
_TOO_LATE = "before backends are"
_XLA_FLAGS = "XLA_FLAGS"


@dataclass
class _Here:
    """State of this rank's cluster.

    Parameters
    ----------
    info : InstanceInfo
        The rank's description.
    init : bool
        Whether the pool has set the cluster up.
    hidden : tuple, optional
        JAX's client and service while they are hidden.
    flags : str
        Value of XLA_FLAGS when it was last looked at.
    """

    info: InstanceInfo
    init: bool
    hidden: tuple[Any, Any] | None = None
    flags: str = ""


# At most one item, added when the rank is set up.
_known: list[_Here] = []


def install(info: InstanceInfo, *, init: bool) -> None:
    """Let programs of this rank find its cluster, or with ``init=False`` start it."""
    _known[:] = [_Here(info, init, flags=os.environ.get(_XLA_FLAGS, ""))]
    for name, call in (("initialize", _initialize), ("shutdown", _shutdown)):
        original = original_of(name)
        if getattr(jax.distributed, name) is original:
            wrapper = _calling(call, original)
            setattr(jax.distributed, name, wrapper)
            setattr(distributed, name, wrapper)
    _explain_late_options()


def original_of(name: str) -> Callable[..., None]:
    """Return JAX's own function of this name in `jax.distributed`."""
    found: Callable[..., None] = getattr(jax.distributed, name)
    return getattr(found, "sky_original", found)


def show() -> None:
    """Restore the cluster in JAX's state after a program has hidden it."""
    for here in _known:
        if here.hidden is not None:
            state = distributed.global_state
            if state.client is None:
                state.client, state.service = here.hidden
            here.hidden = None


def ended(info: InstanceInfo) -> str:
    """Return in words what a program has ended of the cluster; restore a hidden one.

    Also warn, on standard error, of XLA_FLAGS that were set too late.
    """
    (here,) = _known
    if here.init:
        show()
    flags = os.environ.get(_XLA_FLAGS, "")
    started = xla_bridge.backends_are_initialized()
    if flags != here.flags:
        here.flags = flags
        if started and flags:
            print(
                f"{_XLA_FLAGS} was set after JAX had started, and has no effect: more devices are asked for with "
                "--plugins 'jax(devices=8)', other flags with sky.Image(env={...}) or before the pool starts",
                file=sys.stderr,
            )
    if info.world_size == 1 or not here.init:
        return ""
    return "" if started and distributed.global_state.client is not None else "JAX's cluster"


def _calling(call: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        call(_known[0], original, signature.bind(*args, **kwargs).arguments)

    wrapper.sky_original = original  # type: ignore[attr-defined]
    return wrapper


def _initialize(here: _Here, original: Callable[..., None], call: dict[str, Any]) -> None:
    info, started = here.info, xla_bridge.backends_are_initialized()
    world = {"num_processes": info.world_size, "process_id": info.rank}
    ours = all(call.get(name) in (None, mine) for name, mine in world.items())
    show()
    if distributed.global_state.client is not None or (here.init and started):
        if not ours:
            raise RuntimeError(
                f"a cluster of {info.world_size} processes is set up already, in which this is process {info.rank}; "
                f"the plugin jax does so before the first cell, and jax.distributed.initialize() needs no arguments: "
                f"leave them out, or {_WAY_OUT}"
            )
        return
    if ours:
        address = call.get("coordinator_address") or os.environ["JAX_COORDINATOR_ADDRESS"]
        call = {**call, **world, "coordinator_address": address, "cluster_detection_method": "deactivate"}
        if not call.get("coordinator_bind_address") and not os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):
            # Without it the service listens on every interface of the machine.
            call["coordinator_bind_address"] = address
    original(**call)
    rank_resources.note_listening("jax", info.addr)


def _shutdown(here: _Here, original: Callable[..., None], call: dict[str, Any]) -> None:
    state = distributed.global_state
    if state.client is not None:
        here.hidden = state.client, state.service
        state.client = state.service = None


def _explain_late_options() -> None:
    """Add advice to JAX's error about an option that is set too late.

    It is too late because the pool has started JAX.
    """
    kind = type(jax.config)
    original = kind.update
    if hasattr(original, "sky_original"):
        return

    @functools.wraps(original)
    def update(self: Any, name: str, value: Any) -> None:
        try:
            original(self, name, value)
        except RuntimeError as error:
            if _TOO_LATE not in str(error) or not _known[0].init:
                raise
            with contextlib.suppress(Exception):
                if name == "jax_num_cpu_devices" and value == len(jax.local_devices(backend="cpu")):
                    return
            asked = f"jax(devices={value})" if name == "jax_num_cpu_devices" else "jax(init=False)"
            raise RuntimeError(
                f"{error} The plugin jax has done so before the first cell, to set the cluster up: write "
                f"--plugins '{asked}'"
            ) from None

    update.sky_original = original  # type: ignore[attr-defined]
    kind.update = update
