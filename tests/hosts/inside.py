"""The first process of a world: makes hosts there when asked, and takes all with it when it ends.

It runs in namespaces of its own (network, processes, mounts) and reads requests from its standard
input, one JSON object a line. When that closes, for its owner has ended in whatever way, it ends;
and since it is the first process there, the kernel then ends all others, and removes what they
mounted and every interface. Standard library only: nothing else need be importable.

    laptop (the tests' own network)  sky7 ──── up0  router (this)  br0 ──┬── eth0 of host0
                                   .253        .254               .126   └── eth0 of host1
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LINK, BRIDGE = "up0", "br0"
# The range for benchmarks between networks (RFC 2544): nobody's real machines are there.
NETWORKS = [f"198.{18 + number // 256}.{number % 256}" for number in range(512)]
PATIENCE = 60.0

_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 1 << 17, 1 << 26, 1 << 27, 1 << 29, 1 << 30
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2

_RULES = """
table ip world {
    set broken { type ifname; }
    set hidden { type ipv4_addr; }
    set lost { type ipv4_addr; }
    set down { type ipv4_addr; size 1024; flags dynamic; counter; }
    set up { type ipv4_addr; size 1024; flags dynamic; counter; }
    chain forward {
        type filter hook forward priority 0; policy accept;
        iifname @broken drop
        oifname @broken drop
        ip daddr @hidden drop
        ip saddr @hidden drop
        ip daddr @lost drop
        ip saddr @lost drop
        ROUTER
        iifname "up0" update @down { ip daddr }
        oifname "up0" update @up { ip saddr }
    }
}
"""
# The laptop knows public addresses only, .129 for .1 and so on; the hosts do not.
_NAT = """
table ip nat {
    chain prerouting {
        type nat hook prerouting priority -100; policy accept;
        iifname "up0" dnat to ip daddr map { PUBLIC }
    }
    chain forward {
        type filter hook forward priority -1; policy accept;
        iifname "up0" ct direction original ct status & dnat == 0 drop
    }
}
"""
# The laptop is behind a home router: it calls, and cannot be called.
_HOME_ROUTER = f'iifname "{BRIDGE}" oifname != "{BRIDGE}" tcp flags & (syn | ack) == syn drop'
_PAIRS = """
table bridge world {
    set apart { type ipv4_addr . ipv4_addr; }
    chain forward { type filter hook forward priority 0; policy accept; ip saddr . ip daddr @apart drop; }
}
"""
# As the first process of a host it collects whatever is orphaned there, and ends all when told that power fails.
_INIT = "#!/bin/sh\ntrap 'exit 0' PWR\n/usr/sbin/sshd\nwhile :; do sleep 86400 & wait; done\n"
# There is no init system that would do it.
_SHUTDOWN = "#!/bin/sh\nkill -PWR 1\nsleep 60\n"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """One function of the C library, as an exception where it fails."""
    encoded = [part.encode() if isinstance(part, str) else part for part in arguments]
    if getattr(_libc, name)(*encoded) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments}: {os.strerror(error)}")


def mount(source: str, target: Path, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    _call("mount", source, str(target), kind, ctypes.c_ulong(flags), data)


def tool(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}\n{text}")
    return done.stdout


def ip(*lines: str, within: tuple[str, ...] = ()) -> None:
    tool([*within, "ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def claim_network(laptop: int) -> tuple[str, str]:
    """A network that no other world has: the interface's name on the laptop's side is the claim."""
    begin = time.monotonic_ns() // 1000
    for tried in range(len(NETWORKS)):
        number = (begin + tried) % len(NETWORKS)
        peer = f"sky{number}"
        command = ["ip", "link", "add", LINK, "type", "veth", "peer", "name", peer, "netns", f"/proc/1/fd/{laptop}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return NETWORKS[number], peer
        if "exists" not in done.stderr:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    raise OSError("512 worlds of hosts are there already")


class Machine:
    """One host, running or not; its disk is a folder of the world's own memory."""

    def __init__(self, index: int, asked: dict[str, Any], folder: Path) -> None:
        self.index, self.asked, self.folder = index, asked, folder
        self.name, self.address, self.port = asked["name"], asked["address"], asked["port"]
        self.wire = f"p{index}"
        self.pid = 0
        self.stopped: set[int] = set()

    def make_disk(self) -> None:
        """What differs from the image; written before its first start only."""
        for part in ("upper", "work", "root", "home"):
            (self.folder / part).mkdir(parents=True)
        if self.owns_home:
            self._make_home_disk()
        for path, (text, mode) in self.asked["files"].items():
            self.write(path, text, mode)
        for path, source in self.asked["copies"].items():
            self.write(path, Path(source).read_bytes(), 0o755)
        self.write("/usr/sbin/init", _INIT, 0o755)
        for name in ("shutdown", "poweroff"):
            self.write(f"/usr/sbin/{name}", _SHUTDOWN, 0o755)
        keys = self.asked["authorized"]
        if self.owns_home:
            self._make_homes(keys)
        self.write("/root/.ssh/authorized_keys", keys, 0o600)
        for place in ("root", "root/.ssh"):
            (self.folder / "upper" / place).chmod(0o700)

    @property
    def owns_home(self) -> bool:
        """Whether its /home is not another host's."""
        return self.asked["home_of"] in (None, self.index)

    def _make_home_disk(self) -> None:
        mount("home", self.folder / "home", "tmpfs", _NOSUID | _NODEV, "mode=755")
        for path in (self.homes, self.homes.with_name("work")) if self.asked["home"] else ():
            path.mkdir()

    def _make_homes(self, keys: str) -> None:
        """Give each user a home; one that others share is mounted here, once for all."""
        for uid, user in enumerate(self.asked["users"], start=1000):
            home = self.homes / user
            shutil.copytree(Path(self.asked["image"]) / "etc" / "skel", home)
            (home / ".ssh").mkdir()
            (home / ".ssh" / "authorized_keys").write_text(keys)
            for path in (home, *home.rglob("*")):
                os.chown(path, uid, uid)
                path.chmod(0o700 if path.is_dir() else 0o600)
        if self.asked["home_of"] is not None:
            shared = self.folder / "shared"
            shared.mkdir()
            self._mount_home(shared)

    @property
    def homes(self) -> Path:
        """What its /home holds, or how that differs from the one that it began with."""
        return self.folder / "home" / "upper" if self.asked["home"] else self.folder / "home"

    def write(self, path: str, content: str | bytes, mode: int) -> None:
        place = self.folder / "upper" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode(errors="surrogateescape") if isinstance(content, str) else content)
        place.chmod(mode)

    def start(self) -> tuple[int, int, int]:
        """Fork what becomes its first process; it waits for its interface. Its pid and both pipes' ends."""
        come_read, come_write = os.pipe()
        go_read, go_write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _call("unshare", _NEWNET | _NEWNS | _NEWUTS | _NEWIPC)
                os.write(come_write, b"n")
                os.close(go_write)  # an owner that ends here is seen
                if os.read(go_read, 1):
                    self._begin(come_write)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(come_write, f"!{error}".encode())
            os._exit(1)
        os.close(come_write)
        os.close(go_read)
        return child, come_read, go_write

    def _begin(self, tell: int) -> None:
        gateway = self.address.rpartition(".")[0] + ".126"
        ip(
            "link set lo up",
            f"addr add {self.address}/25 dev eth0",
            "link set eth0 up",
            f"route add default via {gateway}",
        )
        _call("unshare", _NEWPID)  # not before: whatever is started next is its first process
        child = os.fork()
        if child:
            os.write(tell, f"p{child}".encode())
            os._exit(0)
        self._mount_all()
        socket.sethostname(self.name)
        os.chdir(self.folder / "root")
        _call("pivot_root", ".", ".")
        _call("umount2", ".", _DETACH)
        os.chdir("/")
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.closerange(3, 256)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        os.execve("/usr/sbin/init", ["init"], {"PATH": _PATH, "HOME": "/", "TERM": "linux"})

    def _mount_all(self) -> None:
        """Its root file system, with what a kernel and an init would have mounted there."""
        mount("none", Path("/"), None, _REC | _PRIVATE)
        root = self.folder / "root"
        self._mount_over(self.asked["image"], self.folder / "upper", root)
        mount("proc", root / "proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        trigger = root / "proc" / "sysrq-trigger"
        if trigger.exists():  # what is written there is meant for the kernel of all
            mount("/dev/null", trigger, None, BIND)
        mount("sysfs", root / "sys", "sysfs", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
        device = root / "dev"
        mount("dev", device, "tmpfs", _NOSUID, "mode=755")
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            (device / name).touch()
            mount(f"/dev/{name}", device / name, None, BIND)
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            (device / name).symlink_to(f"/proc/self/{target}")
        for name in ("pts", "shm"):
            (device / name).mkdir()
        mount("devpts", device / "pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
        (device / "ptmx").symlink_to("pts/ptmx")
        mount("shm", device / "shm", "tmpfs", _NOSUID | _NODEV, "mode=1777")
        mount("run", root / "run", "tmpfs", _NOSUID | _NODEV, "mode=755")
        (root / "run" / "sshd").mkdir(mode=0o755)
        mount("tmp", root / "tmp", "tmpfs", _NOSUID | _NODEV, "mode=1777")
        if self.asked["home_of"] is not None:
            mount(str(self.folder.with_name(f"host{self.asked['home_of']}") / "shared"), root / "home", None, BIND)
        else:
            self._mount_home(root / "home")
        if self.asked["freezer"]:
            mount("cgroup", root / "sys" / "fs" / "cgroup", "tmpfs", _NOSUID | _NODEV, "mode=755")
            (root / "sys" / "fs" / "cgroup" / "freezer").mkdir()
            mount("freezer", root / "sys" / "fs" / "cgroup" / "freezer", "cgroup", 0, "freezer")

    def _mount_home(self, target: Path) -> None:
        if self.asked["home"]:
            self._mount_over(self.asked["home"], self.homes, target, _NOSUID | _NODEV)
        else:
            mount(str(self.folder / "home"), target, None, BIND)

    @staticmethod
    def _mount_over(image: str, upper: Path, target: Path, flags: int = 0) -> None:
        layers = f"lowerdir={image},upperdir={upper},workdir={upper.with_name('work')}"
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            layers += ",userxattr"  # the other attributes are for real root
        mount("overlay", target, "overlay", flags, layers)

    def answers(self) -> bool:
        """Whether its sshd can be connected to."""
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.address, self.port)) == 0

    def processes(self) -> set[int]:
        """All of its processes, as this namespace numbers them."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = set()
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == own:
                    found.add(int(entry))
        return found


class World:
    """The router, and the hosts behind it. Each request calls the method of its name."""

    def __init__(self, laptop: int, folder: Path, leave: Path, home_router: bool, nat: bool) -> None:
        self.folder, self.leave = folder, leave
        self.machines: dict[int, Machine] = {}
        self.relay: subprocess.Popen[bytes] | None = None
        self.paired = False
        mount("hosts", folder, "tmpfs", _NOSUID | _NODEV, "mode=755")
        for path, value in {
            "ipv6/conf/default/disable_ipv6": 1,  # it would talk of itself on the wire
            "ipv4/ip_forward": 1,
            "bridge/bridge-nf-call-iptables": 0,  # what goes over the bridge alone does not pass the router
            "ipv4/conf/all/rp_filter": 0,
            "ipv4/conf/default/rp_filter": 0,
        }.items():
            with contextlib.suppress(FileNotFoundError):
                Path("/proc/sys/net", path).write_text(str(value))
        self.network, interface = claim_network(laptop)
        ip(
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"addr add {self.network}.126/25 dev {BRIDGE}",
            f"addr add {self.network}.254/30 dev {LINK}",
            # What leaves by these two is as long as on a wire, so that it is counted exactly.
            f"link set {BRIDGE} gso_max_segs 1 up",
            f"link set {LINK} gso_max_segs 1 up",
        )
        ip(
            f"link set {interface} addrgenmode none",
            f"addr add {self.network}.253/30 dev {interface}",
            f"link set {interface} up",
            f"route add {self.network}.0/24 via {self.network}.254",
            within=("nsenter", f"--net=/proc/1/fd/{laptop}"),
        )
        tool(["nft", "-f", "-"], _RULES.replace("ROUTER", _HOME_ROUTER if home_router else ""))
        if nat:
            known = ", ".join(f"{self.network}.{host + 128} : {self.network}.{host}" for host in range(1, 100))
            self.nft(_NAT.replace("PUBLIC", known))

    def boot(self, hosts: dict[str, dict[str, Any]]) -> dict[str, int]:
        """Start hosts, new ones or ones that were powered off; the pids of their first processes."""
        started = {}
        for key, asked in hosts.items():
            index = int(key)
            if index not in self.machines:
                self.machines[index] = Machine(index, asked, self.folder / f"host{index}")
                self.machines[index].make_disk()
            started[index] = self.machines[index].start()
        try:
            lines = []
            for index, (child, come, _) in started.items():
                self._heard(come, "n", index)
                wire = self.machines[index].wire
                # Its address on the bridge is the same after each boot, as a network card's is.
                card = f"address 02:73:6b:79:00:{index + 1:02x}"
                lines += [f"link add {wire} type veth peer name eth0 {card} netns {child}"]
                lines += [f"link set {wire} master {BRIDGE} up"]
            ip(*lines)
            for _, _, go in started.values():
                os.write(go, b"g")
            for index, (child, come, _) in started.items():
                self.machines[index].pid = int(self._heard(come, "p", index))
                os.waitpid(child, 0)
        finally:
            for _, come, go in started.values():
                os.close(come)
                os.close(go)
        self.wait_for(list(started))
        return {str(index): self.machines[index].pid for index in started}

    @staticmethod
    def _heard(pipe: int, kind: str, index: int) -> str:
        text = os.read(pipe, 4096).decode()
        if not text.startswith(kind):
            raise OSError(f"host {index} could not be made: {text[1:] or 'it ended'}")
        return text[1:]

    def wait_for(self, indices: list[int]) -> None:
        """Wait until the sshd of each answers."""
        end = time.monotonic() + PATIENCE
        for machine in map(self.machines.__getitem__, indices):
            while not machine.answers():
                if not os.path.exists(f"/proc/{machine.pid}") or time.monotonic() > end:
                    raise OSError(f"{machine.name} does not answer at port {machine.port}")
                time.sleep(0.005)

    def kill(self, index: int) -> None:
        """Its interface goes before its processes do: nobody is told that connections end."""
        machine = self.machines[index]
        with contextlib.suppress(OSError):  # it has shut itself down, and its interface went with it
            ip(f"link del {machine.wire}")
        os.kill(machine.pid, signal.SIGKILL)
        os.waitpid(machine.pid, 0)
        machine.pid, machine.stopped = 0, set()

    def pause(self, index: int) -> None:
        machine = self.machines[index]
        ip(f"link set {machine.wire} down")
        while new := {pid for pid in machine.processes() - machine.stopped if not self._is_stopped(pid)}:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            machine.stopped |= new

    @staticmethod
    def _is_stopped(pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
        return True

    def resume(self, index: int) -> None:
        machine = self.machines[index]
        for pid in sorted(machine.stopped, reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        machine.stopped = set()
        ip(f"link set {machine.wire} up")

    def resize_home(self, index: int, bytes: int) -> None:
        mount("none", self.machines[index].folder / "home", None, _REMOUNT | _NOSUID | _NODEV, f"size={bytes}")

    def forbid_programs(self, index: int, path: str) -> None:
        """Remount a file system of a host so that nothing on it can be executed."""
        child = os.fork()
        if child:
            if os.waitpid(child, 0)[1]:
                raise OSError(f"{path} of host {index} is no mount that can be changed")
            return
        status = 1
        with contextlib.suppress(BaseException):
            _call("setns", os.open(f"/proc/{self.machines[index].pid}/ns/mnt", os.O_RDONLY), _NEWNS)
            mount("none", Path(path), None, _REMOUNT | BIND | _NOSUID | _NODEV | _NOEXEC)
            status = 0
        os._exit(status)

    def nft(self, *lines: str) -> None:
        tool(["nft", "-f", "-"], "".join(f"{line}\n" for line in lines))

    def hide(self, addresses: list[str]) -> None:
        self.nft(f"add element ip world hidden {{ {', '.join(addresses)} }}")

    def cut(self, addresses: list[str]) -> None:
        """Drop what goes between the laptop and these hosts, or all of them where none is named."""
        if addresses:
            self.nft(f"add element ip world lost {{ {', '.join(addresses)} }}")
        else:
            self.nft(f'add element ip world broken {{ "{LINK}" }}')

    def cut_between(self, pairs: list[tuple[str, str]]) -> None:
        self.paired = True
        self.nft(_PAIRS, *(f"add element bridge world apart {{ {a} . {b}, {b} . {a} }}" for a, b in pairs))

    def mend(self) -> None:
        self.nft("flush set ip world broken", "flush set ip world lost")
        if self.paired:
            self.nft("delete table bridge world")
            self.paired = False

    def counted(self) -> dict[str, dict[str, int]]:
        """Bytes between the laptop and each host, each way."""
        found: dict[str, dict[str, int]] = {}
        for way in ("down", "up"):
            for part in json.loads(tool(["nft", "-j", "list", "set", "ip", "world", way]))["nftables"]:
                for element in part.get("set", {}).get("elem", []):
                    found.setdefault(element["elem"]["val"], {})[way] = element["elem"]["counter"]["bytes"]
        return found

    def link(self, rate: str, delay: float, loss: float) -> None:
        """How the laptop's link to all hosts is from now on."""
        for device in (BRIDGE, LINK):
            subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], capture_output=True)
            if rate:
                shape = ["tbf", "rate", rate, "burst", "32kb", "latency", "100ms"]
                tool(["tc", "qdisc", "add", "dev", device, "root", *shape])
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
            self.relay = None
            ip(f"rule del iif {LINK} lookup 100", f"rule del iif {BRIDGE} lookup 101")
        if delay or loss:
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("relay.py")), str(delay), str(loss)]
            self.relay = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert self.relay.stdout is not None
            if not self.relay.stdout.readline():
                raise OSError("the relay for delay and loss did not begin; what it said is above")
            ip(
                "link set far0 up",
                "link set far1 up",
                "route add default dev far0 table 100",
                "route add default dev far1 table 101",
                f"rule add iif {LINK} lookup 100",
                f"rule add iif {BRIDGE} lookup 101",
            )

    def end(self) -> None:
        self._remove_groups()
        shutil.rmtree(self.leave, ignore_errors=True)

    def _remove_groups(self) -> None:
        """Remove the control groups that Slurm made: they are the kernel's, and outlive all that is here."""
        chosen = [machine for machine in self.machines.values() if machine.asked["freezer"]]
        if not chosen:
            return
        place = self.folder / "freezer"
        place.mkdir()
        mount("freezer", place, "cgroup", 0, "freezer")
        for machine in chosen:
            if machine.pid:
                self.kill(machine.index)
            # Deepest first: one that has others in it stays.
            for folder, _, _ in os.walk(place / f"slurm_{machine.name}", topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def main(laptop: str, folder: str, leave: str, home_router: str, nat: str) -> None:
    world: World | None = None
    answer: dict[str, Any]
    try:
        world = World(int(laptop), Path(folder), Path(leave), home_router == "1", nat == "1")
        answer = {"result": world.network}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    try:
        for line in sys.stdin if world else ():
            request = json.loads(line)
            try:
                answer = {"result": getattr(world, request["do"])(*request["with"])}
            except Exception as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        if world:
            world.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
