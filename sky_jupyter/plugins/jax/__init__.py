"""Plugin `jax`: one JAX cluster of all ranks, set up before the first cell.

`jax.distributed` joins the ranks. Rank 0, on the head, runs the coordination service, which every other rank needs
until it leaves. So rank 0 joins with the others and leaves last.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import logging
import os
import re
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import SkyError, SpecError
from ...spec.accelerators import NVIDIA, Accelerator
from ...spec.cuda_builds import why_not_jax
from ...spec.pool_spec import Image, PoolSpec
from ...util.validate import check_flag, is_whole
from ..core import rank_resources
from ..core.plugin import Plugin, given

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

# Modules that the first use of JAX imports; none of them starts a backend or a thread.
MODULES = (
    "jax",
    "jax.numpy",
    "jax.distributed",
    "jax.extend.backend",
    "jax.experimental.mesh_utils",
    "jax.experimental.multihost_utils",
)
# Lines that C++ code writes to file descriptors 1 and 2 whenever ranks connect.
NOISE = (
    rank_resources.GLOO_NOISE,
    rank_resources.NCCL_NOISE,
    r"W\d{4} .*\] Using experimental recoverable task feature\..*",
)
# Functions in which a rank waits for others: by name, or inside compiled code.
COLLECTIVES = (
    r"jax/experimental/multihost_utils\.py:(?P<call>[a-z]\w*)\Z",
    r"jax/_src/distributed\.py:(?P<call>initialize|shutdown)\Z",
    r"jax/_src/api\.py:(?P<call>device_put|device_get|block_until_ready)\Z",
    r"jax/_src/interpreters/pxla\.py:(\w+\.)*__call__\Z",
    r"jax/_src/array\.py:(\w+\.)*(_value|block_until_ready|__array__)\Z",
    r"(libjax_common|xla_extension)[^:/]*\.so:",
)
# JAX ends the process with SIGABRT if its peers have not joined by then.
JOIN_SECONDS = 60
_CUDA = re.compile(r"cu(?P<major>12|13)[0-9x]?\Z")
_WITH_EXTRAS = re.compile(r"jax\s*\[", re.IGNORECASE)

# Prefix of the coordinator's keys by which groups of CPU devices find each other.
_MEETINGS = "cpu:gloo"
# Value that gloo reads and refuses: no host name, and an address of one byte.
_NO_ADDRESS = struct.pack("<QQ", 0, 1) + bytes(256)

log = logging.getLogger(__name__)


def jax(cuda: str | None = None, devices: int | None = None, init: bool = True) -> Plugin:
    """Set up JAX as one cluster: ``jax.devices()`` lists the devices of every rank.

    Parameters
    ----------
    cuda : str, optional
        The CUDA release for nodes with NVIDIA accelerators, such as ``"cu128"``: ``cu12x`` installs
        ``jax[cuda12]``, ``cu13x`` installs ``jax[cuda13]``. By default the one that suits the pool's
        accelerator. Nodes without an accelerator get plain ``jax``.
    devices : int, optional
        Number of CPU devices of each rank; 1 by default.
    init : bool
        Whether the cluster is set up before the first cell. If False, programs call
        ``jax.distributed.initialize()`` themselves, before they use JAX.

    Returns
    -------
    Plugin
        The value for ``plugins=``.

    Raises
    ------
    SpecError
        When JAX has no packages for that CUDA release, or `devices` is not a whole number above 0.
    """
    if cuda is not None:
        _major(cuda)
    if devices is not None and not is_whole(devices, 1):
        raise SpecError(f"jax(devices=...) must be a whole number above 0, not {devices!r}")
    check_flag("jax(init=...)", init)
    return Plugin(
        name="jax",
        args=given(cuda=cuda, devices=devices, init=None if init else False),
        preload=MODULES,
        collective=True,
        head_bound=True,
        noise=NOISE,
        collectives=COLLECTIVES,
        transform=functools.partial(_transform, cuda),
        around_process=functools.partial(_around, devices, init),
        again=functools.partial(again, init=init),
        check=check,
        abort=abort,
        ended=ended,
        gone="arrays that span ranks, meshes, and compiled functions",
    )


def _major(cuda: str) -> int:
    """Return CUDA's major version, 12 or 13; raise SpecError for any other.

    The package `jax` has an extra for each of the two. For any other extra, installers would only warn, and JAX would
    not find the GPUs.
    """
    match = _CUDA.match(cuda) if isinstance(cuda, str) else None
    if match is None:
        digits = "".join(re.findall(r"\d", str(cuda)))
        near = f"; did you mean {'cu' + digits!r}?" if _CUDA.match("cu" + digits) else ""
        raise SpecError(
            f"jax(cuda={cuda!r}): JAX is built for CUDA 12 and 13 only; "
            f"write cu12 or cu12x such as cu128, or cu13 or cu13x such as cu130{near}"
        )
    return int(match["major"])


def _transform(cuda: str | None, image: Image, spec: PoolSpec) -> Image:
    rank_resources.check_accelerators(spec)
    if any(_WITH_EXTRAS.match(item) for item in image.pip):
        # Two packages for different releases of CUDA would conflict.
        return image
    if _is_here(cuda, image, spec):
        return image.adding(pip=("jax",))
    return image.adding(pip=(_package(cuda, image, spec.accelerator),))


def _is_here(cuda: str | None, image: Image, spec: PoolSpec) -> bool:
    """Return True if local nodes find JAX with CUDA in the notebook's environment.

    Then no extra is needed: it would install CUDA's libraries as packages, while the system may have its own toolkit.
    """
    if getattr(spec.provider, "survives_manager", True) or image.python is not None:
        return False
    majors = (12, 13) if cuda is None else (_major(cuda),)
    return any(importlib.util.find_spec(f"jax_cuda{major}_plugin") is not None for major in majors)


def _package(cuda: str | None, image: Image, accelerator: Accelerator | None) -> str:
    """Return the requirement for JAX on the nodes."""
    if accelerator is None:
        return "jax"
    if accelerator.maker == NVIDIA and cuda is not None:
        extra = f"cuda{_major(cuda)}"
        why = why_not_jax(extra, _python(image))
        if not accelerator.takes_cuda(_major(cuda)):
            why = f"CUDA {_major(cuda)} does not run on it any more"
        if why:
            raise SpecError(
                f"jax(cuda={cuda}) on {accelerator.kind}: {why}; "
                f"write jax(), which chooses {accelerator.jax_for(_python(image))}"
            )
        return f"jax[{extra}]"
    package = accelerator.jax_for(_python(image))
    if package is None:
        more = (
            "write jax(cuda=cu128) to use them"
            if accelerator.maker == NVIDIA
            else f"what {accelerator.maker} offers for them goes into sky.Image(pip=[...])"
        )
        warnings.warn(
            f"jax() installs JAX for CPUs only, on nodes with {accelerator}, for which no packages are known; {more}",
            stacklevel=2,
        )
    return package or "jax"


def _python(image: Image) -> int:
    """Return the minor version of the nodes' Python."""
    return int(image.python.split(".")[1]) if image.python else sys.version_info.minor


