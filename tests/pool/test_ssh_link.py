"""A pool on hosts and its link: cuts, resets, hosts that die, a notebook that is killed, and the end of all."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import PoolError, SkyError
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.registry.rows import PoolRow
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.util.state_folder import registry_path
from tests.conftest import pool_folders
from tests.hosts.world import Host, World, hosts
from tests.pool.pools import begin, run
from tests.pool.remote import MARKS, is_clean, links, nothing_here, ssh_pool, wait_until
from tests.took import Took

pytestmark = [*MARKS, pytest.mark.usefixtures("config")]

LINES = """
import time, os
for number in range({count}):
    print(number)
    time.sleep(0.05)
os.getpid()
"""
OWNER = """
import sys, time, sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import begin, run
name, lease, code = sys.argv[1], float(sys.argv[2]), sys.argv[3]
pool = Pool(PoolSpec(provider=sky.SSH("host0,host1", offline=True), nodes=2, name=name, idle_timeout=lease))
pool.start()
run(pool, "mine = 7")
if code:
    begin(pool, code)
    time.sleep(1)
print("ready", pool.id, flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two hosts with Debian's Python, which know no package index."""
    with hosts(2, python=True, warm=True) as made:
        yield made


class Notices(list[str]):
    """What a run was told beside its output."""

    def __call__(self, event: Any) -> None:
        if isinstance(event, NoticeEvent):
            self.append(event.text)

    def of(self, *words: str) -> list[str]:
        return [text for text in self if all(word in text for word in words)]


def a_dead_owner(name: str, lease: float = 600, code: str = "") -> str:
    """The id of a pool whose notebook was killed."""
    command = [sys.executable, "-c", OWNER, name, str(lease), code]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert owner.stdout is not None
    try:
        word, id = owner.stdout.readline().split()
        assert word == "ready"
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    return id


def row_of(id: str) -> PoolRow | None:
    registry = Registry()
    try:
        return registry.pool(id)
    finally:
        registry.close()


def attach(id: str) -> Pool:
    row = row_of(id)
    assert row is not None
    return Pool.attach(row)


def swept() -> list[str]:
    registry = Registry()
    try:
        return sweep(registry)
    finally:
        registry.close()


def reset(world: World) -> None:
    """End all connections to the hosts, each with a word."""
    for host in world:
        host.run("pkill -u ada -x 'sshd|sshd-session'", check=False)


@pytest.mark.parametrize(
    ("seconds", "how"),
    [
        pytest.param(1, "silent", marks=pytest.mark.long),
        pytest.param(15, "silent", marks=pytest.mark.slow),  # longer than a link is silent before it is given up
        pytest.param(30, "silent", marks=pytest.mark.long),
        pytest.param(30, "reset", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(300)
def test_a_run_goes_on_while_the_link_is_cut_and_nothing_is_missing(world: World, seconds: int, how: str) -> None:
    with ssh_pool() as pool:
        pids = run(pool, "import os; os.getpid()").values
        notices = Notices()
        # The run ends while the link is cut, unless that is short.
        count = 60 if seconds == 1 else 300
        current = begin(pool, LINES.format(count=count), listener=notices)
        time.sleep(0.5)
        if how == "reset":
            reset(world)
        world.cut()
        try:
            began = time.monotonic()
            if seconds > 1:
                wait_until(lambda: pool.away)
                time.sleep(max(0.0, seconds - (time.monotonic() - began)))
            else:
                time.sleep(seconds)
        finally:
            world.mend()
        result = pool.attend(current)
        assert result.values == pids
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(count)]] * 2
        assert pool.take_restarted() == set()
        if seconds > 1:
            assert notices.of("the pool does not answer; trying again, and what runs there continues")
            for host in ("host0", "host1"):
                assert notices.of(host, "unreachable from here, trying again")
            assert notices.of("the pool answers again")
        # All that goes through the link works again.
        wait_until(lambda: not pool.away)
        current = begin(pool, "import time\nwhile True: time.sleep(0.1)")
        wait_until(lambda: "sleep" in str(pool.where()))
        pool.interrupt(current)
        with pytest.raises(CellError, match="stopped on ranks 0-1"):
            pool.attend(current)
        assert run(pool, "len(data)", {"data": b"x" * (9 << 20)}).values == [9 << 20] * 2
        # A host process that ends is still noticed, though another connection told of its start.
        hit = pool.hosts[1].command.identity[0]
        world[1].run(["kill", "-9", str(hit)])
        wait_until(lambda: pool.state == "broken")
        assert "host1" in pool.broken
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    wait_until(lambda: nothing_here(pool.id))


@pytest.mark.long  # half a minute each; the link's own tests have it too
@pytest.mark.parametrize("cut", [False, True], ids=["alone", "while the link is cut"])
def test_a_link_whose_process_is_killed_is_made_anew(world: World, cut: bool) -> None:
    with ssh_pool() as pool:
        run(pool, "1")
        current = begin(pool, LINES.format(count=200))
        time.sleep(0.5)
        (process,) = links(pool.id)
        if cut:
            world.cut()
        process.kill()
        try:
            wait_until(lambda: links(pool.id) not in ([], [process]))
            time.sleep(5.0 * cut)
        finally:
            world.mend()
        result = pool.attend(current)
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(200)]] * 2
        wait_until(lambda: pool.link is not None and pool.link.link.tunnels())
        assert run(pool, "len(data)", {"data": b"x" * (9 << 20)}).values == [9 << 20] * 2
        assert len(pool.status()) == 2
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    wait_until(lambda: nothing_here(pool.id))


