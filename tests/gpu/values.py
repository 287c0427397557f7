"""Checks of what goes to the device and comes from it: values, kinds of numbers, and how fast."""

from __future__ import annotations

import os
import time
from typing import Any

from tests.gpu.checks import MIB, Bench, check, expect, mib, variables

TORCH_KINDS = ("float32", "float16", "bfloat16", "int64", "uint8", "bool", "complex64", "float8_e4m3fn")
JAX_KINDS = ("float32", "float16", "bfloat16", "int32", "uint8", "bool", "complex64", "float8_e4m3fn")
# Small ones come with the end of the run, large ones when they are touched.
SIZES = (7, 1 << 20)
FROM_TORCH = """
import torch
made = {}
for kind in KINDS:
    for size in SIZES:
        made[kind, size] = (torch.arange(size, device=DEVICE) % 5).to(getattr(torch, kind))
layer = torch.nn.Linear(64, 64, device=DEVICE)
sloped = torch.ones(3, device=DEVICE, requires_grad=True)
{"tensors": made, "layer": layer, "weight": layer.weight.detach().cpu().tolist(), "sloped": sloped}
"""
FROM_JAX = """
import jax, jax.numpy as jnp
made = {}
for kind in KINDS:
    for size in SIZES:
        made[kind, size] = (jnp.arange(size) % 5).astype(getattr(jnp, kind))
made
"""
TO_TORCH = """
import time, torch
def copied():
    began = time.perf_counter()
    there = torch.from_numpy(large).to(DEVICE)
    if DEVICE == "cuda": torch.cuda.synchronize()
    return there, time.perf_counter() - began
_ = torch.ones(1, device=DEVICE)
there, first = copied()
_, again = copied()
half = tensor.to(DEVICE)
(there.device.type, int(there.sum()), first, again, str(half.dtype), half.float().sum().item(),
 kept.device.type, kept.sum().item())
"""
TO_JAX = """
import jax
there = jax.device_put(large[: 1 << 22])
there.devices().pop().platform, int(there.astype("int32").sum())
"""


@check("results from the device, torch: values and kinds, bfloat16 too; layers", needs="torch")
def results_of_torch(bench: Bench) -> str:
    import torch

    kinds = [kind for kind in TORCH_KINDS if hasattr(torch, kind)]
    value = bench.run(bench.one(), FROM_TORCH, KINDS=kinds, SIZES=SIZES).head
    for (kind, size), tensor in value["tensors"].items():
        wanted = (torch.arange(size) % 5).to(getattr(torch, kind))
        expect(tensor.dtype == wanted.dtype, f"{kind} came as {tensor.dtype}")
        expect(tensor.device.type == "cpu", f"{kind} came to {tensor.device}")
        expect(torch.equal(tensor.view(torch.uint8), wanted.view(torch.uint8)), f"{size} values of {kind} differ")
    layer, sloped = value["layer"], value["sloped"]
    expect(layer.weight.device.type == "cpu" and layer.weight.requires_grad, f"the layer is on {layer.weight.device}")
    expect(layer.weight.tolist() == value["weight"], "the layer's weights differ")
    expect(sloped.requires_grad, "what required a gradient does no more")
    return f"{', '.join(kinds)}: of {' and '.join(map(str, SIZES))} values, equal bit by bit, on the notebook's CPU"


@check("results from the device, jax: values and kinds, bfloat16 too", needs="jax", limit=90)
def results_of_jax(bench: Bench) -> str:
    import jax.numpy as jnp
    import numpy

    kinds = [kind for kind in JAX_KINDS if hasattr(jnp, kind)]
    pool = bench.one()
    result = bench.run(pool, FROM_JAX, KINDS=kinds, SIZES=SIZES)
    before = bench.used(pool)
    # Here JAX is to take what it needs only: the rank has most of the memory.
    with variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}):
        value = result.head
        for (kind, size), array in value.items():
            wanted = (numpy.arange(size) % 5).astype(jnp.dtype(kind))
            expect(array.dtype == wanted.dtype, f"{kind} came as {array.dtype}")
            same = numpy.array_equal(numpy.asarray(array).view("u1"), wanted.view("u1"))
            expect(same, f"{size} values of {kind} differ")
        where = sorted({device.platform for array in value.values() for device in array.devices()})
    here = f", and take {mib(bench.used(pool) - before)} of it" if bench.has_gpu else ""
    return f"{', '.join(kinds)}: equal bit by bit; in the notebook they are on its own {' and '.join(where)}{here}"


@check(
    "payloads to the device: numpy, torch (bfloat16, and from the notebook's own device), jax", needs="torch", limit=90
)
def payloads(bench: Bench) -> str:
    import numpy
    import torch

    large = numpy.random.default_rng(0).integers(0, 3, (1024 if bench.has_gpu else 128) * MIB, "uint8")
    names: dict[str, Any] = {
        "large": large,
        "tensor": torch.arange(1000).to(torch.bfloat16),
        "kept": torch.ones(5, device=bench.device),
    }
    pool = bench.one()
    began = time.perf_counter()
    answer = bench.run(pool, TO_TORCH, **names).head
    seconds = time.perf_counter() - began
    kind, total, first, again, half, halves, kept, ones = answer
    expect((kind, total) == (bench.device, int(large.sum())), f"{total} on {kind}, not {int(large.sum())}")
    expect(half == "torch.bfloat16", f"bfloat16 came as {half}")
    expect(halves == names["tensor"].float().sum().item(), "values of bfloat16 differ")
    expect((kept, ones) == (bench.device, 5.0), f"the notebook's tensor of its device came to {kept}: {ones}")
    if bench.frameworks("jax"):
        platform, some = bench.run(pool, TO_JAX, **names).head
        wanted = int(large[: 1 << 22].astype("int32").sum())
        expect((platform, some) == ("gpu" if bench.has_gpu else "cpu", wanted), f"jax has {some} on {platform}")
    rate = large.nbytes / 1e9
    cores = len(os.sched_getaffinity(0))
    return (
        f"{mib(large.nbytes)}: the cell took {seconds:.2f} s in all; from the mapped payload to the device "
        f"{rate / first:.1f} GB/s first, {rate / again:.1f} GB/s again ({cores} cores)"
    )