@contextlib.contextmanager
def _around(devices: int | None, init: bool, info: InstanceInfo) -> Iterator[None]:
    _configure(info, devices)
    _join(info, init=init)
    try:
        yield
    finally:
        _leave()


def _configure(info: InstanceInfo, devices: int | None) -> None:
    """Set the options that must be set before any backend starts."""
    import jax

    from . import compile_cache

    _, count = rank_resources.place(info)
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if devices is not None and not forced:
        jax.config.update("jax_num_cpu_devices", devices)
    if count > 1 and not info.accelerators and not os.environ.get("JAX_PLATFORMS"):
        # Collectives fail if ranks share a GPU. These ranks share a machine, and the pool has no accelerators: a GPU
        # that happens to be there is not used.
        jax.config.update("jax_platforms", "cpu")
    compile_cache.install(info)
    # Ranks that survive a killed peer then get an error, not SIGABRT.
    _update("jax_enable_recoverability", True)
    # That service catches SIGTERM, so that the rank would not end on it.
    _update("jax_enable_preemption_service", False)
    # It would warn of any proxy; `rank_resources.past_proxies` handles them.
    _update("jax_check_proxy_envs", False)


def _update(name: str, value: Any) -> None:
    """Set an option of JAX if this release has it."""
    import jax

    try:
        jax.config.update(name, value)
    except AttributeError:
        log.info("this release of JAX has no option %s", name)


