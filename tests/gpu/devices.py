"""Checks of which devices there are, whose they are, and how busy the panel says that they are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil

import sky_jupyter as sky
from sky_jupyter.errors import ProvisionError
from sky_jupyter.node.system import gpus as accelerators
from sky_jupyter.pool.lifecycle import status
from sky_jupyter.spec.accelerators import CATALOGUE, recognised
from tests.gpu.checks import MIB, SLACK, Bench, LeftOut, check, expect, kernel_of, mib, until
from tests.gpu.table import gpus, smi
from tests.pool.pools import Image, local_pool, run

BUSY = """
import time, torch
a = torch.ones(4096, 4096, device=DEVICE)
held = torch.ones(256 << 20, dtype=torch.uint8, device=DEVICE)
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    b = a @ a
    if DEVICE == "cuda": torch.cuda.synchronize()
"""
# The driver's own library is asked: it sees what frameworks will see.
VISIBLE = """
import ctypes, os, sky_jupyter as sky
info, seen = sky.instance_info(), None
try:
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    # An error of either leaves the count at none.
    cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    seen = count.value
except OSError:
    pass
os.environ.get("CUDA_VISIBLE_DEVICES"), info.accelerators, info.accelerator, seen
"""


@check("detection: what nvidia-smi shows, and the catalogue's names")
def detected(bench: Bench) -> str:
    found, names = accelerators.present(), gpus()
    if not bench.has_gpu:
        expect(not names or len(found), "nvidia-smi shows GPUs, and none was found")
        return f"{found}"
    visible = os.environ.get(accelerators.VISIBLE)
    expect(visible is not None or list(found.kinds) == names, f"nvidia-smi shows {names}, and found is {found}")
    return ", ".join(f"{kind} is {recognised(kind)[0] or 'not in the catalogue'}" for kind in found.kinds)


@check("--accelerator: a pool of what is here; refused, by name, where it is not")
def asked_for(bench: Bench) -> str:
    found = accelerators.present()
    told = []
    if len(found):
        kind = found.kinds[0]
        name = recognised(kind)[0] or f"custom:{kind}"
        wanted = sky.Accelerator.parse(f"{name}:{len(found)}")
        with local_pool(1, accelerator=wanted) as pool:
            (answer,) = run(pool, VISIBLE).values
        expect(answer[1:3] == (len(found), kind), f"the rank was told {answer[1:3]}, not {(len(found), kind)}")
        expect(answer[3] in (None, len(found)), f"CUDA sees {answer[3]} devices, not {len(found)}")
        told.append(f"{wanted} is given")
        refusals = [sky.Accelerator.parse(f"{name}:{len(found) + 1}")]
    else:
        refusals = []
    other = next(model for model in ("A100", "H100") if all(recognised(kind)[0] != model for kind in found.kinds))
    refusals.append(CATALOGUE[other]())
    for accelerator in refusals:
        try:
            with local_pool(1, accelerator=accelerator):
                expect(False, f"a pool with {accelerator} was made, with {found} here")
        except ProvisionError as error:
            expect(str(accelerator) in str(error) and str(found) in str(error), f"it was refused with: {error}")
            told.append(f"{accelerator} is refused")
    return ", ".join(told)


@check("--accelerator with --plugins jax,torch: the notebook's own packages serve", needs="jax torch", limit=90)
def own_packages(bench: Bench) -> str:
    from sky_jupyter.bootstrap import local_environment
    from sky_jupyter.spec.pool_spec import PoolSpec

    found = accelerators.present()
    name = recognised(found.kinds[0])[0] if len(found) else None
    if name is None:
        raise LeftOut("no GPU that the catalogue knows")
    wanted = sky.Accelerator.parse(f"{name}:{len(found)}")
    plugins = (sky.plugins.jax(), sky.plugins.torch())
    image = PoolSpec(provider=sky.Local(), plugins=plugins, accelerator=wanted).full_image
    expect(local_environment.is_own(image), f"an environment would be built for {', '.join(image.pip)}")
    with local_pool(1, plugins=plugins, accelerator=wanted) as pool:
        code = "import jax, torch; torch.ones(2).to('cuda').sum().item(), jax.devices()[0].platform"
        (answer,) = run(pool, code).values
    expect(answer == (2.0, "gpu"), f"torch and jax answered {answer}")
    return f"{', '.join(image.pip)} are there"


@check("CUDA_VISIBLE_DEVICES: by index, UUID and its beginning; none; slices (MIG)", limit=90)
def shares(bench: Bench) -> str:
    uuids = [words[0] for words in smi("uuid")]
    choices = {"": 0}
    if bench.has_gpu and uuids:
        choices |= {"0": 1, uuids[0]: 1, uuids[0][:12]: 1, "0,9": 1}
    told = []
    for text, count in choices.items():
        with local_pool(1, image=Image(env={"CUDA_VISIBLE_DEVICES": text})) as pool:
            (answer,) = run(pool, VISIBLE).values
        expect(answer[1] == count, f"CUDA_VISIBLE_DEVICES={text!r}: the rank was told of {answer[1]} devices")
        expect(answer[3] in (None, count), f"CUDA_VISIBLE_DEVICES={text!r}: CUDA sees {answer[3]} devices")
        told.append(f"{text or 'nothing'!r}: {count}")
    slices = _slices() if bench.has_gpu else []
    for ranks in {1, len(slices)} if slices else ():
        given = slices[:ranks]
        with local_pool(ranks, image=Image(env={"CUDA_VISIBLE_DEVICES": ",".join(given)})) as pool:
            answers = run(pool, VISIBLE).values
        expect([one[0] for one in answers] == given, f"{ranks} ranks were given {[one[0] for one in answers]}")
        told.append(f"{ranks} ranks, a slice each")
    return "; ".join([*told, *([] if slices else ["MIG: no slices here, not tried"])])


def _slices() -> list[str]:
    """The UUIDs of this machine's MIG slices."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
    return re.findall(r"UUID: (MIG-[^)\s]+)\)", listed)


