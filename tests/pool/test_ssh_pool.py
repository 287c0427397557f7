"""Pools on real hosts over SSH: from bare to a cell's result, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.access.terminal_client import PoolLine
from sky_jupyter.errors import BootstrapError, HostKeyError, LoginRefused, MachineError, SkyError, Unreachable
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool.base.events import PhaseEvent
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.pool.runs.result import CellError
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS, is_clean, nothing_here, provider, ssh_pool, wait_until
from tests.programs import ROOT, run_program

pytestmark = [*MARKS, pytest.mark.usefixtures("config")]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two hosts with Debian's Python, which know no package index."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True) as made:
        yield made


def refusal(kind: type[SkyError], **options: Any) -> str:
    """Why a pool does not start."""
    with pytest.raises(kind) as caught, ssh_pool(**options):
        pass
    return str(caught.value)


@pytest.mark.slow
def test_a_cell_runs_on_bare_hosts_and_nothing_is_left(world: World) -> None:
    with ssh_pool() as pool:
        result = run(pool, "import socket\nprint(socket.gethostname())\n6 * 7")
        assert result.values == [42, 42]
        assert [result.stdout(rank) for rank in (0, 1)] == ["host0\n", "host1\n"]
        # What the notebook's own environment holds is not theirs.
        assert run(pool, "import os; os.environ.get('SKY_SSH_CONFIG')").values == [None, None]
        namespace = {"small": {"a": 1}, "large": os.urandom(9 << 20)}
        assert run(pool, "small['a'], len(large), hash(large)", namespace).values[0][:2] == (1, 9 << 20)
        assert [len(value) for value in run(pool, "large", namespace).values] == [9 << 20] * 2
        # What was sent for a run goes with it, but for large values, which another run may need again.
        wait_until(
            lambda: (
                not [
                    path
                    for host in world
                    for path in host.files()
                    if path.startswith("/dev/shm/sky-") and path.count("/") > 3 and "/kept" not in path
                ]
            )
        )
        for host in world:
            modes = host.run("stat -c '%a %U' /tmp/sky-* /tmp/sky-*/pool.key /tmp/sky-*/host.json").split("\n")
            assert modes[:3] == ["700 ada", "600 ada", "600 ada"]
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.slow
def test_the_next_pool_finds_the_environment_there(world: World) -> None:
    with ssh_pool():
        pass
    told: list[PhaseEvent] = []
    with ssh_pool(told.append) as pool:
        assert run(pool, "1").values == [1, 1]
        kept = {
            phase["phase"]: [(part["node"], part["state"]) for part in phase["nodes"]] for phase in pool.phases.facts()
        }
    assert kept["system"] == kept["environment"] == kept["files"] == [(0, "done"), (1, "done")]
    assert not [event for event in told if "building" in event.text or "sending" in event.text]
    phases = list(dict.fromkeys(event.phase for event in told))
    assert phases == ["connect", "system", "python", "environment", "files", "agent", "plugins"]


@pytest.mark.slow
def test_ranks_that_fail_and_interrupts_are_as_on_local_nodes() -> None:
    with ssh_pool(ranks_per_node=2) as pool:
        with pytest.raises(CellError) as caught:
            run(pool, "from sky_jupyter import instance_info\nassert instance_info().rank != 3, 'three'\n'fine'")
        assert caught.value.result.values[:3] == ["fine"] * 3
        assert "rank 3" in str(caught.value)
        assert isinstance(caught.value.errors[3], AssertionError)
        infos = run(pool, "i = instance_info(); i.node, i.local_rank, i.world_size, i.head_addr").values
        assert [info[:3] for info in infos] == [(0, 0, 4), (0, 1, 4), (1, 0, 4), (1, 1, 4)]
        assert len({info[3] for info in infos}) == 1


SECRET = secrets.token_hex(16)
# Whose arguments show it while a command runs that has it.
LOOK = """
import glob, os, pathlib
key, shown = os.environ["KEY"], []
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        shown += [path] if key in pathlib.Path(path).read_text(errors="replace") else []
    except OSError:
        pass
