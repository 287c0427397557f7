"""Channels: what goes both ways, with each cipher, through a jump host, and while new keys are agreed on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.machines.ssh.target import Target

from .conftest import need_ssh
from .sshd import Server, serve

TargetOf = Callable[..., Target]


@pytest.fixture(autouse=True)
def _ssh() -> None:
    need_ssh()


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
    from paramiko.packet import Packetizer

    from sky_jupyter.machines.ssh.session import connect

    monkeypatch.setattr(Packetizer, "REKEY_BYTES", 1 << 20)
    times = []
    begin = Packetizer.set_outbound_cipher

    def count(self: Any, *arguments: Any, **options: Any) -> None:
        times.append(1)
        begin(self, *arguments, **options)

    monkeypatch.setattr(Packetizer, "set_outbound_cipher", count)
    data = os.urandom(8 << 20)
    with connect(target_of(server)) as session:
        assert session.run("cat", data).out.endswith(data)
    assert len(times) > 3


def test_a_channel_takes_nothing_after_its_last_word(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with connect(target_of(server)) as session:
        channel = session.channel("sleep 60")
        channel.shutdown_write()
        with pytest.raises(OSError, match="the channel is closed"):
            channel.send_all(b"more")
        channel.close()


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
            machine.put({tmp_path / f"put{number}": source.read_bytes()})
            assert (tmp_path / f"put{number}").read_bytes() == source.read_bytes()
            machine.run("true")
            machine._shell._send(f"PATH={tmp_path / 'bin'}:$PATH")


@pytest.mark.parametrize("late", ["the end of its input", "its input"])
def test_a_channel_says_nothing_after_its_end(
    server: Server, target_of: TargetOf, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """A server ends the whole connection over what it is sent for a channel that it has closed."""
    from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EOF

    from sky_jupyter.machines.ssh.session import connect

    kind = MSG_CHANNEL_EOF if late == "the end of its input" else MSG_CHANNEL_DATA
    made, closed = threading.Event(), threading.Event()
    with connect(target_of(server)) as session:
        channel = session.channel("exec cat")
        send = channel.transport._send_user_message

        def send_late(message: Any) -> None:
            if message.asbytes()[0] == kind:
                made.set()
                closed.wait(60)
            send(message)

        monkeypatch.setattr(channel.transport, "_send_user_message", send_late)
        session.feed(channel, [b"input"])
        assert made.wait(60)
        channel.close()
        # The server has taken note of its end.
        assert session.run("true").status == 0
        monkeypatch.undo()
        closed.set()
        for _ in range(3):
            assert session.run("echo here").out.endswith(b"here\n")
