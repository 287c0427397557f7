"""Checks that a cell costs training nothing: the same code in a cell, and in a process by hand."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from tests.gpu.checks import Bench, Wrong, check, expect
from tests.pool.pools import Image

# By hand the same text is a program, that trains whenever it reads a number of steps.
TRAIN_TORCH = """
import time, torch
torch.manual_seed(0)
small = DEVICE == "cpu"
width = 256 if small else 4096
model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())])
model = model.to(DEVICE, torch.float32 if small else torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
x = torch.randn(512, width, device=DEVICE, dtype=next(model.parameters()).dtype)
def train(steps):
    began = time.perf_counter()
    for _ in range(steps):
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        last = loss.item()
    return time.perf_counter() - began
"""
TRAIN_JAX = """
import functools, time, jax, jax.numpy as jnp
small = DEVICE == "cpu"
width, kind = (256, jnp.float32) if small else (4096, jnp.bfloat16)
keys = jax.random.split(jax.random.key(0), 5)
layers = [jax.random.normal(key, (width, width), kind) * width**-0.5 for key in keys[:4]]
x = jax.random.normal(keys[4], (512, width), kind)
def loss(layers, x):
    y = functools.reduce(lambda y, layer: jax.nn.gelu(y @ layer), layers, x)
    return jnp.square(y - x).mean()
@jax.jit
def step(layers):
    value, slopes = jax.value_and_grad(loss)(layers, x)
    return [layer - 1e-3 * slope for layer, slope in zip(layers, slopes)], value
def train(steps):
    global layers
    began = time.perf_counter()
    for _ in range(steps):
        layers, value = step(layers)
        last = float(value)
    return time.perf_counter() - began
"""
BY_HAND = """
import sys
train(5)
print("ready", flush=True)
for line in sys.stdin:
    print(train(int(line)), flush=True)
"""
# Two processes hold arrays of JAX on one device at the same time.
PART = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
ROUNDS, SECONDS, MOST = 6, 1.5, 1.02
# On a CPU it is only to run.
FEW_ROUNDS, FEW_SECONDS = 2, 0.2


@check("training with torch in a cell against the script by hand (1.02 x at most)", needs="torch", limit=100)
def training_torch(bench: Bench) -> str:
    return _compare(bench, TRAIN_TORCH)


@check("training with jax in a cell against the script by hand (1.02 x at most)", needs="jax", limit=100)
def training_jax(bench: Bench) -> str:
    return _compare(bench, TRAIN_JAX)


def _compare(bench: Bench, code: str) -> str:
    """Train by turns, in a cell and by hand, and compare the best of each."""
    pool = bench.pool("training", 1, "jax", "torch", image=Image(env=PART))
    bench.run(pool, f"{code}\ntrain(5)")
    script = f"DEVICE = {bench.device!r}\n{code}{BY_HAND}"
    env = {**os.environ, **PART, **({} if bench.has_gpu else {"JAX_PLATFORMS": "cpu"})}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:

            def by_hand(steps: int) -> float:
                assert process.stdin is not None
                process.stdin.write(f"{steps}\n")
                process.stdin.flush()
                return _answer(process)

            _answer(process)
            rounds, seconds = (ROUNDS, SECONDS) if bench.has_gpu else (FEW_ROUNDS, FEW_SECONDS)
            steps = max(5, round(5 * seconds / by_hand(5)))
            found = [(bench.run(pool, f"train({steps})").head, by_hand(steps)) for _ in range(rounds)]
        finally:
            process.kill()
    cell, hand = (min(times) for times in zip(*found, strict=True))
    spread = max(statistics.pstdev(times) / statistics.mean(times) for times in zip(*found, strict=True))
    figure = (
        f"{cell / hand:.3f} x: {1000 * cell / steps:.3f} ms a step in a cell, {1000 * hand / steps:.3f} by hand; "
        f"best of {rounds} rounds of {steps} steps, which spread by {spread:.1%}"
    )
    expect(not bench.has_gpu or cell / hand <= MOST, figure)
    return figure


def _answer(process: subprocess.Popen[str]) -> float:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "ready":
            return 0.0
        try:
            return float(line)
        except ValueError:
            continue
    raise Wrong("the script by hand has ended")
