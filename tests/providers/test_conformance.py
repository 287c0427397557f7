"""This machine, hosts over SSH, and hosts over the link do what every machine does; their providers as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import sky_jupyter as sky
from sky_jupyter.machines.base import Machine
from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.providers.base import ConnectionSession, Provider

from ..machines.conftest import need_ssh
from ..machines.sshd import Server, serve
from .cloud import Cloud
from .conformance import MachineConformance, ProviderConformance, ProvisionerConformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An sshd that lets us in as two hosts, ``one`` and ``two``, for the whole file."""
    need_ssh()
    folder = tmp_path_factory.mktemp("sshd")
    with serve(folder) as made, pytest.MonkeyPatch.context() as patch:
        known, config = folder / "known_hosts", folder / "config"
        known.write_text(made.known_line(name="one") + made.known_line(name="two"))
        config.write_text(
            f"Host one two\n  HostName 127.0.0.1\n  Port {made.port}\n  IdentityFile {made.key}\n"
            f"  UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n"
            "Host one\n  HostKeyAlias one\nHost two\n  HostKeyAlias two\n"
        )
        patch.setenv("SKY_SSH_CONFIG", str(config))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield made


@pytest.fixture(scope="module")
def link_session(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectionSession]:
    """What connects over a link's process."""
    from sky_jupyter.machines.link.client import Link

    with Link.start(tmp_path_factory.mktemp("links") / "link") as link:
        yield ConnectionSession(open_link=lambda: link)
        link.end()


class TestThisMachine(MachineConformance):
    python = sys.executable

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls) -> Machine:
        return LocalMachine()


class TestMachineOverSSH(MachineConformance):
    python = sys.executable
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, server: Server) -> Iterator[Machine]:
        (made,) = sky.SSH("one").connect(["one"], ConnectionSession())
        yield made
        made.close()


class TestMachineOverTheLink(MachineConformance):
    python = sys.executable
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, link_session: ConnectionSession) -> Machine:
        (made,) = sky.SSH("one").connect(["one"], link_session)
        return made


class TestLocal(ProviderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Provider:
        return sky.Local()


class TestSSH(ProviderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, server: Server) -> Provider:
        return sky.SSH("one,two")


class TestSSHOverTheLink(TestSSH):
    @pytest.fixture
    def session(self, link_session: ConnectionSession) -> ConnectionSession:
        return link_session

    def test_a_machine_is_found_again_by_what_it_said(self, provider: Provider, session: ConnectionSession) -> None:
        (machine,) = provider.connect(["two"], session)
        known = {"two": machine.facts()}
        (again,) = provider.connect(["two"], ConnectionSession(open_link=session.open_link, known=known))
        assert again == machine
        machine.close()


class TestCloud(ProvisionerConformance):
    """That has no hosts; `test_cloud_hosts` has those."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, tmp_path_factory: pytest.TempPathFactory) -> Provider:
        return Cloud(str(tmp_path_factory.mktemp("cloud") / "cloud.sqlite"))
