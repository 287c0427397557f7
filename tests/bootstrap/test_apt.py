"""Debian packages of an image: on real hosts, from a repository of their own; and on this machine, never installed."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.bootstrap import apt
from sky_jupyter.errors import BootstrapError, SpecError
from sky_jupyter.spec.pool_spec import Image
from tests.bootstrap.test_remote import preparation
from tests.hosts.world import Host, World, hosts

on_hosts = [
    pytest.mark.root,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]
# In place of Debian's own, which is not in the image: it has its file's owner's rights, and asks for no password.
SUDO = r"""
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    if (count < 3 || strcmp(words[1], "-n") || setgid(0) || setuid(0)) return 1;
    execvp(words[2], words + 2);
    return 127;
}
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two bare hosts; the second has packages that it could install."""
    with hosts(2) as made:
        publish(made[1], "sky-greeting", "1.0")
        publish(made[1], "sky-farewell", "2:3.0-1")
        yield made


def publish(host: Host, name: str, version: str) -> None:
    """Put a package into a repository on a host's own disk, the only one that it knows."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\nDescription: a test's\n"
    host.write(f"/srv/{name}/DEBIAN/control", control)
    host.write(f"/srv/{name}/usr/bin/{name}", f"#!/bin/sh\necho {version}\n", mode=0o755)
    host.run(f"cd /srv && dpkg-deb --build {name} {name}.deb && rm -r {name}")
    data = host.read(f"/srv/{name}.deb")
    entry = f"{control}Filename: ./{name}.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    host.write(f"/srv/{name}.entry", entry)
    host.run("cat /srv/*.entry >/srv/Packages; rm -f /etc/apt/sources.list.d/*")
    host.write("/etc/apt/sources.list", "deb [trusted=yes] file:/srv ./\n")


def look(names: list[str], *packages: str, world: World, offline: bool = False) -> list[str]:
    """What the phase tells that sees to packages."""
    told: list[str] = []
    with preparation(world, names, offline=offline, image=Image(apt=packages)) as mine:
        mine.look(told.append)
    return told


def refusal(names: list[str], *packages: str, world: World, offline: bool = False) -> str:
    with pytest.raises(BootstrapError) as caught:
        look(names, *packages, world=world, offline=offline)
    assert caught.value.phase == "system"
    return str(caught.value)


def has(host: Host, name: str) -> bool:
    return bool(host.run(f"command -v {name} || :"))


class TestOnHosts:
    pytestmark = on_hosts

    def test_what_is_there_costs_nothing(self, world: World, config: Path) -> None:
        assert look(["host0", "host1"], "openssh-server", "dpkg", world=world, offline=True) == []

    def test_without_root_it_is_told_what_to_type_before_anything_is_made(self, world: World, config: Path) -> None:
        text = refusal(["host0", "host1"], "sky-greeting", "openssh-server", world=world)
        assert "on node 0 (host0): it lacks Debian packages that the image asks for (sky-greeting)" in text
        assert "neither root there nor may use sudo without a password" in text
        assert "sudo apt-get install sky-greeting; the same on host1" in text
        assert "openssh-server" not in text
        assert world[0].run("ls ~/.cache/sky_jupyter", user="ada") == ""

    def test_offline_nothing_is_installed(self, world: World, config: Path) -> None:
        text = refusal(["host1"], "sky-greeting", world=world, offline=True)
        assert "offline (--offline) none are fetched" in text
        assert "sudo apt-get install sky-greeting" in text

    def test_another_version_than_the_one_there_is_missing(self, world: World, config: Path) -> None:
        assert "sudo apt-get install dpkg=0.1" in refusal(["host0"], "dpkg=0.1", world=world)
        version = world[0].run("dpkg-query -W -f='${Version}' dpkg")
        assert look(["host0"], f"dpkg={version}", world=world) == []

    def test_where_one_host_cannot_the_others_are_left_as_they_are(self, world: World, config: Path) -> None:
        give_sudo(world[1], config.parent)
        try:
            assert "on node 1 (host0)" in refusal(["host1", "host0"], "sky-greeting", world=world)
        finally:
            world[1].run("rm -f /usr/bin/sudo")
        assert not has(world[1], "sky-greeting")

    @pytest.mark.parametrize("user", ["root", "ada"])
    def test_root_and_who_may_be_root_install_with_live_lines(self, user: str, world: World, config: Path) -> None:
        host = world[1]
        world.ssh_config(config, user=user)
        if user == "ada":
            give_sudo(host, config.parent)
        try:
            told = look(["host1"], "sky-greeting", "sky-farewell=2:3.0-1", "dpkg", world=world)
            assert told[0] == "installing Debian packages: sky-farewell=2:3.0-1, sky-greeting"
            assert any(line.startswith("Setting up sky-greeting (1.0)") for line in told)
            assert not any("\r" in line for line in told)
            assert host.run("sky-greeting; sky-farewell", user="bob") == "1.0\n2:3.0-1\n"
            assert look(["host1"], "sky-greeting", world=world) == []
        finally:
            host.run("rm -f /usr/bin/sudo; dpkg --purge sky-greeting sky-farewell")

    def test_two_pools_at_once_install_one_after_the_other(self, world: World, config: Path) -> None:
        world.ssh_config(config, user="root")
        began, told = threading.Barrier(2), []

        def one(_: int) -> None:
            with preparation(world, ["host1"], offline=False, image=Image(apt=("sky-greeting",))) as mine:
                began.wait(60)
                mine.look(told.append)

        try:
            with ThreadPoolExecutor(2) as several:
                list(several.map(one, range(2)))
            assert has(world[1], "sky-greeting")
            assert len([line for line in told if line.startswith("installing")]) == 1, told
        finally:
            world[1].run("dpkg --purge sky-greeting")

    def test_a_package_that_nobody_has_is_told_with_apts_words(self, world: World, config: Path) -> None:
        world.ssh_config(config, user="root")
        text = refusal(["host1"], "no-such-package-of-anyone", world=world)
        assert "on node 0 (host1): exit status 100" in text
        assert "Unable to locate package no-such-package-of-anyone" in text

    def test_a_system_that_is_no_debian_is_told(self, world: World, config: Path) -> None:
        world[0].run("mv /usr/bin/apt-get /usr/bin/dpkg-query /srv")
        try:
            text = refusal(["host0"], "git", world=world)
        finally:
            world[0].run("mv /srv/apt-get /srv/dpkg-query /usr/bin")
        assert "the image asks for Debian packages (git), and there is no apt-get" in text