def _join(info: InstanceInfo, *, init: bool = True) -> None:
    """Set the variables, meet the other ranks, and run a first collective."""
    import jax
    from jax.experimental import multihost_utils

    from . import distributed_initialize

    distributed_initialize.install(info, init=init)
    # Not the address of the pool's own coordinator: processes that a cell starts have their coordinator here.
    os.environ["JAX_COORDINATOR_ADDRESS"] = rank_resources.endpoint(
        info.head_addr, rank_resources.programs_port(info, "jax")
    )
    os.environ["JAX_NUM_PROCESSES"] = str(info.world_size)
    os.environ["JAX_PROCESS_ID"] = str(info.rank)
    if info.world_size == 1:
        # A single rank starts the backend at its first use: until then, a cell may configure JAX.
        os.environ["JAX_LOCAL_DEVICE_COUNT"] = str(_devices_of_one(info))
        return
    rank_resources.past_proxies(info)
    rank_resources.prepare_nccl(info)
    _bind_gloo(info.addr)
    if not init:
        os.environ["JAX_LOCAL_DEVICE_COUNT"] = str(_devices_of_one(info))
        return
    if not info.is_head:
        rank_resources.wait_for(info.head_addr, info.port("jax"), JOIN_SECONDS)
    options = _initialize_options(info)
    initialize = distributed_initialize.original_of("initialize")
    known = inspect.signature(initialize).parameters
    initialize(**{key: value for key, value in options.items() if key in known})
    with rank_resources.noting_connections("jax"):
        multihost_utils.sync_global_devices("sky_jupyter: all ranks are in")
    os.environ["JAX_LOCAL_DEVICE_COUNT"] = str(jax.local_device_count())


def _initialize_options(info: InstanceInfo) -> dict[str, Any]:
    """Return the arguments of `jax.distributed.initialize`, for the newest release."""
    return {
        "coordinator_address": rank_resources.endpoint(info.head_addr, info.port("jax")),
        # Without it the service listens on every interface of the machine.
        "coordinator_bind_address": rank_resources.endpoint(info.head_addr, info.port("jax")),
        "num_processes": info.world_size,
        "process_id": info.rank,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": JOIN_SECONDS,
        "heartbeat_timeout_seconds": 100,
        "shutdown_timeout_seconds": int(rank_resources.LEAVE_SECONDS),
    }


def _devices_of_one(info: InstanceInfo) -> int:
    """Return the expected number of devices of a single rank, before JAX starts."""
    import jax

    if info.accelerators:
        return info.accelerators
    forced = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(forced[1]) if forced else max(1, getattr(jax.config, "jax_num_cpu_devices", 1))


def _bind_gloo(addr: str) -> None:
    """Make JAX's CPU collectives listen on this node's address, in patient threads.

    JAX passes the host's name to gloo, and has no option for another address; Debian and Ubuntu map that name to
    127.0.1.1. A release of JAX that lacks this function keeps its default.
    """
    native = getattr(importlib.import_module("jax._src.lib"), "_jax", None)
    make = getattr(native, "make_gloo_tcp_collectives", None)
    if native is None or make is None:
        log.warning("cannot tell this release of JAX which address its CPU collectives use")
        return
    original: Callable[..., Any] = getattr(make, "sky_original", make)

    def bound(*args: Any, **kwargs: Any) -> Any:
        with rank_resources.patient_threads():
            return original(*args, **{"hostname": addr, **kwargs})

    bound.sky_original = original  # type: ignore[attr-defined]
    native.make_gloo_tcp_collectives = bound


