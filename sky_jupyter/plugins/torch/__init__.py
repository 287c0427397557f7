"""Plugin `torch`: one process group of all ranks, ready for DDP."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...errors import SkyError, SpecError
from ...spec.accelerators import NVIDIA, Accelerator
from ...spec.pool_spec import Image, PoolSpec
from ...util.text import nearest
from ...util.validate import check_flag, is_number
from ..core import rank_resources
from ..core.plugin import Plugin, given

if TYPE_CHECKING:
    from ...node.runtime.instance_info import InstanceInfo

# Modules that the first use of torch across ranks imports; none starts a thread or touches a GPU.
MODULES = ("torch", "torch.distributed", "torch.nn.parallel")
NOISE = (rank_resources.GLOO_NOISE, rank_resources.NCCL_NOISE)
# Functions in which a rank waits for others: by name, or inside a backward pass.
COLLECTIVES = (
    r"torch/distributed/distributed_c10d\.py:(?P<call>[a-z]\w*)\Z",
    r"torch/distributed/utils\.py:_\w+_across_processes\Z",
    r"torch/nn/parallel/distributed\.py:",
    r"torch/autograd/graph\.py:_engine_run_backward\Z",
    r"libtorch\w*\.so:.*(c10d|gloo|nccl)",
)
BACKENDS = ("gloo", "nccl")
JOIN_SECONDS = 60
_CUDA = re.compile(r"cu[0-9]{3}\Z")
# A requirement for torch that has more than its name, such as a version or URL.
_OWN = re.compile(r"torch\s*[@<>=!~]", re.IGNORECASE)
_RELEASE = re.compile(r"[0-9]+")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z0-9.+-]*)\Z")


def torch(
    backend: str | None = None,
    cuda: str | None = None,
    version: str | None = None,
    timeout: float = 300.0,
    init: bool = True,
) -> Plugin:
    """Set up PyTorch's process group on all ranks, so that DDP works at once.

    Parameters
    ----------
    backend : str, optional
        ``"nccl"`` or ``"gloo"``; by default nccl where every rank has a GPU, else gloo.
    cuda : str, optional
        The CUDA release of the packages for nodes with NVIDIA accelerators, such as ``"cu128"``;
        by default the one that suits the pool's accelerator.
    version : str, optional
        The release of torch to install, such as ``"2.13.0"``.
    timeout : float
        Seconds that a collective waits for its peers before it raises an error.
    init : bool
        Whether the process group is set up before the first cell. If False, programs call
        ``init_process_group()`` themselves, and find torchrun's variables set.

    Returns
    -------
    Plugin
        The value for ``plugins=``.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """
    if backend is not None and backend not in BACKENDS:
        raise SpecError(
            f"torch(backend={backend!r}): the backends are {', '.join(BACKENDS)}{nearest(str(backend), BACKENDS)}"
        )
    if cuda is not None and not (isinstance(cuda, str) and _CUDA.match(cuda)):
        raise SpecError(f"torch(cuda={cuda!r}) is not the name of a CUDA release; write it as cu126 or cu128")
    if version is not None and not (isinstance(version, str) and _VERSION.match(version)):
        raise SpecError(f"torch(version={version!r}) is not a release of torch; write it as '2.13.0'")
    if not is_number(timeout) or not timeout > 0:
        raise SpecError(f"torch(timeout={timeout!r}) must be a number of seconds above 0")
    check_flag("torch(init=...)", init)
    if not init and (backend is not None or timeout != 300.0):
        raise SpecError("torch(init=False) leaves the group to the program: give it backend and timeout there")
    changed = {"timeout": None if timeout == 300.0 else timeout, "init": None if init else False}
    return Plugin(
        name="torch",
        args=given(backend=backend, cuda=cuda, version=version, **changed),
        preload=MODULES,
        collective=True,
        noise=NOISE,
        collectives=COLLECTIVES,
        transform=functools.partial(_transform, cuda, version),
        around_process=functools.partial(around, backend, timeout, init=init),
        again=functools.partial(again, backend, timeout, init=init),
        check=check,
        abort=abort,
        ended=ended if init else None,
        gone="process groups made by dist.new_group, and models in DistributedDataParallel",
    )


def _transform(cuda: str | None, version: str | None, image: Image, spec: PoolSpec) -> Image:
    rank_resources.check_accelerators(spec)
    own = any(_OWN.match(item) for item in image.pip)
    build = _build(cuda, version, spec.accelerator, own=own)
    # uv chooses the build by this variable; without it, the index's default build for the platform is installed.
    env = {"UV_TORCH_BACKEND": build} if build else {}
    # torch can do without numpy, but then it cannot read the notebook's arrays.
    return image.adding(pip=(f"torch=={version}" if version else "torch", "numpy"), env=env)


def _build(cuda: str | None, version: str | None, accelerator: Accelerator | None, *, own: bool) -> str | None:
    """Return the build of torch as uv calls it; None for the index's own.

    Raise SpecError if there is none for the device, unless the image has a torch of the user's own.
    """
    if accelerator is None or accelerator.maker != NVIDIA:
        return None
    release = tuple(int(part) for part in _RELEASE.findall(version)[:2]) if version else None
    suited = accelerator.torch_for(release)
    if own:
        return cuda or suited
    why = accelerator.why_not_torch(cuda, release)
    if cuda is not None and not accelerator.takes_cuda(int(cuda[2:4])):
        why = f"CUDA {cuda[2:4]} does not run on it any more"
    if not why:
        return cuda or suited
    asked = ", ".join(f"{key}={value}" for key, value in {"cuda": cuda, "version": version}.items() if value)
    if accelerator.torch:
        way_out = f"write torch(), which chooses {accelerator.torch}"
    else:
        way_out = "put a torch that does into sky.Image(pip=[...]), as torch @ URL"
    raise SpecError(f"torch({asked}) on {accelerator.kind}: {why}; {way_out}")


@contextlib.contextmanager
def around(backend: str | None, timeout: float, info: InstanceInfo, *, init: bool = True) -> Iterator[None]:
    """Join the process group, for the duration of the block."""
    import torch

    _, count = rank_resources.place(info)
    if "OMP_NUM_THREADS" not in os.environ:
        # Ranks that each use every core only slow each other down.
        torch.set_num_threads(max(1, rank_resources.cores() // count))
    _join(backend, timeout, info, init=init)
    try:
        yield
    finally:
        _leave()


def again(backend: str | None, timeout: float, info: InstanceInfo, *, init: bool = True) -> None:
    """Set the group up again in a living process, on the new port; a collective."""
    _leave()
    _join(backend, timeout, info, init=init)


def ended(info: InstanceInfo) -> str:
    """Return in words what the user's code has ended of the pool's group."""
    from . import init_process_group

    return init_process_group.ended(info)


def _environment(info: InstanceInfo) -> None:
    """Set torchrun's variables, which Trainer and Lightning read.

    Also set the network interface for gloo and NCCL.
    """
    os.environ.update(
        MASTER_ADDR=info.head_addr,
        # Not the port of the pool's own store: processes that a cell starts have their store here.
        MASTER_PORT=str(rank_resources.programs_port(info, "torch")),
        WORLD_SIZE=str(info.world_size),
        RANK=str(info.rank),
        LOCAL_RANK=str(info.local_rank),
        LOCAL_WORLD_SIZE=str(info.ranks_per_node),
        NODE_RANK=str(info.node),
        GROUP_RANK=str(info.node),
        GROUP_WORLD_SIZE=str(info.total_nodes),
        ROLE_NAME="default",
        ROLE_RANK=str(info.rank),
        ROLE_WORLD_SIZE=str(info.world_size),
        # Libraries that find this variable do not start ranks themselves.
        TORCHELASTIC_RUN_ID=info.job_id,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="False",
    )
    # By itself gloo uses the address of the host's name, often 127.0.1.1.
    name = rank_resources.interface(info.addr)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    rank_resources.prepare_nccl(info)


def _join(backend: str | None, timeout: float, info: InstanceInfo, *, init: bool) -> None:
    import torch
    import torch.distributed as dist

    from . import init_process_group

    _environment(info)
    if not init:
        init_process_group.install(info, _store(info))
        return
    own = _devices(torch.cuda.device_count(), info) if backend != "gloo" else []
    if backend is None:
        backend = "nccl" if own else "gloo"
    if backend == "nccl" and own:
        torch.cuda.set_device(own[0])
    store = _store(info)
    init_process_group.install(info, store)
    with rank_resources.noting_connections("torch"):
        init_process_group.start(
            {
                "backend": backend,
                "store": store,
                "rank": info.rank,
                "world_size": info.world_size,
                "timeout": timedelta(seconds=timeout),
            }
        )
        # The first collective opens the connections; it also finds a peer that cannot be reached.
        dist.barrier()


def _devices(visible: int, info: InstanceInfo) -> list[int]:
    """Return this rank's devices among those that torch sees.

    It is all of them if the pool has set CUDA_VISIBLE_DEVICES for each rank.
    """
    return list(range(visible)) if info.accelerators else rank_resources.share(visible, *rank_resources.place(info))


def _store(info: InstanceInfo) -> Any:
    """Return the rendezvous store; the head's listens on its own address alone.

    By default, torch's store listens on every interface of the machine.
    """
    import torch.distributed as dist

    options: dict[str, Any] = {"timeout": timedelta(seconds=JOIN_SECONDS)}
    if info.is_head:
        family = socket.getaddrinfo(info.head_addr, None, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((info.head_addr, info.port("torch")))
        listener.listen(1024)
        options["master_listen_fd"] = listener.detach()
    return dist.TCPStore(info.head_addr, info.port("torch"), info.world_size, info.is_head, **options)


def abort(info: InstanceInfo) -> None:
    """Free this rank from a blocked collective; `again` must follow on all ranks."""
    _abort_nccl()
    # Each group that the user's code makes has its own listener.
    rank_resources.break_connections("torch", every=True)


def _abort_nccl() -> None:
    """Abort NCCL's kernels, which wait on the device and ignore connections."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_initialized() or dist.get_backend() != "nccl":
        return
    # The newest group first, as torch itself does it; releases before 2.6 have no such call.
    for group in reversed(list(distributed_c10d._world.pg_map)):
        with contextlib.suppress(Exception):
            group.abort()


def check(info: InstanceInfo) -> None:
    """Run a collective with a name on all ranks; raise SkyError if out of step.

    A rank is out of step if this collective is paired with another collective of a peer. The call may then also wait
    until the group's timeout.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() != info.world_size:
        return
    name = zlib.crc32(f"sky_jupyter: in step, {info.job_id}".encode())
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mine = torch.tensor([name, info.rank], dtype=torch.int64, device=device)
    found = [torch.zeros_like(mine) for _ in range(info.world_size)]
    try:
        dist.all_gather(found, mine)
    except Exception as error:
        raise SkyError(f"rank {info.rank} is out of step with the other ranks in torch: {error}") from error
    if [item.tolist() for item in found] != [[name, rank] for rank in range(info.world_size)]:
        raise SkyError(f"rank {info.rank} is out of step with the other ranks in torch")


def _leave() -> None:
    """Leave the group, if the user's code has not; wait only briefly for peers."""
    import torch.distributed as dist

    if dist.is_initialized():
        rank_resources.within(rank_resources.LEAVE_SECONDS, dist.destroy_process_group)
