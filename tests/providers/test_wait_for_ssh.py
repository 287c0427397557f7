"""The first connection to a machine that was made for a pool: waited for, verified, and its key replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import BootstrapError, HostKeyError, MachineError
from sky_jupyter.machines.ssh import pool_keys
from sky_jupyter.machines.ssh.pool_keys import PoolKeys
from sky_jupyter.pool.hosts.pool_link import PoolLink
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import provider_registry, wait_for_ssh
from sky_jupyter.providers.base import ConnectionSession
from sky_jupyter.providers.provisioning_types import MachineRecord
from sky_jupyter.providers.wait_for_ssh import BootAccess
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import Host, World, hosts, skip_without_hosts
from tests.providers.cloud import Cloud

ID, POOL = "i-0123456789abcdef0", "0123abcd"
KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"
# Nobody is there (RFC 5737).
NOBODY = "192.0.2.1"
Describe = Callable[[Sequence[str]], Sequence[MachineRecord]]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PoolKeys:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    monkeypatch.setattr(wait_for_ssh, "_POLL", 0.05)
    return pool_keys.make(POOL)


def record(state: str, *addresses: str, reason: str = "") -> MachineRecord:
    return MachineRecord(ID, state, POOL, addresses, reason=reason)


def access(describe: Describe, *, console: str = "") -> BootAccess:
    return BootAccess(describe, "root", None, lambda record: "", lambda record: console)


def found_at(host: Host) -> BootAccess:
    return access(lambda ids: [record("running", host.address, host.private)])


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (MachineRecord(ID, "unknown"), "not listed yet"),
        (record("pending"), "pending, without an address"),
        (record("running", NOBODY), f"running, and {NOBODY} port 22 does not answer; its console: no | root | disk"),
    ],
)
def test_a_long_wait_says_for_what_and_obeys_stop(
    there: MachineRecord, said: str, keys: PoolKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_for_ssh, "_LONG", 0.01)
    stop, told = threading.Event(), []

    def tell(line: str) -> None:
        told.append(line)
        stop.set()

    with pytest.raises(MachineError, match="stopped"):
        wait_for_ssh.connect(
            access(lambda ids: [there], console="x\nno\nroot\n\ndisk\n"), [ID], ConnectionSession(stop=stop, tell=tell)
        )
    assert told
    assert said in told[0]
    assert ID in told[0]


@pytest.mark.parametrize("addresses", [(), (NOBODY,)])
def test_a_machine_that_ends_while_it_is_waited_for_is_an_error_with_its_reason(
    addresses: tuple[str, ...], keys: PoolKeys
) -> None:
    states = iter([record("pending" if not addresses else "running", *addresses)])

    def describe(ids: Sequence[str]) -> Sequence[MachineRecord]:
        return [next(states, record("ended", reason="Server.SpotInstanceTermination"))]

    with pytest.raises(MachineError, match="SpotInstanceTermination"):
        wait_for_ssh.connect(access(describe), [ID], ConnectionSession())


def test_without_the_keys_it_is_said_where_they_are(keys: PoolKeys) -> None:
    pool_keys.forget(POOL)
    with pytest.raises(MachineError, match=f"the one that made pool {POOL}"):
        wait_for_ssh.connect(access(lambda ids: [record("running", NOBODY)]), [ID], ConnectionSession())


def test_this_computer_is_let_in_once_in_each_region(keys: PoolKeys) -> None:
    stop, admitted = threading.Event(), []
    there = [
        replace(record("running", NOBODY), id=f"i-{n}", region=name) for n, name in enumerate(["east", "west"] * 2)
    ]

    def admit(one: MachineRecord) -> str:
        admitted.append(one.region)
        if len(admitted) == 2:
            stop.set()
        return ""

    looked = BootAccess(lambda ids: there, "root", None, admit, lambda record: "")
    with pytest.raises(MachineError, match="stopped"):
        wait_for_ssh.connect(looked, [one.id for one in there], ConnectionSession(stop=stop))
    assert sorted(admitted) == ["east", "west"]


def test_the_keys_of_a_pool_stay_the_same_and_are_for_their_user_only(keys: PoolKeys) -> None:
    again = pool_keys.make(POOL)
    assert (again.client, again.first_host) == (keys.client, keys.first_host)
    assert [path.stat().st_mode & 0o77 for path in [keys.folder, *keys.folder.iterdir()]] == [0] * 5
    assert [path.name for path in keys.folder.parent.iterdir()] == [POOL]
    pool_keys.forget(POOL)
    assert pool_keys.of(POOL) is None
    assert list(keys.folder.parent.iterdir()) == []


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_without_hosts()
    pytest.importorskip("paramiko", reason="needs paramiko (the `ssh` extra)")
    with hosts(1) as made:
        yield made


@pytest.fixture
def host(world: World, keys: PoolKeys) -> Host:
    """A host that was booted with what user data gives it."""
    made = world[0]
    made.write("/root/.ssh/authorized_keys", f"{keys.client}\n", mode=0o600)
    give(made, keys)
    return made


def give(host: Host, keys: PoolKeys) -> None:
    """Let a host have the first host key."""
    private, public = keys.first_host
    host.write(KEY_FILE, private, mode=0o600)
    host.write(f"{KEY_FILE}.pub", f"{public}\n")
    host.restart_sshd()


@pytest.mark.root
def test_the_first_host_key_is_verified_and_replaced_by_one_that_only_the_machine_has(
    host: Host, keys: PoolKeys
) -> None:
    first = keys.first_host[1]
    [machine] = wait_for_ssh.connect(found_at(host), [ID], ConnectionSession())
    try:
        assert machine.run("id -u").out.strip() == b"0"
        assert machine.address == host.private
        [own] = keys.trusted(ID)
        assert own != first
        assert own.split() == host.read(f"{KEY_FILE}.pub").decode().split()[:2]
        assert keys.first_host[0] not in host.read(KEY_FILE).decode()
    finally:
        machine.close()
    [again] = wait_for_ssh.connect(found_at(host), [ID], ConnectionSession())
    again.close()
    assert keys.trusted(ID) == [own]
    # Whoever read the user data is not taken for the machine any more.
    give(host, keys)
    with pytest.raises(HostKeyError):
        wait_for_ssh.connect(found_at(host), [ID], ConnectionSession())


@pytest.mark.root
def test_a_replacement_that_was_cut_short_is_finished_by_the_next_connection(
    host: Host, keys: PoolKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    use = wait_for_ssh._USE
    monkeypatch.setattr(wait_for_ssh, "_USE", "exit 3 # {own}")
    [machine] = wait_for_ssh.connect(found_at(host), [ID], ConnectionSession(tell=told.append))
    machine.close()
    assert "is not replaced" in told[0]
    assert len(keys.trusted(ID)) == 2
    monkeypatch.setattr(wait_for_ssh, "_USE", use)
    [machine] = wait_for_ssh.connect(found_at(host), [ID], ConnectionSession())
    machine.close()
    [own] = keys.trusted(ID)
    assert own.split() == host.read(f"{KEY_FILE}.pub").decode().split()[:2]


@pytest.mark.root
def test_another_host_key_than_the_given_one_is_refused_at_once(host: Host, keys: PoolKeys) -> None:
    host.change_key()
    with pytest.raises(HostKeyError, match="another machine answers there"):
        wait_for_ssh.connect(found_at(host), [ID], ConnectionSession())


@pytest.mark.root
def test_a_machine_that_boots_slowly_is_waited_for(host: Host, keys: PoolKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pending, then its port is closed, then it lets nobody in, and then it does."""
    monkeypatch.setattr(wait_for_ssh, "_LONG", 0.01)
    host.run("kill $(cat /run/sshd.pid)")
    host.write("/root/.ssh/authorized_keys", "", mode=0o600)
    there, heard = [record("pending")], []

    def tell(line: str) -> None:
        for said, act in acts.items():
            if said in line:
                heard.append(said)
                del acts[said]
                act()
                return

    acts: dict[str, Callable[[], object]] = {
        "pending, without": lambda: there.append(record("running", host.address, host.private)),
        "does not answer": lambda: host.run("/usr/sbin/sshd"),
        "answers, but": lambda: host.write("/root/.ssh/authorized_keys", f"{keys.client}\n", mode=0o600),
    }
    [machine] = wait_for_ssh.connect(access(lambda ids: there[-1:]), [ID], ConnectionSession(tell=tell))
    machine.close()
    assert heard == ["pending, without", "does not answer", "answers, but"]