pathlib.Path("~/looked").expanduser().write_text(f"{len(key)} {shown}")
print("this is", key)
"""


@pytest.mark.slow
def test_functions_run_on_hosts_by_compute(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    step = sky.plugins.Step(["python", "-c", LOOK], env={"KEY": sky.plugins.Secret(SECRET)})
    prepare = sky.Plugin.create("prepare").with_bootstrap(lambda spec: [step, "echo again >>looked"])

    def louder(function: Any) -> Any:
        return (lambda extra: (*function(extra), "!")) if function.__name__ == "where" else function

    @sky.function
    def where(extra: int) -> tuple[str, int]:
        import socket

        return socket.gethostname(), extra

    plugins = [prepare, sky.Plugin.create("louder").with_decorator(louder)]
    with sky.Compute(provider=provider(), plugins=plugins) as pool:
        assert where(5) @ pool == [("host0", 5, "!"), ("host1", 5, "!")]
        name, extra, _ = where(6) >> pool
        assert (name in ("host0", "host1"), extra) == (True, 6)
        for host in world:
            assert host.run("cat ~/looked", user="ada") == f"{len(SECRET)} []again\n"
            assert host.run(f"grep -rls {SECRET} /home /tmp /dev/shm /run /var/log; :") == ""
        assert SECRET not in repr((capsys.readouterr(), pool.pool))
        data = [bytes([number]) * 1_500_000 for number in range(4)]
        assert pool.map(bytes.upper, data) == data
        assert (where(7).on(1) > pool).result(60) == ("host1", 7, "!")
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.long  # the quickstart on hosts has one, too
@pytest.mark.timeout(600)
def test_a_collective_of_jax_crosses_the_network(world: World) -> None:
    with ssh_pool(plugins=parse_plugins("jax")) as pool:
        received = world[1].network_bytes()[0]
        code = """
        import jax, jax.numpy as jnp
        from jax.experimental import multihost_utils
        multihost_utils.process_allgather(jnp.full(1 << 20, 1.0 + jax.process_index())).sum(axis=1).tolist()
        """
        result = run(pool, textwrap.dedent(code))
        assert result.values == [[float(1 << 20), float(2 << 20)]] * 2
        assert world[1].network_bytes()[0] - received > 4 << 20
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.slow
def test_a_pool_whose_host_process_is_killed_is_made_anew(world: World) -> None:
    with ssh_pool() as pool:
        hit = pool.hosts[1].command.identity[0]
        world[1].run(["sh", "-c", f"kill -9 {hit}"], user="ada")
        wait_until(lambda: pool.state == "broken")
        pool.restart()
        assert run(pool, "2").values == [2, 2]
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.long  # among the refusals, too
def test_a_host_that_is_off_is_named_and_the_other_is_left_alone(world: World) -> None:
    world[1].kill()
    try:
        text = refusal(Unreachable)
        assert "host1" in text
        assert "host0" not in text
    finally:
        world[1].boot()
    wait_until(lambda: is_clean(world[0]))


def test_who_is_not_let_in_is_told_so(world: World, config: Path) -> None:
    config.write_text(config.read_text().replace(str(world.key), str(world.other_key)))
    assert "host0" in refusal(LoginRefused)


def test_a_closed_port_is_told(config: Path) -> None:
    config.write_text(config.read_text().replace("Port 22", "Port 23"))
    assert "23" in refusal(Unreachable)


@pytest.mark.long  # among the refusals, and what is asked, too
def test_an_unknown_host_is_refused_until_its_key_is_accepted(world: World, config: Path) -> None:
    config.with_name("known_hosts").write_text("")
    assert "SHA256:" in refusal(HostKeyError)
    with ssh_pool(provider=provider(accept_host_keys=True)) as pool:
        assert run(pool, "1").values == [1, 1]
    with ssh_pool() as pool:
        assert run(pool, "2").values == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"nat": True}, {"jump": True}], ids=["nat", "jump"])
def test_hosts_behind_a_translator_or_a_jump_host_find_each_other(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hosts(2, python=True, warm=True, **options) as other:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(other.ssh_config(tmp_path / "other")))
        with ssh_pool() as pool:
            addresses = run(pool, "import sky_jupyter as sky; sky.instance_info().head_addr").values
            assert addresses == [other[0].private] * 2


@pytest.mark.long  # among the refusals, too
def test_where_nothing_may_be_run_it_is_told_which_place(world: World) -> None:
    world[0].forbid_programs("/tmp")
    with ssh_pool() as pool:
        assert run(pool, "1").values == [1, 1]
    world[1].forbid_programs("/home")
    try:
        text = refusal(BootstrapError)
        assert "on node 1" in text
        assert "noexec" in text
    finally:
        world[1].kill()
        world[1].boot()
    wait_until(lambda: is_clean(world[0]))


@pytest.mark.long  # among the refusals, too
def test_a_full_home_is_told(world: World) -> None:
    with ssh_pool():
        pass
    host = world[1]
    host.run("rm -rf ~/.cache", user="ada")
    host.fill_home()
    try:
        text = refusal(BootstrapError)
    finally:
        host.empty_home()
    assert "on node 1" in text
    assert "no space left" in text
    wait_until(lambda: is_clean(world[0]))


LEAVE = """
import os
import secrets
import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec

