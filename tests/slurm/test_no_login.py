"""Pools of a notebook on the login host, or within a job: Slurm's commands are called on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import run
from tests.pool.remote import wait_until
from tests.slurm.cluster import LocalCluster

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_a_notebook_that_is_itself_a_job_has_a_pool_in_another_one(
    local_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slurm's commands would take these for their options.
    within = {"SLURM_JOB_ID": "999", "SLURM_NTASKS": "64", "SLURM_MEM_PER_CPU": "1T", "SBATCH_PARTITION": "nosuch"}
    for name, value in within.items():
        monkeypatch.setenv(name, value)
    # (What is built for the nodes goes with the test.)
    provider = sky.Slurm(time="10m", gpus_per_node=1, offline=True, setup=f"export HOME={tmp_path}")
    pool = Pool(PoolSpec(provider=provider, nodes=2, name="within"))
    try:
        pool.start()
        (job,) = local_cluster.jobs()
        code = (
            "import os\n(os.environ['CUDA_VISIBLE_DEVICES'], [name for name in os.environ if name.startswith('SLURM')])"
        )
        assert run(pool, code).values == [("0", ["SLURM_CONF"])] * 2
    finally:
        pool.down()
    wait_until(lambda: local_cluster.jobs() == [])
    (Path.home() / provider.logs / f"{job}.log").unlink()
