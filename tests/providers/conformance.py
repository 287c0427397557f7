"""What every machine and every provider does. A kind of either passes by a subclass of a suite here.

    class TestMine(MachineConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def machine(cls) -> Iterator[Machine]: ...

    class TestMyProvider(ProviderConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def provider(cls) -> Provider: ...

One that makes machines passes `ProvisionerConformance` as well, for which nobody needs to connect to them.

The suite looks at a machine through the machine alone: its files and processes need not be this machine's. The machine
has a POSIX shell, the usual tools of a Linux system, and a Python (`MachineConformance.python`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shlex
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sky_jupyter.errors import MachineError, OrderSpent, ProvisionError, SkyError
from sky_jupyter.machines.base import Machine
from sky_jupyter.providers import provider_registry
from sky_jupyter.providers.base import ConnectionSession, Order, Provider, Provisioner, has_console
from sky_jupyter.spec.pool_spec import MACHINE_OPTIONS, PoolSpec

PATIENCE = 60.0
ODD_NAMES = ["a", "deep/er/b c", "it's", "$HOME", "-rf", "new\nline", "ünï", "*", "a\\b", ' " ', "~"]
_ECHO = """
import socket, sys
made = socket.create_server(("127.0.0.1", 0))
print(made.getsockname()[1], flush=True)
while True:
    near, _ = made.accept()
    while data := near.recv(65536):
        near.sendall(data)
    near.close()
