"""Scripts of torch, JAX, Accelerate and Lightning, as they are written for torchrun and others, on a pool's ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellResult
from tests.plugins.world import needs
from tests.programs import ROOT

from .pools import local_pool, run
from .test_scripts import launch

PAGE = (ROOT / "docs" / "from-torchrun.md").read_text(encoding="utf-8")
PROGRAM, *CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JAX = """
import jax
import jax.numpy as jnp

jax.distributed.initialize()
from jax.experimental import multihost_utils

print(jax.process_index(), multihost_utils.process_allgather(jnp.ones(()) * jax.process_index()).tolist())
"""
# The least that torchrun is for.
MEETS = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()"
ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
print(accelerator.mixed_precision, accelerator.process_index, ranks)
accelerator.end_training()
"""
LIGHTNING = """
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Fit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
x = torch.randn(256, 2)
data = DataLoader(TensorDataset(x, x @ torch.tensor([[2.0], [-1.0]])), batch_size=16)
quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
trainer = lightning.Trainer(
    max_epochs=5, accelerator="cpu", devices=1, num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", **quiet
)
model = Fit()
trainer.fit(model, data)
print(trainer.global_rank, trainer.world_size, [round(value, 1) for value in model.layer.weight[0].tolist()])
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as live:
        yield live


def said(result: CellResult) -> list[str]:
    """What each rank's process printed, without what gloo says of its connections."""
    texts = [result.stdout(rank) for rank in (0, 1)]
    return ["".join(line for line in text.splitlines(keepends=True) if "[Gloo]" not in line) for text in texts]


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


@pytest.mark.slow
def test_the_program_of_the_page_says_the_same_by_torchrun_by_sky_torchrun_and_as_cells(tmp_path: Path) -> None:
    needs("torch")
    from sky_jupyter.plugins import parse_plugins

    path = script(tmp_path, PROGRAM)
    with local_pool(nodes=2, plugins=parse_plugins("torch")) as pool:
        as_it_is = said(launch(pool, path, "50"))
        # The ranks' own group is as it was.
        cells: Any = None
        for code in CELLS:
            cells = run(pool, code.removeprefix("%%sky\n"), {"steps": 50})
    assert [text[:11] for text in as_it_is] == ["rank 0 of 2", "rank 1 of 2"]
    assert said(cells) == as_it_is
    # What other tests do to the machine's network is none of this program's.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}

    def by_itself(*program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)

    done = by_itself(path, "50")
    if done.returncode:
        (tmp_path / "meets.py").write_text(MEETS)
        assert by_itself(str(tmp_path / "meets.py")).returncode, done.stderr
        pytest.skip(f"torchrun cannot have two processes meet on this machine: {' / '.join(done.stderr.splitlines())}")
    # torchrun's processes have no buffer: between a line and its end the other process writes on the same pipe.
    by_torchrun = sorted(f"{line}\n" for line in re.findall(r"rank \d of \d: \[.*?\]", done.stdout))
    assert by_torchrun == as_it_is


@pytest.mark.slow
def test_jax_finds_its_processes_without_arguments(pool: Pool, tmp_path: Path) -> None:
    needs("jax")
    result = launch(pool, script(tmp_path, JAX), verb="run")
    assert said(result) == [f"{rank} [0.0, 1.0]\n" for rank in (0, 1)]


@pytest.mark.slow
def test_accelerate_reads_its_own_options_on_the_ranks(pool: Pool, tmp_path: Path) -> None:
    needs("accelerate")
    options = ("--cpu", "--mixed_precision", "bf16")
    result = launch(pool, script(tmp_path, ACCELERATE), verb="accelerate launch", accelerate=True, options=options)
    assert said(result) == [f"bf16 {rank} [0, 1]\n" for rank in (0, 1)]


@pytest.mark.slow
def test_a_script_of_lightning_finds_the_processes_and_trains_across_them(pool: Pool, tmp_path: Path) -> None:
    needs("lightning")
    result = launch(pool, script(tmp_path, LIGHTNING))
    lines = [text.splitlines()[-1] for text in said(result)]
    assert lines == ["0 2 [2.0, -1.0]", "1 2 [2.0, -1.0]"]
