"""Checks of frameworks on the device: that they are on it, and right."""

from __future__ import annotations

from tests.gpu.checks import Bench, check, expect

TORCH = """
import torch, torch.distributed as dist
a = torch.arange(512 * 512, device=DEVICE, dtype=torch.float64).reshape(512, 512) / 1e4
b = (a @ a.T).cpu()
exact = a.cpu() @ a.cpu().T
total = torch.ones(4, device=DEVICE)
dist.all_reduce(total)
(a.device.type, torch.cuda.get_device_name(0) if DEVICE == "cuda" else "CPU", dist.get_backend(),
 float((b - exact).abs().max() / exact.abs().max()), total.tolist())
"""
JAX = """
import jax, jax.numpy as jnp, numpy
a = numpy.random.default_rng(0).normal(size=(512, 512)).astype("float32")
with jax.default_matmul_precision("highest"):
    b = jax.jit(lambda x: x @ x.T)(a)
(b.devices().pop().platform, jax.devices()[0].device_kind, jax.device_count(),
 float(abs(numpy.asarray(b) - a @ a.T).max() / abs(a @ a.T).max()))
"""
KERAS = """
import jax, keras, numpy
keras.utils.set_random_seed(0)
x = numpy.random.default_rng(0).normal(size=(4096, 32)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
model = keras.Sequential([keras.layers.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
losses = model.fit(x, y, batch_size=256, epochs=4, verbose=0).history["loss"]
value = model.weights[0].value
keras.backend.backend(), sorted({device.platform for device in value.devices()}), losses
"""


@check("torch on the device: a product, and a collective", needs="torch")
def torch_on_device(bench: Bench) -> str:
    (kind, name, backend, error, total), *_ = bench.run(bench.one(), TORCH).values
    expect(kind == bench.device, f"the tensor is on {kind}")
    expect(error < 1e-10 and total == [1.0] * 4, f"off by {error}; the sum over ranks is {total}")
    expect(backend == ("nccl" if bench.has_gpu else "gloo"), f"the group's backend is {backend}")
    return f"{name}, {backend}, off by {error:.0e}"


@check("jax on the device: a product", needs="jax", limit=90)
def jax_on_device(bench: Bench) -> str:
    (platform, kind, count, error), *_ = bench.run(bench.one(), JAX).values
    expect(platform == ("gpu" if bench.has_gpu else "cpu"), f"the array is on {platform}")
    expect(error < 1e-5, f"off by {error}")
    return f"{count} x {kind}, off by {error:.0e}"


@check("keras on the device: a model learns", needs="keras jax", limit=90)
def keras_on_device(bench: Bench) -> str:
    (backend, platforms, losses), *_ = bench.run(bench.one(), KERAS).values
    wanted = ["gpu" if bench.has_gpu else "cpu"]
    expect((backend, platforms) == ("jax", wanted), f"weights are {backend}'s, on {platforms}")
    expect(losses[-1] < losses[0], f"losses {losses}")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}"