"""


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)
    return value


class MachineConformance:
    """Commands, files, ports and processes of one machine, which the fixture ``machine`` gives."""

    python = "python3"
    # Whether a script that is given up ends there, with what it has started in its group.
    ends_scripts = True

    @pytest.fixture
    def there(self, machine: Machine) -> Iterator[PurePosixPath]:
        """A new folder on the machine."""
        made = machine.run("mktemp -d").out.decode().strip()
        yield PurePosixPath(made)
        assert machine.run(f"rm -rf -- {shlex.quote(made)}").status == 0

    def read(self, machine: Machine, path: PurePosixPath) -> bytes:
        # A line break in a path would end the script.
        word = shlex.quote(str(path)).replace("\n", "'\"$n\"'")
        done = machine.run(f"n=$(printf '\\nx'); n=${{n%x}}; cat -- {word}")
        assert done.status == 0, done.out
        return done.out

    def mode(self, machine: Machine, path: PurePosixPath) -> int:
        return int(machine.run(f"stat -c %a -- {shlex.quote(str(path))}").out, 8)

    def start(self, machine: Machine, folder: PurePosixPath, *argv: str, **more: Any) -> Any:
        return machine.exec(argv, env=more.pop("env", {}), cwd=str(folder), log=folder / "log", **more)

    def test_it_says_who_it_is(self, machine: Machine) -> None:
        assert all([machine.name, machine.key, machine.address])
        assert machine.up
        assert isinstance(machine.is_this_machine, bool)
        assert json.loads(json.dumps(machine.facts())) == machine.facts()
        machine.retry()

    # -- scripts

    @pytest.mark.parametrize("status", [0, 1, 5, 127, 255])
    def test_a_script_ends_with_its_status_and_all_that_it_said(self, machine: Machine, status: int) -> None:
        done = machine.run(f"echo a; echo b >&2; printf 'no end'; exit {status}")
        assert (done.status, done.out) == (status, b"a\nb\nno end")

    def test_a_script_that_a_signal_ends_says_which(self, machine: Machine) -> None:
        assert machine.run("sh -c 'kill -9 $$'; exit $?").status == 137

    def test_a_script_keeps_nothing_for_the_next(self, machine: Machine) -> None:
        assert machine.run("cd /; x=1; export y=2; umask 0; pwd").out == b"/\n"
        assert machine.run('echo "${x:-gone} ${y:-gone}"').out == b"gone gone\n"

    def test_a_script_reads_what_it_is_sent_and_nothing_else(self, machine: Machine) -> None:
        assert machine.run("cat").out == b""
        data = os.urandom(3_000_000)
        parts = (data[at : at + 7_777] for at in range(0, len(data), 7_777))
        done = machine.run(f"head -c {len(data)} | sha256sum", stdin=parts)
        assert done.out.split()[0].decode() == hashlib.sha256(data).hexdigest()

    def test_a_script_that_fails_before_it_has_read_all_says_so(self, machine: Machine) -> None:
        done = machine.run("echo no; exit 3", stdin=[bytes(100_000)] * 20)
        assert (done.status, done.out) == (3, b"no\n")
        assert machine.run("echo on").out == b"on\n"

    def test_input_that_cannot_be_had_is_its_own_error(self, machine: Machine) -> None:
        def broken() -> Iterator[bytes]:
            yield b"a"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            machine.run("cat >/dev/null", stdin=broken())
        assert machine.run("echo on").out == b"on\n"

    def test_long_output_comes_whole(self, machine: Machine) -> None:
        done = machine.run("head -c 10000000 /dev/zero; printf '\\377end'; exit 3")
        assert (done.status, len(done.out), done.out[-4:]) == (3, 10_000_004, b"\xffend")

    def test_a_script_that_takes_too_long_is_given_up(self, machine: Machine, there: PurePosixPath) -> None:
        with pytest.raises(TimeoutError):
            machine.run(f"sleep 600 & echo $! >{there}/pid; wait", timeout=1.0)
        assert machine.run("echo on", timeout=PATIENCE).out == b"on\n"
        if self.ends_scripts:
            state = f"s=$(cat /proc/$(cat {there}/pid)/stat 2>/dev/null); case $s in ''|*') Z '*) ;; *) exit 1;; esac"
            eventually(lambda: machine.run(state).status == 0)
        machine.run(f"kill $(cat {there}/pid) || true")

    def test_scripts_run_side_by_side(self, machine: Machine) -> None:
        found: dict[int, bytes] = {}

        def ask(number: int) -> None:
            found[number] = machine.run(f"head -c 100000; echo {number}", stdin=[bytes(100_000)]).out[100_000:]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {number: f"{number}\n".encode() for number in range(8)}

    # -- commands

    @pytest.mark.parametrize("survive", [True, False])
    def test_a_command_says_all_that_it_says(self, machine: Machine, there: PurePosixPath, survive: bool) -> None:
        secret = f'it\'s a "{uuid.uuid4().hex}"\nof $two `lines` \\n'
        text = 'printf "%s\\n" "$A"; echo wrong >&2; pwd; read -r x || echo no input; printf end; exit 7'
        command = self.start(machine, there, "sh", "-c", text, env={"A": secret}, survive=survive)
        assert list(command.lines()) == [*secret.split("\n"), str(there), "no input", "end"]
        assert command.wait(PATIENCE) == command.wait() == 7
        assert self.read(machine, there / "log") == b"wrong\n"
        assert self.mode(machine, there / "log") == 0o600

    def test_a_command_has_a_folder_made_for_it(self, machine: Machine, there: PurePosixPath) -> None:
        command = self.start(machine, there / "new" / "one", "pwd", make=True)
        assert list(command.lines()) == [f"{there}/new/one"]
        assert command.wait(PATIENCE) == 0
        assert self.mode(machine, there / "new" / "one") == 0o700

    @pytest.mark.parametrize("wrong", ["program", "folder", "log"])
    def test_a_command_that_cannot_start_is_an_error(self, machine: Machine, there: PurePosixPath, wrong: str) -> None:
        program = "no-such-program" if wrong == "program" else "true"
        folder = there / "nowhere" if wrong == "folder" else there
        log = there / "nowhere" / "log" if wrong == "log" else there / "log"
        with pytest.raises(MachineError) as caught:
            machine.exec([program], env={}, cwd=str(folder), log=log)
        assert machine.name in str(caught.value) or caught.value.host == machine.name

    @pytest.mark.parametrize(("way", "number"), [("terminate", 15), ("kill", 9)])
    def test_a_command_is_ended(self, machine: Machine, there: PurePosixPath, way: str, number: int) -> None:
        command = self.start(machine, there, "sleep", "600")
        with pytest.raises(TimeoutError):
            command.wait(0.1)
        getattr(command, way)()
        assert command.wait(PATIENCE) == -number
        getattr(command, way)()  # again is no error

    def test_a_command_may_end_in_its_own_way(self, machine: Machine, there: PurePosixPath) -> None:
        text = 'trap "echo bye; exit 3" TERM; echo on; while :; do sleep 0.1; done'
        command = self.start(machine, there, "sh", "-c", text)
        lines = command.lines()
        assert next(lines) == "on"
        command.terminate()
        assert list(lines) == ["bye"]
        assert command.wait(PATIENCE) == 3

    def test_a_command_that_is_stopped_goes_on_to_end(self, machine: Machine, there: PurePosixPath) -> None:
        command = self.start(machine, there, "sleep", "600")
        pid = command.identity[0]
        assert machine.run(f"kill -s STOP {pid}").status == 0
        eventually(lambda: b") T " in machine.run(f"cat /proc/{pid}/stat").out)
        command.terminate()
        assert command.wait(PATIENCE) == -15

    def test_a_process_is_known_by_its_identity(self, machine: Machine, there: PurePosixPath) -> None:
        command = self.start(machine, there, "sleep", "600")
        pid, started = command.identity
        identity = json.loads(json.dumps([pid, started]))
        process, other = machine.process((identity[0], identity[1])), machine.process((pid, started + 1))
        assert (process.identity, process.alive, other.alive) == ((pid, started), True, False)
        other.kill()
        other.terminate()
        assert process.alive
        with pytest.raises(TimeoutError):
            process.wait(0.2)
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert command.wait(PATIENCE) == -15
        assert not process.alive
        process.kill()  # no error

    # -- files

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_a_file_is_written_for_its_user_only(self, machine: Machine, there: PurePosixPath, name: str) -> None:
        data = os.urandom(100_000)
        machine.put({there / name: data})
        assert self.read(machine, there / name) == data
        modes = machine.run(f"find {there} -mindepth 1 -type f -printf '%m ' -o -type d -printf '%m '").out.split()
        assert set(modes) <= {b"600", b"700"}
        machine.put({there / name: b"new"})
        assert self.read(machine, there / name) == b"new"

    def test_many_files_are_written_at_once(self, machine: Machine, there: PurePosixPath) -> None:
        files = {there / "a" / str(number): os.urandom(number * 50_000) for number in range(10)}
        machine.put(files)
        assert {path: self.read(machine, path) for path in files} == files
        machine.put({})

    def test_a_file_that_cannot_be_written_is_an_error(self, machine: Machine, there: PurePosixPath) -> None:
        machine.put({there / "file": b"old"})
        for path in (there / "file" / "below", PurePosixPath("/proc/nowhere/file")):
            with pytest.raises(MachineError):
                machine.put({path: os.urandom(100_000)})
        assert self.read(machine, there / "file") == b"old"
        assert machine.run(f"ls -A {there}").out == b"file\n"

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_a_file_goes_up_and_down(self, machine: Machine, there: PurePosixPath, tmp_path: Path, name: str) -> None:
        source, back = tmp_path / "here" / name, tmp_path / "back"
        source.parent.mkdir(parents=True)
        source.write_bytes(os.urandom(300_000))
        source.chmod(0o640)
        told: list[tuple[int, int]] = []
        assert machine.run(f"mkdir -p -- {shlex.quote(str((there / name).parent))}").status == 0
        machine.upload(source, there / name, progress=lambda *at: told.append(at))
        assert self.read(machine, there / name) == source.read_bytes()
        assert told[-1] == (300_000, 300_000)
        machine.download(there / name, back)
        assert back.read_bytes() == source.read_bytes()
        assert back.stat().st_mode & 0o777 == 0o640

    def test_files_go_to_a_staging_folder_and_what_is_there_is_not_sent_again(
        self, machine: Machine, there: PurePosixPath, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        for name in ODD_NAMES[:4]:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(name)
        size = sum(len(name) for name in ODD_NAMES[:4])
        assert machine.upload(source, there / "all").sent == size
        again = machine.upload(source, there / "all")
        assert (again.sent, again.there) == (0, size)
        machine.upload(source, there / "some", names={"a": "x/y", "it's": "z"})
        found = machine.run(f"cd {there}/some && find . -type f | sort").out.split()
        assert found == [b"./x/y", b"./z"]
        assert self.read(machine, there / "some" / "x" / "y") == b"a"
        with pytest.raises(OSError, match="leads out"):
            machine.upload(source, there / "some", names={"a": "../out"})
        with pytest.raises(OSError, match=r"no file|No such file|no longer a file"):
            machine.upload(source, there / "some", names={"nothing": "x"})

    def test_a_folder_comes_down_with_its_links(self, machine: Machine, there: PurePosixPath, tmp_path: Path) -> None:
        script = f"cd {there} && mkdir -p f/empty f/in && echo one >f/a && echo two >f/in/b && ln -s in/b f/link"
        assert machine.run(script).status == 0
        target = tmp_path / "f"
        for _ in range(2):
            machine.download(there / "f", target)
            found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
            assert found == ["a", "empty", "in", "in/b", "link"]
            assert ((target / "a").read_text(), os.readlink(target / "link")) == ("one\n", "in/b")
            (target / "own").write_text("mine")
            (target / "own").unlink()
        with pytest.raises(MachineError):
            machine.download(there / "nothing", tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()

    # -- ports

    def test_a_port_there_is_reached_from_here(self, machine: Machine, there: PurePosixPath) -> None:
        command = self.start(machine, there, self.python, "-c", f"exec({_ECHO!r})")
        port = int(next(command.lines()))
        forward = machine.forward("127.0.0.1", port)
        try:
            for size in (10, 1_000_000):
                data = os.urandom(size)
                with socket.create_connection(("127.0.0.1", forward.port), PATIENCE) as near:
                    threading.Thread(target=_say, args=(near, data)).start()
                    assert b"".join(iter(lambda: near.recv(65536), b"")) == data
        finally:
            forward.close()
            command.kill()
        command.wait(PATIENCE)

        def refused() -> bool:
            try:
                socket.create_connection(("127.0.0.1", forward.port), PATIENCE).close()
            except OSError:
                return True
            return False

        eventually(refused)

    def test_a_port_where_nobody_listens_is_an_error(self, machine: Machine, there: PurePosixPath) -> None:
        code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
        port = int(machine.run(f"{shlex.quote(self.python)} -c {shlex.quote(code)}").out)
        with pytest.raises(MachineError):
            machine.forward("127.0.0.1", port)


class ProviderConformance:
    """What a provider does, which the fixture ``provider`` gives; it can have `count` machines."""

    count = 2

    @pytest.fixture
    def session(self) -> ConnectionSession:
        """What it connects with."""
        return ConnectionSession()

    @pytest.fixture
    def spec(self, provider: Provider) -> PoolSpec:
        """Of a pool of its machines."""
        return PoolSpec(provider=provider, nodes=self.count)

    def order(self, provider: Provider, spec: PoolSpec) -> Order:
        """What machines are made with; a provider that makes them is told which kind and where."""
        if not provider.provisions:
            return Order("0123abcd")
        offer = provider.offers(spec)[0]
        return Order("0123abcd", token=uuid.uuid4().hex, offer=offer, zone=next(iter(offer.zones), ""))

    @pytest.fixture
    def ids(self, provider: Provider, spec: PoolSpec) -> Iterator[Sequence[str]]:
        """Machines of a pool; none is left behind."""
        made = provider.create(spec, self.count, self.order(provider, spec))
        yield made
        provider.destroy(made)

    def test_it_is_a_value_that_says_what_it_is(self, provider: Provider, spec: PoolSpec) -> None:
        again = pickle.loads(pickle.dumps(provider))
        assert (again, hash(again), str(again)) == (provider, hash(provider), str(provider))
        assert provider.kind.isidentifier()
        flags = (provider.provisions, provider.survives_manager, provider.offline)
        assert all(isinstance(flag, bool) for flag in flags)
        assert set(provider.supported_options) <= set(MACHINE_OPTIONS)
        assert provider.default_nodes() >= 1
        assert [offer.name for offer in provider.offers(spec)]

    def test_machines_are_made_found_and_ended(
        self, provider: Provider, spec: PoolSpec, ids: Sequence[str], session: ConnectionSession
    ) -> None:
        assert len(set(ids)) == len(ids) == self.count
        assert [record.id for record in provider.describe(ids)] == list(ids)
        if provider.provisions:
            eventually(lambda: {record.id for record in provider.list("0123abcd")} == set(ids))
        assert list(provider.list("ffffffff")) == []
        provider.destroy(ids)
        provider.destroy(ids)  # again is no error
        if provider.provisions:
            eventually(lambda: not provider.list("0123abcd"))

    def test_machines_are_connected_in_their_order(
        self, provider: Provider, ids: Sequence[str], session: ConnectionSession
    ) -> None:
        machines = provider.connect(ids, session)
        try:
            assert [machine.run(f"echo {number}").out for number, machine in enumerate(machines)] == [b"0\n", b"1\n"]
            assert all(machine.is_this_machine != provider.survives_manager for machine in machines)
            swapped = provider.connect(ids[::-1], session)
            try:
                assert [machine.name for machine in swapped] == [machine.name for machine in machines][::-1]
            finally:
                close(swapped)
        finally:
            close(machines)

    def test_a_machine_that_is_not_there_is_an_error_and_none_is_left_connected(
        self, provider: Provider, ids: Sequence[str], session: ConnectionSession
    ) -> None:
        if not provider.survives_manager:
            pytest.skip("its machines are this one, which is there always")
        with pytest.raises(SkyError):
            provider.connect([ids[0], "no-such-machine"], session)

    def test_nodes_are_added_and_removed(self, provider: Provider, ids: Sequence[str]) -> None:
        spares = provider.spares(ids[:1])
        assert spares is None or list(spares) == list(ids[1:])
        kept = provider.resized(ids[:1], [], [])
        assert kept.kind == provider.kind
        if spares is not None:
            assert list(kept.spares(ids[:1]) or ()) == list(ids[1:])
            assert list(provider.resized(ids[:1], [], ids[1:]).spares(ids[:1]) or ()) == []
            assert next(iter(provider.resized(ids[:1], ["added"], []).spares(ids[:1]) or ())) == "added"


class ProvisionerConformance:
    """What a provider does that makes machines, which the fixture ``provider`` gives; it can have `count` of them."""

    count = 2

    @pytest.fixture
    def spec(self, provider: Provisioner) -> PoolSpec:
        """Of a pool of its machines."""
        return PoolSpec(provider=provider, nodes=self.count)

    @pytest.fixture
    def placed(self, provider: Provisioner, spec: PoolSpec) -> Iterator[Order]:
        """A call that makes machines of a pool of its own; none is left behind."""
        offer, pool = provider.offers(spec)[0], uuid.uuid4().hex[:8]
        until = time.time() + 3600
        zone = next(iter(offer.zones), "")
        yield Order(pool, token=uuid.uuid4().hex, offer=offer, zone=zone, until=until, owner="a test")
        if left := [record.id for record in provider.list(pool) if record.is_there]:
            provider.destroy(left)

    def there(self, provider: Provisioner, pool: str) -> set[str]:
        return {record.id for record in provider.list(pool) if record.is_there}

    def test_it_is_made_again_from_what_is_recorded_of_it(self, provider: Provisioner) -> None:
        again = provider_registry.restore(provider.kind, json.dumps(provider.recipe()))
        assert (again, again.account()) == (provider, provider.account())
        assert provider.account()
        assert provider.provisions
        assert provider.visible_within >= 0
        assert isinstance(provider.power_file, str)

    def test_machines_are_marked_as_the_order_says(self, provider: Provisioner, spec: PoolSpec, placed: Order) -> None:
        ids = set(provider.create(spec, self.count, placed))
        eventually(lambda: self.there(provider, placed.pool) == ids)
        assert placed.offer is not None
        for found in (
            provider.list(placed.pool),
            provider.list(placed.pool, [placed.offer.region]),
            provider.list(None),
        ):
            mine = [record for record in found if record.id in ids]
            assert {record.id for record in mine} == ids
            assert {(record.pool, record.region) for record in mine} == {(placed.pool, placed.offer.region)}
            assert placed.zone in ("", *(record.zone for record in mine))
            assert all(record.is_usable for record in mine)
            assert all(record.until == pytest.approx(placed.until, abs=1.0) for record in mine)

    def test_a_call_that_is_sent_again_makes_nothing_twice(
        self, provider: Provisioner, spec: PoolSpec, placed: Order
    ) -> None:
        ids = set(provider.create(spec, self.count, placed))
        assert set(provider.create(spec, self.count, placed)) == ids
        time.sleep(provider.visible_within)
        assert self.there(provider, placed.pool) == ids

    def test_a_call_whose_machines_have_ended_makes_no_others(
        self, provider: Provisioner, spec: PoolSpec, placed: Order
    ) -> None:
        ids = list(provider.create(spec, self.count, placed))
        provider.destroy(ids)
        eventually(lambda: not self.there(provider, placed.pool))
        with contextlib.suppress(OrderSpent):
            assert set(provider.create(spec, self.count, placed)) <= set(ids)
        time.sleep(provider.visible_within)
        assert self.there(provider, placed.pool) == set()

    def test_one_machine_ends_and_the_others_stay(self, provider: Provisioner, spec: PoolSpec, placed: Order) -> None:
        ids = list(provider.create(spec, self.count, placed))
        provider.destroy(ids[:1])
        eventually(lambda: self.there(provider, placed.pool) == set(ids[1:]))
        (gone, *_), (kept, *_) = provider.describe(ids[:1]), provider.describe(ids[1:])
        assert (gone.is_there, kept.is_there) == (False, True)

    def test_a_machine_that_never_was_has_no_log(self, provider: Provisioner) -> None:
        if not has_console(provider):
            pytest.skip("it has no logs of its machines")
        for previous in (False, True):
            with pytest.raises(ProvisionError):
                provider.console("no-such-machine", previous=previous)


def _say(near: socket.socket, data: bytes) -> None:
    near.sendall(data)
    near.shutdown(socket.SHUT_WR)


def close(machines: Iterable[Machine]) -> None:
    """Let go of machines."""
    for machine in machines:
        machine.close()