def switch_off(host: Host, how: str) -> None:
    """Have a host be no use any more: without power, standing still as a whole, or without any process."""
    if how == "is off":
        host.kill()
    elif how == "stands still":
        host.pause()
    else:
        host.run("kill -9 -1", check=False)


def switch_on(host: Host, how: str) -> None:
    if how == "is off":
        host.boot()
    elif how == "stands still":
        host.resume()
    else:
        host.restart_sshd()


def cut_off(world: World, host: Host, notices: Notices) -> None:
    """Cut a head off from this machine only, for long enough that the other host is asked about it."""
    world.cut(host)
    try:
        wait_until(lambda: notices.of("the pool does not answer; trying again, and what runs there continues"))
        time.sleep(4)
    finally:
        world.mend()
    wait_until(lambda: notices.of("the pool answers again"))


DEATHS = pytest.mark.parametrize(
    "how", ["is off", *(pytest.param(how, marks=pytest.mark.long) for how in ("stands still", "has no process"))]
)
TOLD = {
    "is off": "answers neither {other} nor this machine: it is off, or cut off",
    "stands still": "answers neither {other} nor this machine: it is off, or cut off",
    "has no process": "answers this machine no more; as seen from {other} it is there, and nothing of the pool on it",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@DEATHS
def test_a_host_that_dies_is_named_and_its_ranks_are_given_up(world: World, how: str, took: Took) -> None:
    with ssh_pool() as pool:
        run(pool, "1")
        notices = Notices()
        current = begin(pool, "import time\nfor n in range(3000): time.sleep(0.1)", listener=notices)
        time.sleep(1)
        switch_off(world[1], how)
        began = time.monotonic()
        try:
            wait_until(lambda: 1 not in current.left)
            seconds = time.monotonic() - began
            told = TOLD[how].format(other="host0") if how != "has no process" else "it does not answer"
            with pytest.raises(CellError) as caught:
                pool.attend(current)
            assert "node 1 (host1) is lost" in str(caught.value.errors[1])
            assert told in str(caught.value.errors[1])
            assert how == "has no process" or notices.of(f"host1 {told}")
            # What is asked of it now is refused at once.
            with pytest.raises(CellError, match="rank 1"):
                run(pool, "2")
        finally:
            switch_on(world[1], how)
        if how == "stands still":
            # It is the same that it was, and there again.
            wait_until(lambda: 1 not in pool.control.lost and not pool.supervisor.repairs.mending)  # type: ignore[union-attr]
        else:
            pool.restart()
        assert run(pool, "3").values == [3, 3]
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    took.row(
        f"a host of an SSH pool {how}",
        see="which one it is, and that it was lost",
        kept="everything of the other nodes",
        told=seconds,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@DEATHS
def test_a_head_that_dies_is_named_and_the_others_journals_are_read(world: World, how: str, took: Took) -> None:
    with ssh_pool() as pool:
        notices = Notices()
        code = "import time\nfor n in range(3000):\n    time.sleep(0.1)\n    print(n)"
        current = begin(pool, code, listener=notices)
        wait_until(lambda: current.outcomes[1].stdout)
        if how == "is off":
            cut_off(world, world[0], notices)
            assert (pool.state, current.left) == ("ready", [0, 1])
        switch_off(world[0], how)
        began, heard = time.monotonic(), len("".join(current.outcomes[1].stdout).split())
        try:
            wait_until(lambda: not current.left)
            seconds = time.monotonic() - began
            with pytest.raises(CellError) as caught:
                pool.attend(current)
            told = f"host0 {TOLD[how].format(other='host1')}"
            assert notices.of(told)
            assert all(told in str(caught.value.errors[rank]) for rank in (0, 1))
            # The other went on unheard until its journal was read.
            assert "continues there, but its output is not received" in str(caught.value.errors[1])
            both = [caught.value.result.stdout(rank).split() for rank in (0, 1)]
            assert both == [[str(n) for n in range(len(lines))] for lines in both]
            assert len(both[1]) > heard + 10
            with pytest.raises(PoolError, match="host0"):
                pool.status()
            if how == "has no process":
                # What is not there yet leaves nothing on the other, and is tried again.
                with pytest.raises(SkyError, match="host0"):
                    pool.restart()
                wait_until(lambda: is_clean(world[1]))
        finally:
            switch_on(world[0], how)
        pool.restart()
        assert run(pool, "3").values == [3, 3]
    assert pool.unsure == []
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    took.row(
        f"the head of an SSH pool {how}",
        see="which host it is, and that the pool is broken; `%sky restart`",
        kept="what the other nodes had printed by then",
        told=seconds,
    )


@pytest.mark.parametrize(
    "link",
    ["lives", *(pytest.param(how, marks=pytest.mark.long) for how in ("was killed", "went with this machine's power"))],
)
def test_a_killed_notebook_s_pool_is_taken_up_with_its_run_and_ended(world: World, link: str) -> None:
    name = f"left-{link[:2]}"
    id = a_dead_owner(name, code=LINES.format(count=160))
    (process,) = links(id)
    assert name not in swept()
    row = row_of(id)
    assert row is not None
    assert row.outlives
    if link != "lives":
        process.kill()
    if link == "went with this machine's power":
        # What the system empties when it starts.
        (blobs,) = [folder for folder in row.folders if folder.startswith("/dev/shm/")]
        shutil.rmtree(blobs)
        assert [Path(folder).parent for folder in row.folders if folder != blobs] == [registry_path().parent]
    if link != "lives":
        assert name not in swept()
    pool = attach(id)
    try:
        if link == "lives":
            assert links(id) == [process]
        (running,) = [key for key, facts in pool.runs().items() if not facts["over"]]
        result = pool.attend(pool.adopt(running))
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(160)]] * 2
        assert run(pool, "mine").values == [7, 7]
        # Its hosts' processes are watched, as those that this process has started.
        world[1].run(["kill", "-9", str(pool.hosts[1].command.identity[0])])
        wait_until(lambda: pool.state == "broken")
    finally:
        pool.down()
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    wait_until(lambda: nothing_here(id))
    assert row_of(id) is None


