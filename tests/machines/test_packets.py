"""Packets of our own making: what paramiko and sshd read, and what is refused."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.machines.ssh.targets import Target

from .conftest import need_ssh
from .sshd import Server, serve

TargetOf = Callable[..., Target]
# Around a block of the cipher, a packet, and all that one call sends.
SIZES = [1, 2, 3, 15, 16, 17, 1000, 32767, 32768, 32769, 300_000]


@pytest.fixture(autouse=True)
def _ssh() -> None:
    need_ssh()


def keyed(ends: list[Any]) -> None:
    """Give packetizers that are connected with one another their keys."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key, start = AESGCM(bytes(range(16))), b"\1\2\3\4" + bytes(7) + b"\xfe"
    same = {"block_engine": key, "block_size": 16, "mac_engine": None, "mac_size": 16, "mac_key": None}
    for end in ends:
        end.set_outbound_cipher(**same, aead=True, iv_out=start)
        end.set_inbound_cipher(**same, aead=True, iv_in=start)


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any, socket.socket]]:
    """Ours, paramiko's, and its socket; the count in their nonces is about to carry."""
    from paramiko.packet import Packetizer

    from sky_jupyter.machines.ssh.packets import Packets, Wire

    near, far = socket.socketpair()
    with near, far:
        near.settimeout(0.1)
        far.settimeout(0.1)
        ours, theirs = Packets(Wire(near)), Packetizer(far)
        keyed([ours, theirs])
        yield ours, theirs, far


def test_paramiko_reads_what_we_send_and_we_what_it_sends(ends: Any) -> None:
    from paramiko.message import Message

    from sky_jupyter.machines.ssh import packets

    ours, theirs, _ = ends
    for size in SIZES[:-1]:
        data = os.urandom(size)
        for one, other in ((ours, theirs), (theirs, ours)):
            thread = threading.Thread(target=one.send_message, args=(Message(b"\x5e" + data),))
            thread.start()
            kind, message = other.read_message()
            thread.join()
            assert kind == 0x5E
            assert message.get_bytes(size) == data
    parts = [memoryview(os.urandom(size)) for size in SIZES[:-1]]
    thread = threading.Thread(target=ours.send_message, args=(packets._Burst(7, parts),))
    thread.start()
    for part in parts:
        kind, message = theirs.read_message()
        assert (kind, message.get_int(), message.get_binary()) == (94, 7, part)
    thread.join()


def test_what_was_changed_on_the_way_is_refused(ends: Any) -> None:
    import paramiko

    ours, _, far = ends
    ours.send_message(paramiko.Message(b"\x5eabc"))
    whole = bytearray(far.recv(1000))
    whole[9] ^= 1
    far.sendall(whole)
    with pytest.raises(paramiko.SSHException, match="not what was sent"):
        ours.read_message()
    far.sendall((1 << 30).to_bytes(4, "big") + bytes(100))
    with pytest.raises(paramiko.SSHException, match=r"a packet of 1073741824 bytes"):
        ours.read_message()


def test_one_call_sends_less_where_the_link_takes_it_slowly(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from paramiko.message import Message

    from sky_jupyter.machines.ssh import packets

    ours, _, far = ends
    data = memoryview(bytes(packets.PACKET))
    slowly, done = threading.Event(), threading.Event()

    def take() -> None:
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                far.recv(packets.PACKET)
            if slowly.is_set():
                time.sleep(0.02)

    thread = threading.Thread(target=take)
    thread.start()
    monkeypatch.setattr(packets, "_BRIEF", 60.0)
    grown = []
    for _ in range(100):
        before = ours.burst
        ours.send_message(packets._Burst(0, [data] * before))
        # Less than a full burst says nothing about the link.
        ours.send_message(packets._Burst(0, [data[:10]]) if before > 1 else Message(b"\x5e"))
        grown.append(ours.burst - before)
    assert ours.burst == 8
    assert grown[:5] == [0] * 5
    assert set(grown) == {0, 1}
    monkeypatch.undo()
    slowly.set()
    end = time.monotonic() + 60
    while ours.burst > 1 and time.monotonic() < end:
        ours.send_message(packets._Burst(0, [data] * 8))
    assert ours.burst == 1
    done.set()
    thread.join()


@pytest.mark.parametrize(
    "options",
    [["Ciphers aes256-gcm@openssh.com"], ["Ciphers aes128-ctr"], ["RekeyLimit 1M"]],
    ids=["256", "ctr", "rekey"],
)
def test_files_go_both_ways_whatever_the_server_wants(tmp_path: Path, target_of: TargetOf, options: list[str]) -> None:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    source = tmp_path / "source"
    source.write_bytes(os.urandom(12 << 20))
    with serve(tmp_path / "sshd", *options) as server, SSHMachine.connect(target_of(server)) as machine:
        machine.upload(source, tmp_path / "there")
        machine.download(tmp_path / "there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_new_keys_are_agreed_on_while_data_goes_both_ways(
    server: Server, target_of: TargetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sky_jupyter.machines.ssh.packets import Packets
    from sky_jupyter.machines.ssh.session import connect

    monkeypatch.setattr(Packets, "REKEY_BYTES", 1 << 20)
    times = []
    begin = Packets.set_outbound_cipher

    def count(self: Any, *arguments: Any, **options: Any) -> None:
        times.append(1)
        begin(self, *arguments, **options)

    monkeypatch.setattr(Packets, "set_outbound_cipher", count)
    data = os.urandom(8 << 20)
    with connect(target_of(server)) as session:
        assert session.run("cat", data).out.endswith(data)
    assert len(times) > 3


def test_files_go_through_a_jump_host(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from dataclasses import replace

    from sky_jupyter.machines.ssh.machine import SSHMachine

    source = tmp_path / "source"
    source.write_bytes(os.urandom(12 << 20))
    near = target_of(server)
    with SSHMachine.connect(replace(near, jump=near)) as machine:
        machine.upload(source, tmp_path / "there")
        machine.download(tmp_path / "there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_host_whose_dd_counts_no_bytes_takes_files_too(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dd").write_text("#!/bin/sh\necho dd: unknown operand >&2; exit 1\n")
    (tmp_path / "bin" / "dd").chmod(0o755)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(9 << 20))
    with SSHMachine.connect(target_of(server)) as machine:
        for number in range(2):
            machine.put(source.read_bytes(), tmp_path / f"put{number}")
            assert (tmp_path / f"put{number}").read_bytes() == source.read_bytes()
            machine.shell.run("true")
            machine.shell._send(f"PATH={tmp_path / 'bin'}:$PATH")
