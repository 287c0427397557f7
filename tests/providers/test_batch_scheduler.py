"""A provider of another batch scheduler than Slurm is a small file: PBS, on commands that really start processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import provider_registry
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import Host, Kind, World, hosts
from tests.pool.pools import run
from tests.pool.remote import MARKS, wait_until
from tests.providers import pbs, pbs_commands
from tests.providers.pbs import PBS

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.usefixtures("config")]
# As CONTRIBUTING says.
MOST_LINES = 150


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hosts(Kind(python=True, warm=True)) as made:
        (host,) = made
        pbs_commands.install(lambda path, text, mode: host.write(path, text, mode=mode))
        names = "".join(f"{host.private} n{number}\n" for number in range(2))
        host.write("/etc/hosts", f"127.0.0.1 localhost\n{names}127.0.1.1 {host.name}\n")
        yield made


def states(host: Host) -> list[str]:
    said = host.run("/usr/local/bin/qstat $(/usr/local/bin/qselect)", user="ada")
    return [one["job_state"] for one in json.loads(said)["Jobs"].values()]


def test_a_file_of_150_lines_makes_a_pool_of_another_scheduler_s_job(world: World) -> None:
    assert len(Path(pbs.__file__).read_text().splitlines()) <= MOST_LINES
    provider_registry.register(PBS)
    (host,) = world
    lines: list[str] = []
    pool = Pool(
        PoolSpec(provider=PBS(login=host.name, offline=True, setup="export MODULE=cuda"), nodes=2, name="small")
    )
    pool.start(lambda event: lines.append(getattr(event, "text", "")))
    try:
        assert any("the job is pending (Not Running: all nodes are busy)" in line for line in lines)
        code = (
            "import os, subprocess\n(subprocess.getoutput('hostname'), os.environ['MODULE'], 'PBS_JOBID' in os.environ)"
        )
        assert run(pool, code).values == [("n0", "cuda", False), ("n1", "cuda", False)]
        assert states(host) == ["R"]
        pool.resize(1)
        assert run(pool, "1").values == [1]
        pool.resize(2)
        assert run(pool, "1").values == [1, 1]
        assert states(host) == ["R", "R"]
    finally:
        pool.down()
    wait_until(lambda: states(host) == ["F", "F"])
    wait_until(lambda: [one for _, _, one in host.processes("ada") if not one.startswith("sshd")] == [])
    assert host.run("ls -d /tmp/sky-* /dev/shm/sky-*", check=False) == ""