@pytest.mark.slow
def test_a_pool_that_ended_by_its_lease_leaves_nothing_on_any_machine(world: World) -> None:
    id = a_dead_owner("leased", lease=10)
    assert len(pool_folders(id)) == 2
    assert all(host.processes("ada") for host in world)
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    # Its link has seen it end.
    wait_until(lambda: nothing_here(id))
    swept()
    assert row_of(id) is None


@pytest.mark.long  # waits for leases
def test_a_run_keeps_a_pool_and_its_link_beyond_the_lease(world: World) -> None:
    id = a_dead_owner("long-run", lease=10, code="import time\nfor n in range(300): time.sleep(0.1)\n'done'")
    time.sleep(20)
    swept()
    pool = attach(id)
    try:
        (running,) = [key for key, facts in pool.runs().items() if not facts["over"]]
        assert pool.attend(pool.adopt(running)).values == ["done", "done"]
    finally:
        pool.down()
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    wait_until(lambda: nothing_here(id))


@pytest.mark.long  # as one that ended by its lease
def test_a_pool_whose_hosts_were_started_anew_is_told_gone_and_swept(world: World) -> None:
    id = a_dead_owner("rebooted")
    for host in world:
        host.kill()
        host.boot()
    with pytest.raises(PoolError, match="has ended"):
        attach(id)
    wait_until(lambda: nothing_here(id))
    assert row_of(id) is None


