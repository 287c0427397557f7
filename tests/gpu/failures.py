"""Checks of what happens when something is in the way: interrupts, deaths, memory that runs out, and `where`."""

from __future__ import annotations

import signal
import time

from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, RankInterrupted
from tests.gpu.checks import GIB, SLACK, Bench, LeftOut, Notices, check, expect, failing, kernel_of, mib, until
from tests.gpu.table import gpus

# One kernel of the device that takes this long; on a CPU, one call of LAPACK's.
LONG = """
import time, torch
def sync():
    if DEVICE == "cuda": torch.cuda.synchronize()
def long(seconds):
    if DEVICE == "cuda":
        torch.cuda._sleep(int(seconds * 2e9))
        torch.cuda.synchronize()
    else:
        torch.linalg.svd(torch.randn(6000, 6000))
def short():
    a = torch.ones(1024, 1024, device=DEVICE)
    while True:
        a = a @ a / 1024
        sync()
_ = torch.ones(1, device=DEVICE)
kept = 7
"""
HOLDS_TORCH = "import torch; held = torch.ones(1 << 30, dtype=torch.uint8, device=DEVICE); held.nbytes"
HOLDS_JAX = "import jax.numpy as jnp; other = jnp.ones(1 << 28, 'uint8').block_until_ready(); other.nbytes"
TOO_MUCH_TORCH = """
import torch, sky_jupyter as sky
if sky.instance_info().rank == sky.instance_info().world_size - 1:
    torch.empty(TOO_MUCH, dtype=torch.uint8, device=DEVICE)
"""
TOO_MUCH_JAX = "import jax.numpy as jnp; jnp.zeros((TOO_MUCH,), 'uint8').block_until_ready()"


@check("where, while a rank is in a call of CUDA", needs="torch")
def where(bench: Bench) -> str:
    pool = bench.one()
    bench.run(pool, LONG)
    current = bench.begin(pool, "long(30)")
    began = time.perf_counter()
    found = pool.where(within=5.0)
    seconds = time.perf_counter() - began
    with failing(pool, current):
        pool.press(current, 2)
    (place,) = found.places
    text = str(found)
    wanted = "synchronize" if bench.has_gpu else "long"
    expect(place.works and wanted in text and "long(30)" in text, f"it said: {text}")
    inner = [line.strip() for line in text.splitlines() if "in C" in line]
    return f"{found.summary()} ({'; '.join(inner) or 'no names of C code'}), told in {seconds:.1f} s"


@check("an interrupt between kernels: at once, every name kept", needs="torch")
def interrupt_short(bench: Bench) -> str:
    pool = bench.one()
    bench.run(pool, LONG)
    current = bench.begin(pool, "short()")
    began = time.perf_counter()
    with failing(pool, current) as caught:
        pool.press(current)
    seconds = time.perf_counter() - began
    kinds = {type(error) for error in caught[0].errors.values()}
    expect(kinds == {RankInterrupted}, f"it ended with {caught[0]}")
    expect(bench.run(pool, "globals().get('kept')").head == 7, "names were lost")
    return f"stopped after {seconds:.2f} s"


@check(
    "an interrupt inside a long kernel: told; a second one replaces the rank, and its memory is given back",
    needs="torch",
    limit=90,
)
def interrupt_long(bench: Bench) -> str:
    pool = bench.one()
    pool.restart()
    before = bench.used(pool)
    bench.run(pool, LONG)
    notices = Notices()
    current = bench.begin(pool, "long(60)", notices)
    began = time.perf_counter()
    pool.press(current)
    until(lambda: notices.texts or not current.left, "that it does not respond to the interrupt")
    told = time.perf_counter() - began
    expect(any("does not respond to the interrupt" in text for text in notices.texts), f"it said: {notices.texts}")
    again = time.perf_counter()
    with failing(pool, current):
        pool.press(current)
    freed = time.perf_counter() - again
    pool.settle()
    expect(bench.run(pool, "globals().get('kept')").head is None, "the kernel is the old one")
    used = bench.falls_to(pool, before + SLACK, "its memory to be given back")
    return f"told after {told:.1f} s, given up {freed:.2f} s after the second; {mib(before)} before, {mib(used)} after"


@check(
    "a rank killed while it computes: named with its signal; the other keeps its names, memory is given back",
    needs="torch",
    limit=90,
)
def killed(bench: Bench) -> str:
    pool = bench.two()
    bench.run(pool, LONG)
    before = bench.used(pool)
    bench.run(pool, f"import sky_jupyter as sky\nif sky.instance_info().rank == 1:\n    {HOLDS_TORCH}")
    code = "import sky_jupyter as sky\nif sky.instance_info().rank == 1: short()\nelse: time.sleep(4)\n'well'"
    current = bench.begin(pool, code)
    with failing(pool, current) as caught:
        kernel_of(pool, 1).send_signal(signal.SIGKILL)
    told = str(caught[0])
    expect("rank 1" in told and "SIGKILL" in told, f"it said: {told}")
    expect(caught[0].result[0] == "well", "the other rank did not go on")
    pool.settle()
    kept = bench.run(pool, "globals().get('kept')").values
    expect(kept == [7, None], f"names are {kept}")
    used = bench.falls_to(pool, before + SLACK, "its memory to be given back")
    return f"{told.splitlines()[0]}; {mib(before)} before, {mib(used)} after"


@check("out of memory with torch: named with the rank, and its names are kept", needs="torch")
def memory_torch(bench: Bench) -> str:
    pool = bench.two()
    bench.run(pool, "kept = 7")
    with failing(pool) as caught:
        bench.run(pool, _too_much(bench) + TOO_MUCH_TORCH)
    return _out_of_memory(bench, pool, caught[0], "rank 1 of 2")


