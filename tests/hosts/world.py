"""Machines to test on: bare Debian hosts with sshd, made of namespaces, on a network that can be spoilt.

    with hosts(2, python=True) as world:
        subprocess.run(["ssh", "-F", world.ssh_config(path), "host0", "hostname"])
        world.link(rate="20mbit")
        world.cut()

Each host has its own root file system, processes, name (which it maps to 127.0.1.1, as Debian does),
address, sshd, host key and two users without root. They reach each other on a bridge, and nothing
else. The process that calls `hosts` is the laptop: it reaches them by their addresses, through a
link that is counted and can be slowed down or cut; they cannot call it, as behind a home router.
When it ends, however it ends, everything is gone. Needs root, or `rootless`; see `missing`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.hosts import images, warm
from tests.hosts.faces import Face, Sudo
from tests.hosts.inside import BRIDGE, LINK

__all__ = ["Host", "HostsError", "Kind", "World", "hosts", "missing", "skip_unless_hosts_run", "skip_without_hosts"]

# What has to be there, and the Debian package that brings it.
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "ssh": "openssh-client", "nsenter": "util-linux"}
PROGRAMS |= {"debootstrap": "debootstrap"}
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM": "dumb"}
_INSIDE = Path(__file__).with_name("inside.py")
_TUN = "/dev/net/tun"
_KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"


class HostsError(Exception):
    """A host or the network between them could not be made or changed."""


@dataclass(frozen=True)
class Kind:
    """What one host is like.

    Parameters
    ----------
    python : bool
        Whether it has Debian's python3.
    release : str
        Debian's code name, such as ``"bullseye"`` for Python 3.9 and glibc 2.31; this machine's unless given.
    port : int
        Where its sshd listens; any other one is closed.
    login : str
        What its sshd accepts: ``"key"`` or ``"password"`` (`images.PASSWORD`).
    sshd : tuple of str
        More lines for its sshd's configuration.
    machine : str
        What it says its architecture is, ``"aarch64"``; its own unless given.
    clock : int or None
        By how many seconds its clock is ahead; a number, 0 too, makes `Host.set_clock` possible.
    warm : bool
        Whether a plain pool has been there, and left its environment to the first user; see `warm`.
    user : str
        The first user's name, with the same home; that of the image unless given.
    keys : str
        Lines of authorized_keys, instead of the world's own key.
    host_key : tuple of str
        Its private and its public one; drawn unless given.
    sudo : bool
        Whether its users may do everything as root without a password.
    name : str
        What it is called; ``host0`` and so on unless given.
    home_of : int or None
        The index of the host whose /home it has too, as from a file server: that one's own index for that one.
    slurm : bool
        Whether Slurm is installed there, and may keep control groups; see tests/slurm/cluster.py.
    """

    python: bool = False
    release: str = ""
    port: int = 22
    login: str = "key"
    sshd: tuple[str, ...] = ()
    machine: str = ""
    clock: int | None = None
    warm: bool = False
    user: str = ""
    keys: str = ""
    host_key: tuple[str, str] | tuple[()] = ()
    sudo: bool = False
    name: str = ""
    home_of: int | None = None
    slurm: bool = False


class Host:
    """One host of a world.

    Attributes
    ----------
    address : str
        Where the laptop reaches it.
    private : str
        Its own address, by which other hosts reach it: the same, unless the world was made with ``nat=True``.
    key, user, password
        What it lets in, and as whom: `users` are all that have no root; root has the same key.
    host_key : str
        The public one.
    pid : int
        Its first process, as this machine numbers it; 0 while it is powered off.
    """

    def __init__(self, world: World, index: int, kind: Kind, network: str) -> None:
        self._world, self.kind, self.index = world, kind, index
        self.name = kind.name or f"host{index}"
        self.private = f"{network}.{index + 1}"
        self.address = f"{network}.{index + 129}" if world.nat else self.private
        self.port = kind.port
        self.user = kind.user or images.USERS[0]
        self.users = (self.user, *images.USERS[1:])
        self.password = images.PASSWORD
        self.key = world.key
        self._private, self.host_key = kind.host_key or _keys()
        self.pid = 0

    @property
    def known_hosts(self) -> str:
        """The line that a known_hosts file has for it."""
        places = dict.fromkeys([self.address, self.private])
        names = ",".join(place if self.port == 22 else f"[{place}]:{self.port}" for place in places)
        return f"{names} {self.host_key}"

    def run(self, command: str | Sequence[str], *, user: str = "root", check: bool = True) -> str:
        """What a command on it prints, run beside sshd; a string is for the shell."""
        return self._run(command, user, check=check).decode()

    def read(self, path: str) -> bytes:
        """A file's content."""
        return self._run(["cat", path], "root")

    def write(self, path: str, content: bytes | str, *, user: str = "root", mode: int = 0o644) -> None:
        """Put a file there, with the folders above it."""
        data = content.encode() if isinstance(content, str) else content
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self._run(["sh", "-c", script, "sh", path, f"{mode:o}"], user, data)

    def processes(self, user: str | None = None) -> list[tuple[int, str, str]]:
        """Pid there, user and command line of all of its processes but its init's, or of one user's."""
        own, names = os.readlink(f"/proc/{self.pid}/ns/pid"), {0: "root", **dict(enumerate(self.users, start=1000))}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or os.readlink(entry / "ns" / "pid") != own:
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                number = int(_status(int(entry.name), "NSpid").split()[-1])
                owner = int(_status(int(entry.name), "Uid").split()[1])
                if number != 1 and command != "sleep 86400" and user in (None, names.get(owner)):
                    found.append((number, names.get(owner, str(owner)), command))
        return sorted(found)

    def files(self) -> set[str]:
        """Paths of all that is on its disks, in /tmp, /run and /dev."""
        places = ["/", "/home", "/tmp", "/run", "/dev", "/dev/shm"]
        return set(self.run(["find", *places, "-xdev", "-print0"]).rstrip("\0").split("\0"))

    def ports(self) -> set[int]:
        """TCP ports that are listened at."""
        lines = self.run("cat /proc/net/tcp /proc/net/tcp6").splitlines()
        rows = [line.split() for line in lines if ":" in line.split()[0]]
        return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}

    def kill(self) -> None:
        """Power it off: it is gone, and nobody is told."""
        if not self.pid:
            raise HostsError(f"{self.name} is powered off already")
        self._world._ask("kill", self.index)
        self.pid = 0

    def boot(self) -> None:
        """Power it on again: its disk is as it was, /tmp and /run are empty."""
        if self.pid:
            raise HostsError(f"{self.name} has power already")
        self._world._boot([self])

    def pause(self) -> None:
        """It stands still and does not answer, as a machine that is suspended."""
        self._world._ask("pause", self.index)

    def resume(self) -> None:
        """It goes on where it was paused."""
        self._world._ask("resume", self.index)

    def fill_home(self, left: int = 0) -> None:
        """Leave so many bytes free in /home."""
        size, free, block = map(int, self.run(["stat", "-f", "-c", "%b %f %S", "/home"]).split())
        used = (size - free) * block
        self._world._ask("resize_home", self.index, max(used + left, block))

    def empty_home(self) -> None:
        """Let /home grow again."""
        self._world._ask("resize_home", self.index, 1 << 40)

    def forbid_programs(self, path: str = "/tmp") -> None:
        """Nothing in this file system can be executed any more (noexec): /tmp, /home or /dev/shm."""
        self._world._ask("forbid_programs", self.index, path)

    def set_clock(self, ahead: int) -> None:
        """Have its clock be so many seconds ahead of the right time; it needs a `clock` of its kind."""
        if self.kind.clock is None:
            raise HostsError(f"{self.name} has the right clock for good: make it with clock=0")
        # In place: every process there looks at this very file.
        self._run(["dd", f"of={Face.CLOCK}", "conv=notrunc", "status=none"], "root", Face.clock(ahead))

    def change_key(self) -> None:
        """Give it another host key, as a reinstalled machine has."""
        self._private, self.host_key = _keys()
        self.write(_KEY_FILE, self._private, mode=0o600)
        self.restart_sshd()

    def restart_sshd(self) -> None:
        """Have a new sshd, which reads its configuration and keys; connections stay."""
        self.run("p=$(cat /run/sshd.pid); kill $p; while [ -d /proc/$p ]; do sleep 0.01; done; /usr/sbin/sshd")
        self._world._ask("wait_for", [self.index])

    def wire_bytes(self) -> int:
        """Bytes that crossed the laptop's link to or from it, IP headers included."""
        return sum(self._world._ask("counted").get(self.private, {}).values())

    def network_bytes(self) -> tuple[int, int]:
        """Bytes that its network card has received and sent, whoever they were exchanged with."""
        return _card(self.pid, "eth0")

    def _run(self, command: str | Sequence[str], user: str, data: bytes = b"", *, check: bool = True) -> bytes:
        if not self.pid:
            raise HostsError(f"{self.name} is powered off")
        uid = 0 if user == "root" else 1000 + self.users.index(user)
        home = "/root" if uid == 0 else f"/home/{images.USERS[uid - 1000]}"
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        enter += [f"--setuid={uid}", f"--setgid={uid}", "--", "sh", "-c", 'cd && exec "$@"', "sh"]
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        environment = {**_ENVIRONMENT, "HOME": home, "USER": user}
        done = subprocess.run([*enter, *words], input=data, capture_output=True, env=environment)
        if check and done.returncode:
            raise HostsError(f"{self.name}: {command}: status {done.returncode}: {done.stderr.decode()}")
        return done.stdout