def give_sudo(host: Host, folder: Path) -> None:
    """Let every user of a host be root, by the stand-in."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler (Debian: gcc libc6-dev), for what stands in for sudo")
    command = ["cc", "-static", "-x", "c", "-", "-o", str(folder / "sudo")]
    subprocess.run(command, input=SUDO, text=True, check=True)
    host.write("/usr/bin/sudo", (folder / "sudo").read_bytes(), mode=0o4755)


class TestHere:
    """On the machine of local nodes."""

    @pytest.fixture
    def programs(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """A machine with one package, and with programs that install, which must not be called."""
        folder = tmp_path / "bin"
        folder.mkdir()
        query = '#!/bin/sh\nfor last; do :; done\n[ "$last" != git ] || echo installed 1:2.0\n'
        for name, text in {"dpkg-query": query, "apt-get": "", "sudo": ""}.items():
            (folder / name).write_text(text or f"#!/bin/sh\ntouch {tmp_path}/called\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return tmp_path

    def test_what_is_there_is_enough(self, programs: Path) -> None:
        apt.check_here(())
        apt.check_here(("git", "git=1:2.0"))

    def test_what_is_missing_is_named_and_never_installed(self, programs: Path) -> None:
        with pytest.raises(BootstrapError) as caught:
            apt.check_here(("ffmpeg", "git", "git=2.0"))
        assert "this machine lacks (ffmpeg, git=2.0); nothing is installed on it for local nodes" in str(caught.value)
        assert "do it yourself: sudo apt-get install ffmpeg git=2.0" in str(caught.value)
        assert not (programs / "called").exists()

    def test_a_machine_that_is_no_debian_is_told(self, programs: Path) -> None:
        (programs / "bin" / "apt-get").unlink()
        with pytest.raises(BootstrapError, match=r"local nodes run on this machine, which has no apt-get"):
            apt.check_here(("ffmpeg",))

    def test_a_local_pool_is_not_started_without_them(self) -> None:
        missing = "sky-no-such-package"
        with pytest.raises(BootstrapError, match=missing), sky.Compute(nodes=1, image=Image(apt=(missing,))):
            pass


@pytest.mark.parametrize("name", ["-o", "Git", "git; reboot", "git/../x", "git=", "git=1 2", ""])
def test_what_is_no_packages_name_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"is not NAME, NAME:ARCHITECTURE or NAME=VERSION|has an empty text in it"):
        Image(apt=(name,))
    assert Image(apt=("g++", "libc6:amd64", "git=1:2.39.5-0+deb12u2")).apt