@check("out of memory with jax: named with the rank, and its names are kept", needs="jax")
def memory_jax(bench: Bench) -> str:
    pool = bench.one()
    bench.run(pool, "kept = 7")
    with failing(pool) as caught:
        bench.run(pool, _too_much(bench) + TOO_MUCH_JAX)
    return _out_of_memory(bench, pool, caught[0], "its only rank")


def _too_much(bench: Bench) -> str:
    # More than any device has, and less than CUDA counts; a CPU's system gives more than there is.
    return f"TOO_MUCH = {1 << 39 if bench.has_gpu else 1 << 46}\n"


def _out_of_memory(bench: Bench, pool: Pool, error: CellError, whose: str) -> str:
    text = "\n".join([str(error), *error._render_traceback_()])
    expect(whose in str(error), f"it said: {error}")
    expect("has no memory left" in text, f"no word of what to do: {text}")
    kept = bench.run(pool, "kept").values
    expect(set(kept) == {7}, f"names are {kept}")
    return str(error).splitlines()[0]


@check("memory of ranks after %sky restart: all given back", limit=90)
def restart(bench: Bench) -> str:
    pool = bench.one()
    pool.restart()
    before = bench.used(pool)
    cells = {"torch": HOLDS_TORCH, "jax": HOLDS_JAX}
    for name in bench.frameworks(*cells):
        bench.run(pool, cells[name])
    held = bench.used(pool)
    expect(held - before > GIB, f"the ranks took {mib(held - before)} only")
    began = time.perf_counter()
    pool.restart()
    after = bench.falls_to(pool, before + SLACK, f"{mib(held)} to be given back, of which {mib(before)} were not ours")
    seconds = time.perf_counter() - began
    return f"{mib(before)} before, {mib(held)} held, {mib(after)} {seconds:.1f} s after the restart began"


@check("two ranks on one GPU, torch: gloo joins them, both compute on it", needs="torch")
def two_with_torch(bench: Bench) -> str:
    if bench.has_gpu and len(gpus()) > 1:
        raise LeftOut(f"{len(gpus())} GPUs: each rank has its own")
    code = """
import torch, torch.distributed as dist, sky_jupyter as sky
rank = sky.instance_info().rank
here, there = torch.full((4,), rank + 1.0), torch.full((4,), rank + 1.0, device=DEVICE)
dist.all_reduce(here)
dist.all_reduce(there)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, device=DEVICE))
model(there[None]).sum().backward()
dist.get_backend(), here.tolist(), there.device.type, there.tolist(), model.module.weight.grad.tolist()
"""
    answers = bench.run(bench.two(), code).values
    wanted = ("gloo", [3.0] * 4, bench.device, [3.0] * 4, [[3.0] * 4])
    expect(list(answers) == [wanted] * 2, f"they answered {answers}")
    return "sums over both, of tensors on the CPU and on the device, and DDP's gradients"


@check("two ranks on one GPU, jax without a plugin: its memory is shared out", needs="jax", limit=90)
def two_with_jax(bench: Bench) -> str:
    if bench.has_gpu and len(gpus()) > 1:
        raise LeftOut(f"{len(gpus())} GPUs: each rank has its own")
    pool = bench.pool("bare two", 2)
    code = """
import os, time, jax, jax.numpy as jnp
held = jnp.ones(1 << 29, "uint8").block_until_ready()
time.sleep(2)
again = (held + 1).block_until_ready()
jax.devices()[0].platform, int(again[-1]), os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
"""
    answers = bench.run(pool, code).values
    expect([answer[:2] for answer in answers] == [("gpu" if bench.has_gpu else "cpu", 2)] * 2, f"{answers}")
    fractions = [answer[2] for answer in answers]
    if bench.has_gpu:
        expect(all(text and 0 < float(text) <= 0.5 for text in fractions), f"the ranks' fractions are {fractions}")
    return f"fractions {fractions}, used {mib(bench.used(pool))}"


@check("one rank fails in a collective of NCCL: the other is freed, every name kept", needs="torch", limit=90)
def soft_abort(bench: Bench) -> str:
    count = len(gpus())
    if bench.has_gpu and count < 2:
        raise LeftOut(f"{count} GPU: NCCL needs one for each rank, so that its soft abort was not tried")
    code = """
import torch, torch.distributed as dist, sky_jupyter as sky
rank, kept = sky.instance_info().rank, 7
def reduce():
    total = torch.ones(1, device=DEVICE)
    dist.all_reduce(total)
    return total.item()
reduce(), dist.get_backend()
"""
    pool = bench.pool("two abreast", 2, "torch")
    total, backend = bench.run(pool, code).head
    expect((total, backend) == (2.0, "nccl" if bench.has_gpu else "gloo"), f"{total} by {backend}")
    began = time.perf_counter()
    with failing(pool) as caught:
        bench.run(pool, "for i in range(1000):\n    if rank == 1 and i == 10: raise ValueError('boom')\n    reduce()")
    seconds = time.perf_counter() - began
    expect("boom" in str(caught[0]), f"it said: {caught[0]}")
    pool.settle()
    kept = bench.run(pool, "globals().get('kept')").values
    expect(kept == [7, 7], f"names are {kept}")
    expect(bench.run(pool, "reduce()").values == [2.0, 2.0], "collectives do not go on")
    return f"{backend}: freed {seconds:.1f} s after the cell began, 5 s of grace in it"
