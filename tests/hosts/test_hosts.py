"""The hosts that other tests run on are what those tests take them to be, and are gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts import images
from tests.hosts import world as module
from tests.hosts.inside import NETWORKS
from tests.hosts.world import Host, HostsError, Kind, World, hosts, skip_without_hosts

pytestmark = pytest.mark.root

PATIENCE = 60.0
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def bare() -> Iterator[World]:
    """Two hosts that no test changes for good."""
    with hosts(2) as world:
        yield world


@pytest.fixture
def two(bare: World) -> Iterator[World]:
    """The same two, with their link as it was afterwards."""
    yield bare
    bare.mend()
    bare.link()


def ssh(world: World, host: Host, *command: str, options: tuple[str, ...] = (), user: str = "") -> list[str]:
    """OpenSSH's own command line for a host."""
    config = world.ssh_config(user=user)
    return ["ssh", "-F", str(config), "-o", "BatchMode=yes", *options, host.name, *command]


def said(world: World, host: Host, *command: str, user: str = "") -> str:
    """What a command says that OpenSSH runs on a host."""
    done = subprocess.run(ssh(world, host, *command, user=user), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(command: list[str]) -> str:
    """Why OpenSSH does not log in."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 255
    return done.stderr


def reaches(host: Host, address: str, port: int = 22, *, seconds: float = PATIENCE) -> bool:
    """Whether a host can connect to an address."""
    command = f"timeout {seconds} bash -c 'exec 3<>/dev/tcp/{address}/{port}' && echo yes || echo no"
    return host.run(command).strip() == "yes"


def connects(host: Host, seconds: float = PATIENCE) -> bool:
    """Whether the laptop can connect to a host."""
    with socket.socket() as probe:
        probe.settimeout(seconds)
        return probe.connect_ex((host.address, host.port)) == 0


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Lines(list[str]):
    """Lines that have come so far."""

    ended = False

    def all_that_come(self) -> int:
        """Wait until what was on its way has come; how many there are then."""
        seen, quiet = len(self), time.monotonic()
        end = quiet + PATIENCE
        while time.monotonic() < quiet + 1.0:
            time.sleep(0.05)
            assert time.monotonic() < end, "lines go on to come"
            if len(self) != seen:
                seen, quiet = len(self), time.monotonic()
        return seen


@contextlib.contextmanager
def ticking(world: World, host: Host) -> Iterator[Lines]:
    """The lines of a count to 1000 that runs on a host, as they come."""
    process = subprocess.Popen(
        ssh(world, host, "for i in $(seq 1000); do echo $i; sleep 0.05; done"), stdout=subprocess.PIPE, text=True
    )
    lines, out = Lines(), process.stdout
    assert out is not None

    def read() -> None:
        for line in out:
            lines.append(line.strip())
        lines.ended = True

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: len(lines) > 2)
        yield lines
    finally:
        process.kill()
        process.wait()
        reader.join()
        out.close()


def test_openssh_logs_in_to_each_host(bare: World) -> None:
    for host in bare:
        for user in host.users:
            assert said(bare, host, "hostname; id -un", user=user).split() == [host.name, user]
        assert said(bare, host, "id -u", user="root") == "0"


def test_a_host_is_bare_and_maps_its_name_as_debian_does(bare: World) -> None:
    found = said(bare, bare[0], "getent hosts $(hostname); command -v python3 curl wget ip sudo gcc; uname -n")
    assert found.split() == ["127.0.1.1", "host0", "host0"]
    wait_until(lambda: len(bare[0].processes()) == 1)
    assert "/usr/sbin/sshd [listener]" in str(bare[0].processes())


def test_hosts_have_each_their_own_files_processes_and_keys(two: World) -> None:
    first, second = two
    said(two, first, "echo one > ~/file; echo one > /tmp/file; (setsid sleep 1234 > /dev/null 2>&1 &)")
    assert said(two, second, "ls ~ /tmp") == "/home/ada:\n\n/tmp:"
    assert first.read("/home/ada/file") == b"one\n"
    assert [(user, command) for _, user, command in first.processes("ada")] == [("ada", "sleep 1234")]
    wait_until(lambda: second.processes("ada") == [])  # nor the login that has just listed its files
    first.run("kill $(grep -lx sleep /proc/[0-9]*/comm | cut -d/ -f3) || true", user="ada")
    assert first.host_key != second.host_key


def test_what_is_orphaned_on_a_host_is_collected(bare: World) -> None:
    bare[0].run("(setsid sh -c 'sleep 0.1' &)")
    wait_until(lambda: "sleep 0.1" not in str(bare[0].processes()))
    assert "Z" not in bare[0].run("cat /proc/[0-9]*/stat | sed 's/.*) \\(.\\).*/\\1/'")


def test_hosts_reach_each_other_and_nothing_else(bare: World) -> None:
    first, second = bare
    assert reaches(first, second.address)
    assert reaches(second, first.address)
    assert not reaches(first, "192.0.2.1", seconds=1)
    before = bare.wire_bytes()
    first.run(f"timeout 5 bash -c 'exec 3<>/dev/tcp/{second.address}/22; read line <&3'")
    assert bare.wire_bytes() == before  # it does not cross the laptop's link


def test_hosts_cannot_call_the_laptop_unless_that_is_asked_for(bare: World) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server, hosts(1, open_laptop=True) as other:
        port = server.getsockname()[1]
        assert not reaches(bare[0], bare.address, port, seconds=1)
        assert reaches(other[0], other.address, port)


def test_a_cut_loses_nothing_and_tells_nobody(two: World) -> None:
    first, second = two
    with ticking(two, first) as lines:
        two.cut()
        seen = lines.all_that_come()
        assert not connects(first, 1.0)
        assert not connects(second, 1.0)
        assert reaches(first, second.address)
        assert len(lines) == seen
        two.mend()
        wait_until(lambda: len(lines) > seen + 5)
        assert lines == [str(number) for number in range(1, len(lines) + 1)]


def test_one_host_alone_can_be_cut_off(two: World) -> None:
    first, second = two
    two.cut(first)
    assert not connects(first, 1.0)
    assert connects(second)
    two.mend()
    assert connects(first, PATIENCE)


def test_hosts_can_be_cut_off_from_each_other(two: World) -> None:
    first, second = two
    two.cut_between(first, second)
    assert not reaches(first, second.address, seconds=1)
    assert not reaches(second, first.address, seconds=1)
    assert connects(first)
    two.mend()
    assert reaches(first, second.address)


def test_a_rate_limits_both_ways_and_bytes_are_counted(two: World) -> None:
    two.link(rate="20mbit")
    for command, way in ((f"head -c {4 * MEGABYTE} /dev/urandom", 0), ("cat > /dev/null", 1)):
        before, own = two.wire_bytes(), two[0].wire_bytes()
        begun = time.monotonic()
        data = os.urandom(4 * MEGABYTE) if way else b""
        done = subprocess.run(ssh(two, two[0], command), input=data, capture_output=True, timeout=PATIENCE, check=True)
        rate = 4 * MEGABYTE / (time.monotonic() - begun)
        assert len(done.stdout) == (0 if way else 4 * MEGABYTE)
        assert rate < 2.6 * MEGABYTE  # 20 Mbit/s are 2.5 MB/s, and a little may come in a burst
        crossed = two.wire_bytes()[way] - before[way]
        assert 1.02 < crossed / (4 * MEGABYTE) < 1.25
        assert 1.0 < (two[0].wire_bytes() - own) / (4 * MEGABYTE) < 1.25


def test_delay_and_loss_are_as_asked_for() -> None:
    echo = "import socket; s = socket.socket(type=2); s.bind(('', 9))\nwhile 1: s.sendto(*s.recvfrom(99))"
    with hosts(1, python=True) as world, socket.socket(type=socket.SOCK_DGRAM) as probe:
        said(world, world[0], f'(setsid python3 -c "{echo}" > /dev/null 2>&1 &)', user="root")
        probe.connect((world[0].address, 9))

        def answered(timeout: float) -> bool:
            probe.settimeout(timeout)
            with contextlib.suppress(OSError):
                probe.send(b"x")
                return bool(probe.recv(9))
            return False

        wait_until(lambda: answered(0.2))
        world.link(delay=0.1)
        begun = time.monotonic()
        assert answered(PATIENCE)
        assert time.monotonic() - begun >= 0.2
        world.link(loss=0.3)
        assert 4 < sum(answered(0.2) for _ in range(40)) < 34  # 0.7 x 0.7 of them
        world.link()
        assert answered(PATIENCE)


def test_a_bad_link_still_carries_everything(two: World) -> None:
    two.link(rate="50mbit", delay=0.02, loss=0.005)
    data = os.urandom(MEGABYTE)
    done = subprocess.run(ssh(two, two[0], "cat"), input=data, capture_output=True, timeout=PATIENCE)
    assert done.stdout == data


def test_a_host_without_power_tells_nobody_and_keeps_its_disk(two: World) -> None:
    first, second = two
    said(two, first, "echo kept > ~/kept; echo lost > /tmp/lost")
    with ticking(two, first) as lines:
        first.kill()
        seen = lines.all_that_come()
        assert not connects(first, 1.0)
        assert len(lines) == seen
        assert not lines.ended
        assert connects(second)
        with pytest.raises(HostsError, match="powered off"):
            first.run("true")
        first.boot()
        wait_until(lambda: connects(first))
    assert said(two, first, "cat ~/kept; ls /tmp; id -un") == "kept\nada"
    assert reaches(second, first.address)


def test_a_paused_host_goes_on_where_it_was(two: World) -> None:
    with ticking(two, two[0]) as lines:
        two[0].pause()
        seen = lines.all_that_come()
        assert not connects(two[0], 1.0)
        assert len(lines) == seen
        two[0].resume()
        wait_until(lambda: len(lines) > seen + 5)
        assert lines == [str(number) for number in range(1, len(lines) + 1)]


def test_openssh_is_refused_as_by_real_hosts(two: World) -> None:
    with hosts(Kind(login="password"), Kind(port=2222), Kind(sshd=("DenyUsers bob",))) as world:
        passwords, moved, denying = world
        assert "Permission denied (password)" in refused(ssh(world, passwords))
        assert "Connection refused" in refused(ssh(world, moved, options=("-p", "22")))
        assert said(world, moved, "hostname") == moved.name
        other = str(world.ssh_config(world.folder / "other", key=world.other_key))
        assert "Permission denied (publickey)" in refused(["ssh", "-F", other, "-o", "BatchMode=yes", moved.name])
        assert "Permission denied" in refused(ssh(world, denying, user="bob"))
        config = world.ssh_config()
        denying.change_key()
        command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", denying.name]
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused(command)
        assert said(world, denying, "hostname") == denying.name  # once known_hosts has the new one


def test_behind_a_jump_host_others_are_reached_through_it_alone() -> None:
    with hosts(2, jump=True) as world:
        assert connects(world[0])
        assert not connects(world[1], 1.0)
        assert said(world, world[1], "hostname") == "host1"


def test_hosts_can_have_public_addresses_that_they_do_not_know() -> None:
    with hosts(2, nat=True) as world:
        for host in world:
            assert host.address != host.private
            assert said(world, host, "cat /proc/net/fib_trie").count(host.private)
            assert not said(world, host, "cat /proc/net/fib_trie").count(host.address)
            with socket.socket() as probe:
                probe.settimeout(1.0)
                assert probe.connect_ex((host.private, 22)) != 0
        assert reaches(world[0], world[1].private)
        world.cut(world[0])
        assert [connects(host, 1.0) for host in world] == [False, True]


def test_what_is_on_a_host_can_be_told(two: World) -> None:
    host = two[0]
    # The first login of all makes files of its own.
    said(two, host, "true")
    files, ports = host.files(), host.ports()
    assert ports == {22}
    assert {"/home/ada/.ssh/authorized_keys", "/etc/hostname", "/run/sshd.pid"} <= files
    paths = {"/home/ada/new", "/tmp/new", "/dev/shm/new", "/var/tmp/new"}
    said(two, host, f"touch {' '.join(paths)}")
    assert host.files() - files == paths
    said(two, host, f"rm {' '.join(paths)}")


def test_a_host_can_be_full_and_forbid_programs_in_tmp(two: World) -> None:
    host = two[0]
    host.fill_home(left=100_000)
    done = subprocess.run(ssh(two, host, "head -c 1000000 /dev/zero > ~/big"), capture_output=True, text=True)
    assert "No space left on device" in done.stderr
    host.empty_home()
    said(two, host, "head -c 1000000 /dev/zero > ~/big; rm ~/big")
    host.write("/tmp/program", "#!/bin/sh\necho ran\n", user="ada", mode=0o755)
    assert said(two, host, "/tmp/program") == "ran"
    host.forbid_programs("/tmp")
    done = subprocess.run(ssh(two, host, "/tmp/program"), capture_output=True, text=True)
    assert (done.returncode, "Permission denied" in done.stderr) == (126, True)


def test_hosts_can_have_another_clock_and_another_architecture() -> None:
    with hosts(Kind(clock=3600, machine="aarch64"), python=True) as world:
        command = "python3 -c 'import time, platform; print(time.time(), platform.machine())'; uname -m; date +%s"
        now, python, uname, date = said(world, world[0], command).split()
        assert python == uname == "aarch64"
        assert 3590 < float(now) - time.time() < 3610
        assert 3590 < int(date) - time.time() < 3610
        world[0].set_clock(-60)
        assert -70 < int(said(world, world[0], "date +%s")) - time.time() < -50


def test_two_worlds_do_not_disturb_each_other(bare: World) -> None:
    with hosts(2) as other:
        assert other.network != bare.network
        assert not reaches(other[0], bare[0].address, seconds=1)
        other.cut()
        assert said(bare, bare[0], "hostname") == "host0"


def left(folder: Path, network: str, pids: set[int]) -> list[str]:
    """What is still there of a world: its processes, interface, folder and mounts."""
    interface = f"sky{NETWORKS.index(network)}"
    found = [f"process {pid}" for pid in pids if Path(f"/proc/{pid}").exists()]
    found += [interface] if interface in (name for _, name in socket.if_nameindex()) else []
    found += [str(folder)] if folder.exists() else []
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(images.cache()) in line]
    return found


def family(pid: int) -> set[int]:
    """A process and all below it, as far as they are still there."""
    children: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {pid}.union(*(family(int(child)) for child in children))


def namespaces() -> set[str]:
    """All network namespaces that a process is in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(process / "ns" / "net"))
    return found