@provider_registry.register
@dataclass(frozen=True)
class Slow(Cloud):
    """A cloud whose machines never boot."""

    kind = "slow-cloud"

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Any]:
        return wait_for_ssh.connect(access(lambda ids: [replace(record("pending"), id=ids[0])]), ids, session)


def test_a_start_that_waits_too_long_for_a_machine_says_for_what(
    keys: PoolKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_for_ssh, "_LONG", 0.01)
    provider = Slow(str(tmp_path / "cloud.sqlite"))
    pool = Pool(PoolSpec(provider=provider, options=Options(ssh_timeout=2.0)))
    with pytest.raises(BootstrapError, match=r"Options\(ssh_timeout=2\)(.|\n)*pending, without an address"):
        pool.start()
    assert provider.alive() == []


def test_a_start_whose_time_is_over_before_anything_was_told_says_what_it_waited_for(
    keys: PoolKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def start_slowly(link: PoolLink) -> Any:
        """As the process of the connections starts on a busy machine."""
        over.wait()
        raise MachineError("", "closed", "stopped")

    monkeypatch.setattr(PoolLink, "open", start_slowly)
    pool = Pool(PoolSpec(provider=Slow(str(tmp_path / "cloud.sqlite")), options=Options(ssh_timeout=2.0)))
    try:
        with pytest.raises(BootstrapError, match=r"ssh_timeout(.|\n)*[^ ]+: pending, without an address"):
            pool.start()
    finally:
        over.set()


@pytest.mark.root
@pytest.mark.slow
def test_machines_without_public_addresses_are_reached_through_a_jump_host(
    keys: PoolKeys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    skip_without_hosts()
    pytest.importorskip("paramiko", reason="needs paramiko (the `ssh` extra)")
    with hosts(2, jump=True) as made:
        behind = made[1]
        # The user's configuration says how the jump host is reached, and nothing of the machine.
        monkeypatch.setenv("SKY_SSH_CONFIG", str(made.ssh_config(tmp_path / "config")))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        behind.write("/root/.ssh/authorized_keys", f"{keys.client}\n", mode=0o600)
        give(behind, keys)
        there = BootAccess(
            lambda ids: [record("running", NOBODY, behind.private)],
            "root",
            made[0].name,
            lambda one: "",
            lambda one: "",
        )
        # It boots for longer than log-ins may fail.
        monkeypatch.setattr(wait_for_ssh, "_BOOTING", -1.0)
        monkeypatch.setattr(wait_for_ssh, "_LONG", 0.01)
        behind.run("kill $(cat /run/sshd.pid)")
        told: list[str] = []

        def tell(line: str) -> None:
            told.append(line)
            if len(told) == 1:
                behind.run("/usr/sbin/sshd")

        [machine] = wait_for_ssh.connect(there, [ID], ConnectionSession(tell=tell))
        assert "not to be reached through its jump host" in told[0]
        try:
            assert machine.run("hostname").out.strip() == behind.name.encode()
            assert len(keys.trusted(ID)) == 1
        finally:
            machine.close()
