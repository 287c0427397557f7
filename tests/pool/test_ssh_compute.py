"""What `Compute` and its options promise, on real hosts: Dask's workers, nodes that stand alone, and their time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError, MachineError
from sky_jupyter.pool.live import pools
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.remote import MARKS, is_clean, nothing_here, provider, wait_until

pytestmark = [*MARKS, pytest.mark.usefixtures("config"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two hosts on which a pool has been before."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


def all_clean(world: World) -> None:
    for host in world:
        wait_until(lambda host=host: is_clean(host))


def test_dask_workers_are_reached_through_the_link_and_end_with_the_pool(world: World) -> None:
    def host() -> str:
        import socket

        return socket.gethostname()

    token = uuid.uuid4().hex
    image = sky.Image(env={"SKY_TOKEN": token})
    with sky.Compute(provider=provider(), image=image, region="eu", ttl="1h") as pool:
        assert sorted(pool.dask.run(host).values()) == ["host0", "host1"]
        workers = list(pool.dask.scheduler_info()["workers"])
        assert pool.dask.submit(host, workers=workers[1]).result() in ("host0", "host1")
        assert sky.function(lambda: os.environ["SKY_TOKEN"])() @ pool == [token] * 2
        # It is in the ranks' environment, and on no command line and in no file of theirs.
        for machine in world:
            assert token not in machine.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
            assert not machine.run(f"grep -rl -- {token} /tmp/sky-* ~/.cache/sky_jupyter 2>/dev/null || :").strip()
    all_clean(world)


def test_hosts_that_stand_alone_need_not_reach_each_other(world: World) -> None:
    @sky.function
    def seen() -> tuple[int, int, int, int]:
        info = sky.instance_info()
        return info.node, info.rank, info.world_size, len(sky.shard([1, 2, 3]))

    world.cut_between(world[0], world[1])
    try:
        alone = sky.Options(cluster=False)
        with sky.Compute(provider=provider(), options=alone, name="alone") as pool:
            assert seen() @ pool == [(0, 0, 1, 3), (1, 0, 1, 3)]
            assert (seen() >> pool)[2] == 1
            data = b"x" * (3 << 20)
            assert sky.function(lambda: len(data))() @ pool == [len(data)] * 2
    finally:
        world.mend()
    all_clean(world)


@pytest.mark.long  # the same of local nodes is seen in seconds
def test_hosts_end_their_part_when_its_time_is_over_and_the_notebook_is_gone(world: World, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os
        import sky_jupyter as sky
        ssh = sky.SSH(["host0", "host1"], offline=True)
        pool = sky.Compute(provider=ssh, name="orphan", ttl=20).start()
        print(pool.pool.id, flush=True)
        os.kill(os.getpid(), 9)
        """)
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sky.__file__).parents[1])}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, check=False)
    id = done.stdout.split()[-1]
    assert not is_clean(world[0])
    all_clean(world)
    wait_until(lambda: nothing_here(id))


def test_connecting_and_its_attempts_have_their_limits(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BootstrapError, match=r"Options\(ssh_timeout=0.01\)"):
        sky.Compute(provider=provider(), options=sky.Options(ssh_timeout=0.01)).start()
    nobody = sky.SSH(["host0:9"])
    tries = sky.Options(max_provision_attempts=2, provision_retry_delay=0.1)
    with pytest.raises(MachineError, match="host0"):
        sky.Compute(provider=nobody, options=tries).start()
    assert "attempt 2 of 2 in 0.1 s" in capsys.readouterr().err
    assert not pools.all()
    all_clean(world)