def test_nothing_is_left_of_a_world() -> None:
    with hosts(2) as world:
        said(world, world[0], "(setsid sleep 1000 > /dev/null 2>&1 &)")
        world.link(rate="1mbit")
        networks = {}
        for pid in family(world.pid):
            # One of a command that has just ended.
            with contextlib.suppress(OSError):
                networks[pid] = os.readlink(f"/proc/{pid}/ns/net")
        pids, inside = set(networks), set(networks.values())
        assert len(inside) == 3
        assert len(left(world.folder, world.network, pids)) == len(pids) + 2
    wait_until(lambda: not left(world.folder, world.network, pids))
    assert not inside & namespaces()


_OWNER = """
import signal, sys, time
# What runs in the background may have been told to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.hosts.world import hosts
with hosts(2) as world:
    print(world.pid, world.network, world.folder, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_is_ended(ending: signal.Signals) -> None:
    skip_without_hosts()
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, network, folder = owner.stdout.readline().split()
    pids = family(int(pid))
    there = left(Path(folder), network, pids)
    owner.send_signal(ending)
    owner.communicate(timeout=PATIENCE)
    # Some of its processes may have been short ones.
    assert {f"process {pid}", folder} < set(there)
    wait_until(lambda: not left(Path(folder), network, pids))


def test_an_image_is_made_once_and_is_never_half_there(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        place.mkdir()
        made.append(place)
        time.sleep(0.2)
        if len(made) == 1:
            raise images.ImageError("the mirror is away")
        (place / "whole").touch()

    with pytest.raises(images.ImageError):
        images.made(tmp_path / "image", make)
    assert not (tmp_path / "image").exists()
    with ThreadPoolExecutor(4) as threads:
        places = list(threads.map(lambda _: images.made(tmp_path / "image", make), range(4)))
    assert places == [tmp_path / "image"] * 4
    assert len(made) == 2
    assert [path.name for path in (tmp_path / "image").iterdir()] == ["whole"]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="hosts need root: the machine's"), hosts(1):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "PROGRAMS", {"nft-that-is-not-there": "nftables"})
    with pytest.raises(pytest.skip.Exception, match="hosts need programs: apt-get install nftables"), hosts(1):
        pass