def _leave() -> None:
    """Disconnect from the other ranks; wait only briefly, as they may have ended."""
    client, service = _let_go()
    for part in (client, service):
        if part is not None:
            rank_resources.within(rank_resources.LEAVE_SECONDS, part.shutdown)


def _let_go() -> tuple[Any, Any]:
    """Remove JAX's client and service from its state, and return them."""
    from jax._src import distributed

    from . import distributed_initialize

    distributed_initialize.show()
    state = distributed.global_state
    client, service = state.client, state.service
    state.client = state.service = None
    return client, service


def again(info: InstanceInfo, *, init: bool = True) -> None:
    """Set JAX up again in a living process, on the new port; a collective.

    Arrays that spanned the old ranks keep their local parts but cannot be used in collectives.
    """
    import jax.extend.backend

    client, service = _let_go()
    if client is not None:
        rank_resources.within(rank_resources.LEAVE_SECONDS, client.shutdown)
    set_mesh = getattr(jax, "set_mesh", None)
    if set_mesh is not None:
        # An interrupt may have come just before JAX would have restored its own mesh. Besides, the devices of any mesh
        # that is set no longer exist.
        with contextlib.suppress(ValueError, TypeError):
            set_mesh(None)
    jax.extend.backend.clear_backends()
    # Reference cycles may keep the old backend alive, and the port of its collectives.
    gc.collect()
    _join(info, init=init)
    if service is not None:
        # Only now: a rank that is still connected to the old service would be aborted. All have joined the new one, so
        # all have left the old one.
        rank_resources.within(rank_resources.LEAVE_SECONDS, service.shutdown)


def ended(info: InstanceInfo) -> str:
    """Return what the user's code has ended of the pool's cluster, in words."""
    from . import distributed_initialize

    return distributed_initialize.ended(info)


def abort(info: InstanceInfo) -> None:
    """Free this rank from a blocked collective; call `again` on all ranks next."""
    _break_meetings()
    rank_resources.break_connections("jax")


def _break_meetings() -> None:
    """Free devices that wait for the addresses of other ranks' devices.

    Before its first collective, each group of devices exchanges addresses through keys of JAX's coordinator. A key
    names the group's devices and the index of one of them. No connection exists yet that could be shut down; instead,
    a value that is not an address ends the wait for a key. The next cluster has another coordinator.
    """
    from jax._src import distributed

    client = distributed.global_state.client
    there: dict[str, set[str]] = {}
    with contextlib.suppress(Exception):
        for key, _ in client.key_value_dir_get_bytes(_MEETINGS):
            group, _, number = key.rpartition("/")
            there.setdefault(group, set()).add(number)
    for group, numbers in there.items():
        for number in set(map(str, range(group.count(",") + 1))) - numbers:
            # Another rank may have set it already.
            with contextlib.suppress(Exception):
                client.key_value_set_bytes(f"{group}/{number}", _NO_ADDRESS)


def check(info: InstanceInfo) -> None:
    """Run a collective with a name on all ranks; raise SkyError if out of step.

    A rank is out of step if this collective is paired with another collective of a peer. The call may also hang then:
    the caller must limit its wait.
    """
    from jax._src import distributed
    from jax.experimental import multihost_utils

    if distributed.global_state.client is None:
        return
    try:
        multihost_utils.sync_global_devices(f"sky_jupyter: in step, {info.job_id}")
    except Exception as error:
        raise SkyError(f"rank {info.rank} is out of step with the other ranks in JAX: {error}") from error