class World:
    """Hosts and the network they are on; made by `hosts`. Indexing gives a host.

    Attributes
    ----------
    key, other_key : Path
        Private keys on the laptop: the hosts know the first, and not the second.
    address : str
        The laptop's own address on its link, which hosts reach where `open_laptop` was asked for.
    network : str
        What all addresses begin with.
    pid : int
        Its first process: all others of it are below.
    """

    def __init__(self, folder: Path, *, nat: bool = False) -> None:
        self.folder, self.nat = folder, nat
        self.key, self.public = self._client_key("id_ed25519")
        self.other_key, self.other_public = self._client_key("id_other")
        self.address = self.network = ""
        self.jump: Host | None = None
        self._hosts: list[Host] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.pid = 0

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def known_hosts(self) -> str:
        """What a known_hosts file that knows all of them says."""
        return "".join(f"{host.known_hosts}\n" for host in self)

    def ssh_config(
        self, path: Path | None = None, *, user: str = "", key: Path | None = None, known: bool = True
    ) -> Path:
        """Write a configuration for OpenSSH and paramiko that has the hosts by their names.

        Parameters
        ----------
        path : Path or None
            Where; known_hosts is put beside it. In the world's own folder unless given.
        user : str
            Who logs in; the first user without root unless given.
        key : Path or None
            What they log in with; `key` unless given.
        known : bool
            Whether known_hosts has their keys.
        """
        path = path or self.folder / "ssh_config"
        file = path.with_name("known_hosts")
        file.write_text(self.known_hosts if known else "")
        lines = []
        for host in self:
            behind = self.jump is not None and host is not self.jump
            lines += [f"Host {host.name}", f"  HostName {host.private if behind else host.address}"]
            lines += [f"  Port {host.port}"]
            lines += [f"  User {user or host.user}", f"  IdentityFile {key or self.key}", "  IdentitiesOnly yes"]
            lines += [f"  UserKnownHostsFile {file}", "  GlobalKnownHostsFile /dev/null", "  StrictHostKeyChecking yes"]
            lines += [f"  ProxyJump {self.jump.name}"] if self.jump and behind else []
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o600)
        return path

    def link(self, *, rate: str = "", delay: float = 0.0, loss: float = 0.0) -> None:
        """How the laptop's link to the hosts is from now on; without arguments, as fast as it can be.

        Parameters
        ----------
        rate : str
            Bits a second each way, such as ``"20mbit"``.
        delay : float
            Seconds that each packet takes longer, each way.
        loss : float
            Which part of all packets is lost, each way.

        Delay and loss go through a relay in Python, which carries some 25 MB/s; without them there is none.
        """
        if (delay or loss) and not os.access(_TUN, os.R_OK | os.W_OK):
            pytest.skip(f"delay and loss need leave to open {_TUN} (as root: chmod 666 {_TUN})")
        self._ask("link", rate, delay, loss)

    def cut(self, *hosts: Host) -> None:
        """Nothing passes between the laptop and these hosts, or any where none is given; nobody is told."""
        self._ask("cut", [host.private for host in hosts])

    def cut_between(self, *hosts: Host) -> None:
        """None of these hosts reaches another of them; of all hosts where none is given."""
        chosen = hosts or tuple(self)
        pairs = [(a.private, b.private) for a in chosen for b in chosen if a.index < b.index]
        self._ask("cut_between", pairs)

    def mend(self) -> None:
        """Undo all cuts."""
        self._ask("mend")

    def wire_bytes(self) -> tuple[int, int]:
        """Bytes that came down the laptop's link from the hosts, and that went up to them, all headers included."""
        return _card(self.pid, LINK)[1], _card(self.pid, BRIDGE)[1]

    def add(self, *kinds: Kind) -> list[Host]:
        """Boot more hosts; they get the next addresses."""
        if any(kind.warm for kind in kinds):
            warm.home()
        made = [Host(self, len(self._hosts) + number, kind, self.network) for number, kind in enumerate(kinds)]
        self._hosts += made
        self._boot(made)
        return made

    def close(self) -> None:
        """End all hosts and remove their network."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _client_key(self, name: str) -> tuple[Path, str]:
        path = self.folder / name
        private, public = _keys()
        path.touch(mode=0o600)
        path.write_text(private)
        path.with_name(f"{name}.pub").write_text(f"{public}\n")
        return path, public

    def _open(self, *, open_laptop: bool) -> None:
        place = images.cache() / "world"
        place.mkdir(exist_ok=True)
        laptop = os.open("/proc/self/ns/net", os.O_RDONLY)
        command = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-I", "-S", str(_INSIDE), str(laptop), str(place), str(self.folder)]
        try:
            self._process = subprocess.Popen(
                [*command, "0" if open_laptop else "1", "1" if self.nat else "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[laptop],
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C.UTF-8", "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            )
        finally:
            os.close(laptop)
        self.network = self._answer()
        self.address = f"{self.network}.253"
        self.pid = _inner(self._process.pid, 1)

    def _boot(self, chosen: Sequence[Host]) -> None:
        pids = self._ask("boot", {str(host.index): self._described(host) for host in chosen})
        for host in chosen:
            host.pid = _inner(self.pid, pids[str(host.index)])

    def _described(self, host: Host) -> dict[str, Any]:
        """A host as the world's first process makes it."""
        kind = host.kind
        keys, passwords = ("yes", "no") if kind.login == "key" else ("no", "yes")
        lines = [f"Port {host.port}", f"HostKey {_KEY_FILE}", f"PubkeyAuthentication {keys}"]
        lines += [f"PasswordAuthentication {passwords}", *kind.sshd]
        files: dict[str, tuple[str, int]] = {
            "/etc/hostname": (f"{host.name}\n", 0o644),
            "/etc/hosts": (f"127.0.0.1\tlocalhost\n127.0.1.1\t{host.name}\n", 0o644),
            "/etc/resolv.conf": ("", 0o644),  # nobody answers there
            "/etc/machine-id": (f"{os.urandom(16).hex()}\n", 0o444),
            "/etc/ssh/sshd_config.d/host.conf": ("\n".join(lines) + "\n", 0o644),
            _KEY_FILE: (host._private, 0o600),
            f"{_KEY_FILE}.pub": (f"{host.host_key}\n", 0o644),
        }
        image = images.image(release=kind.release, python=kind.python, slurm=kind.slurm)
        if kind.user:
            for path, mode in (("/etc/passwd", 0o644), ("/etc/group", 0o644), ("/etc/shadow", 0o640)):
                text = (image / path.lstrip("/")).read_text()
                files[path] = (text.replace(f"{images.USERS[0]}:", f"{kind.user}:", 1), mode)
        copies: dict[str, str] = {}
        if kind.sudo:
            copies[Sudo.PROGRAM] = str(Sudo.program(images.cache()))
            files["/usr/bin/kill"] = ('#!/bin/sh\nkill "$@"\n', 0o755)  # a program, for sudo
        if kind.machine or kind.clock is not None:
            copies[Face.LIBRARY] = str(Face.library(images.cache()))
            files["/etc/ld.so.preload"] = (f"{Face.LIBRARY}\n", 0o644)
        if kind.machine:
            files[Face.MACHINE] = (kind.machine, 0o644)
        if kind.clock is not None:
            files[Face.CLOCK] = (Face.clock(kind.clock).decode(errors="surrogateescape"), 0o644)
        return {
            "name": host.name,
            "address": host.private,
            "port": host.port,
            "image": str(image),
            "users": images.USERS,
            "home": str(warm.home()) if kind.warm else "",
            "home_of": kind.home_of,
            "freezer": kind.slurm,
            "authorized": kind.keys or f"{self.public}\n",
            "files": files,
            "copies": copies,
        }

    def _ask(self, do: str, *arguments: object) -> Any:
        """Have the world's first process do something."""
        with self._lock:
            if self._process is None:
                raise HostsError("these hosts are gone: their block has ended")
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise HostsError(f"the world of hosts has ended: status {self._process.wait()}; its reason is above")
        answer = json.loads(line)
        if "error" in answer:
            raise HostsError(answer["error"])
        return answer["result"]


