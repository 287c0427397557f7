"""Pools whose hosts do not reach each other: their control goes through the notebook's link, and it is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.display.notebook import pool_panel
from sky_jupyter.errors import BootstrapError, SkyError
from sky_jupyter.magics.verbs import status_of
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.runs.result import CellError
from tests.hosts.traces import nothing_left
from tests.hosts.world import Kind, World, hosts, skip_unless_hosts_run
from tests.pool.pools import begin, run
from tests.pool.remote import MARKS, links, nothing_here, provider, ssh_pool, wait_until
from tests.pool.test_ssh_link import LINES, Notices, a_dead_owner, attach
from tests.took import Took

pytestmark = [*MARKS, pytest.mark.usefixtures("config"), pytest.mark.timeout(400)]

NAMES = ["host0", "host1", "host2"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three hosts where a plain pool has been, which know no package index."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(3, python=True, warm=True) as made:
        yield made


@pytest.fixture(autouse=True)
def mended(world: World) -> Iterator[None]:
    """What a test cut is whole again for the next."""
    yield
    world.mend()


def cut(world: World, *numbers: int) -> None:
    """Each two of these hosts do not reach each other any more."""
    world.cut_between(*(world[number] for number in numbers))


def mend_notebook_s(world: World, *numbers: int) -> None:
    """The notebook reaches all hosts again, and these do not reach each other."""
    world.mend()
    cut(world, *numbers)


@pytest.mark.slow
def test_two_hosts_that_do_not_reach_each_other_are_a_pool(world: World) -> None:
    cut(world, 0, 1)
    ids: list[str] = []
    with nothing_left(world, ids):
        told: list[Any] = []
        with ssh_pool(told.append) as pool:
            ids.append(pool.id)
            (notice,) = [event.text for event in told if isinstance(event, NoticeEvent)]
            assert notice.startswith("host1 does not reach host0 (at ")
            assert (
                "the control connection of host1 goes through this notebook's link; collectives between them" in notice
            )
            assert "host1 does not reach host0" in pool_panel.to_text(status_of(pool))
            result = run(pool, "import socket\nprint(socket.gethostname())\n6 * 7")
            assert result.values == [42, 42]
            assert [result.stdout(rank) for rank in (0, 1)] == ["host0\n", "host1\n"]
            # Small values and large ones reach both, and come back.
            large = bytes(range(256)) * (12 << 12)
            namespace = {"small": {"a": 1}, "large": large}
            assert (
                run(pool, "small['a'], len(large), sum(large[::4096])", namespace).values
                == [(1, len(large), sum(large[::4096]))] * 2
            )
            assert run(pool, "large", namespace).values == [large] * 2
            # What is asked meanwhile reaches both.
            current = begin(pool, "import time\nwhile True: time.sleep(0.1)")
            wait_until(lambda: str(pool.where()).count("sleep") >= 1)
            assert len(pool.status()) == 2
            pool.interrupt(current)
            with pytest.raises(CellError, match="stopped on ranks 0-1"):
                pool.attend(current)


@pytest.mark.long  # as a cell does
def test_functions_run_on_hosts_that_do_not_reach_each_other(world: World) -> None:
    @sky.function
    def where(extra: int) -> tuple[str, int]:
        import socket

        return socket.gethostname(), extra

    @sky.function
    def shared(value: int) -> list[int]:
        with sky.lock("one"):
            sky.dict("all")[sky.instance_info().rank] = value
        for _ in range(20):
            sky.counter("all").increment()
        sky.barrier("all").wait()
        return sky.dict("all").values()

    @sky.function
    def doubled(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            yield 2 * number

    cut(world, 0, 1)
    with nothing_left(world, []), sky.Compute(provider=provider()) as pool:
        assert where(5) @ pool == [("host0", 5), ("host1", 5)]
        assert {(where(6) >> pool)[0] for _ in range(4)} <= {"host0", "host1"}
        # What they share by name, and what streams, goes through the link too.
        assert shared(3) @ pool == [[3, 3], [3, 3]]
        assert [pool.counter("all").increment() for _ in range(3)] == [41, 42, 43]
        assert list(doubled(iter(range(30))).on(1) >> pool) == list(range(0, 60, 2))


@pytest.mark.parametrize("seconds", [pytest.param(5, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.long)])
def test_a_run_goes_on_while_the_notebook_is_cut_off(world: World, seconds: int) -> None:
    cut(world, 0, 1)
    ids: list[str] = []
    with nothing_left(world, ids), ssh_pool() as pool:
        ids.append(pool.id)
        pids = run(pool, "import os; os.getpid()").values
        notices = Notices()
        count = 200 if seconds < 15 else 400
        current = begin(pool, LINES.format(count=count), listener=notices)
        time.sleep(0.5)
        world.cut()
        time.sleep(seconds)
        mend_notebook_s(world, 0, 1)
        result = pool.attend(current)
        assert result.values == pids
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(count)]] * 2
        wait_until(lambda: not pool.away)
        assert run(pool, "os.getpid()").values == pids
        assert pool.take_restarted() == set()


@pytest.mark.long  # as when it reaches none
@pytest.mark.parametrize("which", [0, 1])
def test_a_run_goes_on_while_the_notebook_does_not_reach_one_of_them(world: World, which: int) -> None:
    cut(world, 0, 1)
    with nothing_left(world, []), ssh_pool() as pool:
        pids = run(pool, "import os; os.getpid()").values
        notices = Notices()
        current = begin(pool, LINES.format(count=600), listener=notices)
        time.sleep(0.5)
        world.cut(world[which])
        wait_until(lambda: pool.away)
        time.sleep(10)
        mend_notebook_s(world, 0, 1)
        result = pool.attend(current)
        assert result.values == pids
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(600)]] * 2
        assert notices.of(f"host{which}", "unreachable from here, trying again")
        assert run(pool, "os.getpid()").values == pids


@pytest.mark.long  # its parts are tested in tests/machines
def test_a_link_that_is_killed_connects_them_again(world: World) -> None:
    cut(world, 0, 1)
    ids: list[str] = []
    with nothing_left(world, ids), ssh_pool() as pool:
        ids.append(pool.id)
        pids = run(pool, "import os; os.getpid()").values
        (process,) = links(pool.id)
        current = begin(pool, LINES.format(count=300))
        time.sleep(0.5)
        process.kill()
        result = pool.attend(current)
        assert result.values == pids
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(300)]] * 2
        assert run(pool, "os.getpid()").values == pids


@pytest.mark.long  # its parts are tested in tests/machines
@pytest.mark.parametrize("link", ["lives", "was killed"])
def test_a_later_notebook_takes_such_a_pool_up(world: World, link: str) -> None:
    cut(world, 0, 1)
    id = a_dead_owner(f"apart-{link[:2]}", code=LINES.format(count=200))
    (process,) = links(id)
    if link == "was killed":
        process.kill()
    pool = attach(id)
    try:
        assert list(pool.apart) == ["host1"]
        (running,) = [key for key, facts in pool.runs().items() if not facts["over"]]
        result = pool.attend(pool.adopt(running))
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(n) for n in range(200)]] * 2
        assert run(pool, "mine").values == [7, 7]
    finally:
        pool.down()
    wait_until(lambda: nothing_here(id))


@pytest.mark.long  # as of two
def test_of_three_hosts_one_is_apart(world: World, tmp_path: Path) -> None:
    world.cut_between(world[0], world[2])
    with nothing_left(world, []), ssh_pool(provider=provider(hosts=NAMES), nodes=3) as pool:
        assert list(pool.apart) == ["host2"]
        assert run(pool, "import socket; socket.gethostname()").values == NAMES
        assert run(pool, "len(data)", {"data": b"x" * (6 << 20)}).values == [6 << 20] * 3
        (tmp_path / "file").write_bytes(b"y" * (5 << 20))
        moved = pool.put(tmp_path / "file", "file")
        # To the one that is apart it goes by itself.
        assert (moved.alone, moved.sent) == ((2,), 10 << 20)
        assert run(pool, "import os; os.path.getsize('file'), os.unlink('file')").values == [(5 << 20, None)] * 3


@pytest.mark.long  # as one of three
def test_two_that_are_apart_from_the_head_are_each_reached(world: World) -> None:
    cut(world, 0, 1, 2)
    with nothing_left(world, []), ssh_pool(provider=provider(hosts=NAMES), nodes=3, ranks_per_node=2) as pool:
        assert list(pool.apart) == ["host1", "host2"]
        code = "import socket\nfrom sky_jupyter import instance_info\nsocket.gethostname(), instance_info().rank"
        assert run(pool, code).values == [(NAMES[rank // 2], rank) for rank in range(6)]


@pytest.mark.long
def test_collectives_between_hosts_that_do_not_reach_each_other_are_refused(world: World) -> None:
    # Also where only two others than the head do not.
    cut(world, 1, 2)
    with nothing_left(world, []):
        with (
            pytest.raises(BootstrapError) as caught,
            ssh_pool(provider=provider(hosts=NAMES), nodes=3, plugins=parse_plugins("jax")),
        ):
            pass
        text = str(caught.value)
        assert "the hosts of a pool with jax must all reach each other, on all ports" in text
        assert "host1 does not reach host2 at " in text
        assert "host2 does not reach host1 at " in text
        # Without collectives, nothing is to be said: each reaches the head.
        with ssh_pool(provider=provider(hosts=NAMES), nodes=3) as pool:
            assert pool.apart == {}


@pytest.mark.slow
def test_a_host_that_forwards_nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hosts(1, Kind(sshd=("AllowTcpForwarding local",)), python=True, warm=True) as strict:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(strict.ssh_config(tmp_path / "strict")))
        strict.cut_between()
        with nothing_left(strict, []), pytest.raises(BootstrapError) as caught, ssh_pool():
            pass
    text = str(caught.value)
    assert "on node 1 (host1): host1 does not reach host0" in text
    assert "AllowTcpForwarding yes" in text


@pytest.mark.slow
@pytest.mark.parametrize("line", ["AllowTcpForwarding no", "DisableForwarding yes", "PermitOpen none"])
def test_a_head_that_forwards_nothing_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    with hosts(Kind(sshd=(line,)), python=True, warm=True) as strict:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(strict.ssh_config(tmp_path / "strict")))
        with (
            nothing_left(strict, []),
            pytest.raises(SkyError) as caught,
            ssh_pool(provider=provider(hosts=["host0"]), nodes=1),
        ):
            pass
    text = str(caught.value)
    assert "host0" in text
    assert "refused a connection to" in text
    assert "AllowTcpForwarding yes" in text
    assert "tls://" not in text


@pytest.mark.long
def test_hosts_that_lose_each_other_for_a_while_lose_nothing_where_the_notebook_reaches_both(
    world: World, took: Took
) -> None:
    with nothing_left(world, []), ssh_pool() as pool:
        pids = run(pool, "import os; os.getpid()").values
        notices = Notices()
        current = begin(pool, LINES.format(count=1200), listener=notices)
        wait_until(lambda: all(len(outcome.stdout) > 1 for outcome in current.outcomes.values()))
        cut(world, 0, 1)
        # The scheduler gives a worker up that it has not heard of for half a minute.
        wait_until(lambda: 1 not in pool.control.addresses)  # type: ignore[union-attr]
        time.sleep(8)
        world.mend()
        mended = time.monotonic()
        assert pool.attend(current).values == pids
        assert [current.outcomes[rank].status for rank in (0, 1)] == ["ok", "ok"]
        assert notices.of("node 1 (host1) does not answer")
        assert run(pool, "os.getpid()").values == pids
        took.row(
            "two hosts of an SSH pool do not reach each other for 40 s, and the notebook reaches both",
            see="`node 1 (host1) does not answer; trying again, and what runs there continues`",
            kept="everything; the run goes on meanwhile",
            caught_up=time.monotonic() - mended,
        )