@check("the forkserver: all frameworks imported, and no context of CUDA before the fork", limit=150)
def forkserver(bench: Bench) -> str:
    pool = bench.one()
    kernel = kernel_of(pool, 0)
    parent = kernel.parent()
    assert parent is not None
    expect(not _touches(parent.pid), f"the forkserver has open: {_touches(parent.pid)}")
    names = [*bench.frameworks("jax", "keras", "torch"), "numpy"]
    code = "import sys; [name for name in NAMES if name in sys.modules]"
    (loaded,) = bench.run(pool, code, NAMES=names).values
    wanted = bench.frameworks("jax", "keras", "torch")
    expect(set(wanted) <= set(loaded), f"of {wanted} the rank had {loaded} imported")
    libraries = _libraries(parent.pid)
    if bench.has_gpu:
        pids = {words[0] for words in smi("pid", of="compute-apps")}
        expect(str(parent.pid) not in pids, "nvidia-smi shows the forkserver as a process that computes")
    if "torch" in wanted:
        (works,) = bench.run(pool, "import torch; torch.ones(3, device=DEVICE).sum().item()").values
        expect(works == 3.0, f"after the fork torch answered {works}")
    return f"{', '.join(loaded)} imported; it has {libraries or 'no library of CUDA'} loaded and no device open"


def _touches(pid: int) -> list[str]:
    """The files of NVIDIA's driver that a process has open: a context has several."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(file)
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            found.append(target)
    return found


def _libraries(pid: int) -> str:
    """Which libraries of CUDA it has loaded: the driver's own is libcuda."""
    text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return ", ".join(name for name in ("libcuda.so", "libcudart", "libnccl", "libcublas.so") if name in text)


@check("the panel's figures of the GPU against nvidia-smi, while a rank computes", needs="torch", limit=90)
def metrics(bench: Bench) -> str:
    pool = bench.one()
    current = bench.begin(pool, BUSY.replace("SECONDS", "10"))
    samples: list[Any] = []

    def looked() -> int:
        node = status.of(pool, 0)["nodes"][0]
        samples[:] = [sample[1:] for sample in node["samples"]]
        return len(samples)

    until(lambda: looked() >= 4 and current.since_began > 5, "samples")
    node = status.of(pool)["nodes"][0]
    told = smi("memory.used,memory.total,utilization.gpu") if bench.has_gpu else []
    pool.attend(current)
    if not told:
        expect(max(sample[0] for sample in samples) > 0.2 / (psutil.cpu_count() or 1), "its CPU was idle")
        return f"CPU {node['now'][0]:.0%}, memory {mib(node['now'][1])}"
    if not all(word.isdigit() for word in told[0]):
        raise LeftOut(f"nvidia-smi itself does not tell all of it: {told[0]}")
    used, total, busy = (float(word) for word in told[0])
    now = node["now"]
    expect(len(now) == 2 + 2 * len(gpus()), f"a sample has {len(now)} figures")
    expect(node["gpus"][0]["name"] == gpus()[0], f"the panel says {node['gpus']}")
    expect(abs(node["gpus"][0]["memory"] / MIB - total) < 0.03 * total, f"memory {node['gpus']}, not {total} MiB")
    expect(abs(now[3] / MIB - used) < SLACK / MIB, f"the panel says {mib(now[3])}, nvidia-smi {used:.0f} MiB")
    expect(abs(now[2] * 100 - busy) <= 20, f"the panel says {now[2]:.0%} busy, nvidia-smi {busy:.0f}%")
    return f"used: panel {mib(now[3])}, nvidia-smi {used:.0f} MiB; busy: panel {now[2]:.0%}, nvidia-smi {busy:.0f}%"