pool = Pool(PoolSpec(provider=sky.SSH(hosts=["host0", "host1"], offline=True), nodes=2, name="stray"))
pool.start()
print(pool.id, flush=True)
os._exit(0)
"""


@pytest.mark.long
def test_a_pool_that_its_notebook_left_is_ended_by_the_program_that_servers_run(world: World) -> None:
    left = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=200)
    id = left.stdout.strip()
    ended = subprocess.run(
        [sys.executable, "-m", "sky_jupyter.pool.end_without_manager", id], capture_output=True, text=True, timeout=200
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "pool stray: ended\n", "")
    wait_until(lambda: all(is_clean(host) for host in world) and nothing_here(id))


@pytest.mark.slow
def test_a_program_runs_unchanged_on_hosts(world: World, tmp_path: Path) -> None:
    program = tmp_path / "parallel.py"
    local = (ROOT / "examples" / "parallel.py").read_text(encoding="utf-8")
    program.write_text(local.replace("sky.Local()", "sky.SSH(['host0', 'host1'], offline=True)"), encoding="utf-8")
    said = run_program(program, folder=tmp_path)
    assert "both: 7 1024!" in said
    assert "as they end: [0.05, 0.6]" in said
    assert "future: 18446744073709551616" in said


@pytest.mark.slow
def test_a_terminal_opens_on_a_host_over_what_the_pool_holds(world: World) -> None:
    async def typed(line: PoolLine) -> tuple[bytes, int]:
        to = {"rank": 1, "id": "0123456789abcdef"}
        await line.ask({"action": "open", **to, "size": [24, 80], "term": "xterm"})
        await line.ask({"action": "resize", **to, "size": [33, 99]})
        keys = b"echo $MINE on $(hostname); stty size; sleep 1000 & exit 7\r"
        await line.ask({"action": "write", **to, "at": 0, "data": base64.b64encode(keys).decode()})
        shown = b""
        while True:
            answer = await line.ask({"action": "read", **to, "after": len(shown)})
            shown += base64.b64decode(answer["data"])
            if answer["exit"] is not None:
                await line.ask({"action": "close", **to})
                return shown, answer["exit"]

    with ssh_pool() as pool:
        run(pool, "import os\nos.environ['MINE'] = 'of a rank'")
        shown, status = asyncio.run(typed(PoolLine(pool)))
        assert b"of a rank on host1\r\n" in shown
        assert b"33 99\r\n" in shown
        assert status == 7
    # What was left in the background ends with the pool.
    assert "sleep\0001000" not in world[1].run("cat /proc/[0-9]*/cmdline 2>/dev/null")
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.slow
def test_dask_workers_are_reached_through_the_link_and_end_with_the_pool(world: World) -> None:
    def name() -> str:
        import socket

        return socket.gethostname()

    token = uuid.uuid4().hex
    image = sky.Image(env={"SKY_TOKEN": token})
    with sky.Compute(provider=provider(), image=image, region="eu", ttl="1h") as pool:
        assert sorted(pool.dask.run(name).values()) == ["host0", "host1"]
        workers = list(pool.dask.scheduler_info()["workers"])
        assert pool.dask.submit(name, workers=workers[1]).result() in ("host0", "host1")
        assert sky.function(lambda: os.environ["SKY_TOKEN"])() @ pool == [token] * 2
        # It is in the ranks' environment, and on no command line and in no file of theirs.
        for machine in world:
            assert token not in machine.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
            assert not machine.run(f"grep -rl -- {token} /tmp/sky-* ~/.cache/sky_jupyter 2>/dev/null || :").strip()
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.slow
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
    for host in world:
        wait_until(lambda host=host: is_clean(host))


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
    for host in world:
        wait_until(lambda host=host: is_clean(host))
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
    for host in world:
        wait_until(lambda host=host: is_clean(host))