def missing() -> str:
    """What has to be there before hosts can be made; empty where nothing is missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if os.geteuid():
        return "root: the machine's, or that of namespaces of one's own (python3 tests/hosts/rootless.py COMMAND)"
    packages = {package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None}
    if packages:
        return f"programs: apt-get install {' '.join(sorted(packages))}"
    return _no_namespaces()


def skip_without_hosts() -> None:
    """Skip the test where hosts cannot be made, and say what is missing."""
    if lacks := missing():
        pytest.skip(f"hosts need {lacks}")


def skip_unless_hosts_run(minor: str, release: str = "") -> None:
    """Skip the test where Debian's own Python is another, as hosts that fetch nothing have no choice."""
    skip_without_hosts()
    try:
        found = images.python_version(images.image(release=release, python=True))
    except Exception:
        return  # `hosts` says why
    if found != minor:
        pytest.skip(f"the hosts' Debian has Python {found}, this is {minor}, and offline they can get no other")


@cache
def _no_namespaces() -> str:
    command = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--mount-proc"]
    script = "ip link add try0 type veth peer name try1 && ip link add try2 type bridge && nft add table ip t"
    done = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    said = " ".join(done.stderr.split())
    return f"leave to make namespaces, veth pairs, bridges and nftables (in a container: --privileged): {said}"