@pytest.mark.long  # waits for patience to end
def test_a_pool_that_is_ended_while_it_is_cut_off_says_whom_it_did_not_reach(world: World) -> None:
    with ssh_pool(idle_timeout=10) as pool:
        world.cut(world[1])
        try:
            wait_until(lambda: "host1" in pool.away)
            pool.down()
        finally:
            world.mend()
        assert pool.unsure == ["host1"]
    wait_until(lambda: nothing_here(pool.id))
    for host in world:
        wait_until(lambda host=host: is_clean(host))


@pytest.mark.slow
def test_down_leaves_nothing_but_the_cache_on_the_hosts(world: World) -> None:
    with ssh_pool():
        pass
    before = [(host.files(), host.ports(), host.processes("ada")) for host in world]
    keys = [host.read("/home/ada/.ssh/authorized_keys") for host in world]
    with ssh_pool(ranks_per_node=2) as pool:
        run(
            pool,
            "import os; name = f'/tmp/{len(data)}-{os.getpid()}'; open(name, 'w').close(); os.unlink(name)",
            {"data": [1]},
        )
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    for host, (files, ports, processes), key in zip(world, before, keys, strict=True):
        assert {path for path in host.files() - files if "/.cache/sky_jupyter/" not in path} == set()
        assert (host.ports(), host.processes("ada")) == (ports, processes)
        assert host.read("/home/ada/.ssh/authorized_keys") == key
    wait_until(lambda: nothing_here(pool.id))


@pytest.mark.slow
def test_a_link_that_is_cut_as_a_restart_begins_costs_nothing_but_time(world: World, took: Took) -> None:
    with ssh_pool() as pool:
        run(pool, "mine = 7")
        notices = Notices()
        began = threading.Thread(target=lambda: pool.restart(notices), daemon=True)
        began.start()
        # New kernels are being made there.
        wait_until(lambda: pool.supervisor.repairs.mending)
        world.cut()
        time.sleep(10)
        world.mend()
        mended = time.monotonic()
        began.join(90)
        assert not began.is_alive()
        seconds = time.monotonic() - mended
        # Where the cut came late, the restart was done by then.
        assert pool.state == "ready"
        with pytest.raises(CellError) as caught:
            run(pool, "mine")
        assert {type(error) for error in caught.value.errors.values()} == {NameError}
        assert run(pool, "'alive'").values == ["alive", "alive"]
    took.row(
        "the connection to the pool is cut for 10 s as `%sky restart` begins (no packet comes through)",
        see="`the pool does not answer; trying again`, and that the kernels are made when it is back",
        kept="nothing of the kernels, as in any restart",
        back=seconds,
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", ["down", "lease"])
def test_ranks_on_hosts_end_in_order_too(world: World, end: str) -> None:
    path = f"/home/ada/written-{end}"
    code = f"import sky_jupyter as sky\nfile = open(f'{path}.{{sky.instance_info().rank}}', 'w')\n"
    code += "file.write('data' * 10)"
    if end == "down":
        with ssh_pool() as pool:
            run(pool, code)
        id = pool.id
    else:
        # Its notebook is killed, and its lease passes.
        id = a_dead_owner("written", lease=10, code=code)
    for rank, host in enumerate(world):
        wait_until(lambda host=host, rank=rank: host.read(f"{path}.{rank}") == b"data" * 10)
        host.run(f"rm {path}.{rank}")
        wait_until(lambda host=host: is_clean(host))
    wait_until(lambda: (swept(), nothing_here(id))[1])


@pytest.mark.slow
def test_a_guest_of_a_pool_on_hosts_uses_its_link_and_leaves_it_as_it_is(world: World) -> None:
    with ssh_pool(name="shared") as pool:
        run(pool, "kept = 7")
        (link,) = links(pool.id)
        guest = Pool.join(the_row(pool.id))
        try:
            large = bytes(range(256)) * 20_000
            assert run(guest, "len(large) + kept", {"large": large}).values == [len(large) + 7] * 2
            assert guest.pull("kept", [1]) == 7
            assert run(pool, "len(large)").values == [len(large)] * 2
            with pytest.raises(PoolError, match=r"guest of pool 'shared'.*--take-over"):
                guest.restart()
        finally:
            guest.down()
        assert links(pool.id) == [link]
        assert run(pool, "kept").values == [7, 7]
    wait_until(lambda: all(is_clean(host) for host in world))


def the_row(id: str) -> PoolRow:
    registry = Registry()
    try:
        return next(row for row in registry.pools() if row.id == id)
    finally:
        registry.close()