@contextlib.contextmanager
def hosts(
    *kinds: int | Kind,
    jump: bool = False,
    nat: bool = False,
    open_laptop: bool = False,
    folder: Path | None = None,
    **options: Any,
) -> Iterator[World]:
    """Hosts that are there until the block ends; skips the test where they cannot be made.

    Parameters
    ----------
    kinds : int or Kind
        How many hosts, or what each is like: ``hosts(2)``, ``hosts(Kind(), Kind(python=True))``.
    jump : bool
        Whether the laptop reaches the first alone, and the others only through it.
    nat : bool
        Whether the laptop reaches each by an address that the host itself does not know, as in clouds.
    open_laptop : bool
        Whether hosts can call the laptop at `World.address`, which no home router allows.
    folder : Path or None
        Where keys and configuration lie on the laptop, removed at the end; a temporary one unless given.
    options
        Fields of `Kind`, for all of them: ``hosts(4, python=True)``.
    """
    skip_without_hosts()
    wanted = [kind for item in kinds for kind in ([Kind()] * item if isinstance(item, int) else [item])]
    wanted = [replace(kind, **options) for kind in wanted]
    for kind in set(wanted):
        try:
            images.image(release=kind.release, python=kind.python, slurm=kind.slurm)
        except Exception as error:
            # No mirror, most of all; what is wrong with hosts themselves shows where they are used.
            pytest.skip(f"hosts need a bare Debian, and debootstrap could not make one: {error}")
    if any(kind.warm for kind in wanted):
        warm.home()
    world = World(folder or Path(tempfile.mkdtemp(prefix="sky-hosts-")), nat=nat)
    try:
        world._open(open_laptop=open_laptop)
        world._hosts = [Host(world, index, kind, world.network) for index, kind in enumerate(wanted)]
        if jump:
            world.jump = world[0]
            world._ask("hide", [host.private for host in world if host is not world.jump])
        world._boot(world._hosts)
        yield world
    finally:
        world.close()


def _keys() -> tuple[str, str]:
    """A private key as OpenSSH writes it, and its public half."""
    key, kinds = Ed25519PrivateKey.generate(), serialization
    private = key.private_bytes(kinds.Encoding.PEM, kinds.PrivateFormat.OpenSSH, kinds.NoEncryption())
    return private.decode(), key.public_key().public_bytes(kinds.Encoding.OpenSSH, kinds.PublicFormat.OpenSSH).decode()


def _status(pid: int, field: str) -> str:
    """One line of a process's status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line
    raise HostsError(f"process {pid} has no {field}")


def _inner(parent: int, number: int) -> int:
    """The child of a process that has this number in a namespace below, as it is numbered here."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for child in map(int, children):
            with contextlib.suppress(OSError, HostsError):
                if str(number) in _status(child, "NSpid").split()[2:]:
                    return child
        time.sleep(0.01)
    raise HostsError(f"process {parent} has no child {number}")


def _card(pid: int, name: str) -> tuple[int, int]:
    """Bytes that a network card has received and sent, in a process's network."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        card, _, counts = line.partition(":")
        if card.strip() == name:
            return int(counts.split()[0]), int(counts.split()[8])
    raise HostsError(f"process {pid} has no network card {name}")
