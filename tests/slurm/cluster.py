"""Real clusters of Slurm to test on: on hosts of tests/hosts, or as processes of this machine.

    with on_hosts(3) as cluster:               # cluster.login is host 0, with slurmctld; /home is shared
        cluster.ada("sbatch --wrap 'srun hostname'")
        cluster.kill(cluster.nodes[1])         # a node loses its power
        cluster.start(cluster.nodes[1])        # and has it again

    with on_this_machine(2) as local:          # slurmctld and two slurmds, found by local.env
        local.run("srun", "-N2", "hostname")

Slurm, munge and their plugins are Debian's own. Each cluster has its own key, ports and files, and all of its
processes are in a namespace that ends with the process that made it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import string
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hosts.images import SLURM
from tests.hosts.world import Host, Kind, World, hosts
from tests.ports import free_port

PATIENCE = 60.0
# What docs/slurm.md says to stay of a pool that has ended, besides the folders that these are in.
STAYS = re.compile(r"/home/ada/(\.cache|\.cache/sky_jupyter(/.*)?|\.sky_jupyter|\.sky_jupyter/slurm(/\d+\.log)?)$")
CPUS, GPUS = 2, 2
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "unshare")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
# A real cluster waits longer in each of these; what a test waits for is none of them.
_COMMON = {
    "ClusterName": "sky",
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    "TaskPlugin": "task/none",
    "MpiDefault": "none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "SchedulerParameters": "sched_interval=1,batch_sched_delay=0,sched_min_interval=100000",
    "ReturnToService": "2",
    "MailProg": "/bin/true",
    "MinJobAge": "300",
    "KillWait": "5",
    "SlurmdTimeout": "10",
    "InactiveLimit": "0",
    "GresTypes": "gpu",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "JobRequeue": "1",
}
_PARTITIONS = (
    "PartitionName=debug Nodes=ALL Default=YES MaxTime=1:00:00 DefaultTime=10 State=UP PriorityTier=1 GraceTime=3",
    "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF",
)


class SlurmError(Exception):
    """A cluster could not be made, or did not do what was waited for."""


@dataclass
class Cluster:
    """A cluster on hosts; made by `on_hosts`.

    Attributes
    ----------
    world : World
        Its hosts, and the link from the laptop to them.
    login : Host
        Where users log in, and where slurmctld runs.
    nodes : list of Host
        Those that run jobs. Slurm calls them by their hosts' names.
    """

    world: World
    login: Host
    nodes: list[Host]
    conf: str
    key: bytes
    before: frozenset[str] = frozenset()

    def ada(self, command: str, *, check: bool = True) -> str:
        """What a command of the user ada says on the login host."""
        return self.login.run(command, user="ada", check=check).strip()

    def jobs(self) -> list[str]:
        """The ids of all jobs that have not ended."""
        return self.ada("squeue -h -o %i").split()

    def job(self, id: str) -> dict[str, str]:
        """The fields of a job, as ``scontrol show job`` has them."""
        said = self.ada(f"scontrol -o show job {id}", check=False)
        return {key: value for key, _, value in (part.partition("=") for part in said.split())}

    def state(self, id: str) -> str:
        """A job's state in one word; empty once Slurm has forgotten it."""
        return self.ada(f"squeue -h -t all -j {id} -o %T", check=False)

    def wait(self, what: str, holds: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait until something is so; what the daemons said is in the failure's message."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise SlurmError(f"never: {what}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """The last lines of all daemons, and what Slurm says of its nodes and jobs."""
        said = [self.login.run("sinfo -N; squeue -t all; tail -n 15 /var/log/slurmctld.log", check=False)]
        return "\n".join(said + [host.run("tail -n 5 /var/log/slurmd.log", check=False) for host in self.up()])

    def up(self) -> list[Host]:
        """The nodes that have power."""
        return [host for host in self.nodes if host.pid]

    def idle(self) -> int:
        """How many nodes have no job and answer."""
        return int(self.login.run("sinfo -h -p debug -t idle -o %D", check=False).strip() or 0)

    def kill(self, node: Host) -> None:
        """Power a node off; Slurm notices after SlurmdTimeout."""
        node.kill()

    def start(self, node: Host) -> None:
        """Give a node its power back, and wait until Slurm uses it."""
        before = self.idle()
        node.boot()
        self.begin(node)
        self.wait("the node is back", lambda: self.idle() > before)

    def begin(self, *chosen: Host) -> None:
        """Write what the daemons read, and start them."""
        names = "".join(f"{host.private} {host.name}\n" for host in self.world)
        for host in chosen:
            host.write("/etc/munge/munge.key", self.key, mode=0o600)
            host.write("/etc/slurm/slurm.conf", self.conf)
            host.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\n")
            host.write("/etc/slurm/gres.conf", f"Name=gpu File=/dev/nvidia[0-{GPUS - 1}]\n")
            # Debian's own line for its name comes last: it is what programs get that look up where they are.
            host.write("/etc/hosts", f"127.0.0.1 localhost\n{names}127.0.1.1 {host.name}\n")
            daemon = "slurmctld" if host is self.login else "slurmd"
            links = "; ".join(f"ln -sf null /dev/nvidia{number}" for number in range(GPUS))
            own = "mkdir -p /run/munge; chmod 755 /run/munge; chown -R munge: /run/munge /etc/munge"
            host.run(f"{links}; {own}; mkdir -p /var/spool/{daemon}; su -s /bin/sh munge -c munged && {daemon}")

    def forbid_dialling(self) -> None:
        """Let users of the login host reach no node but by Slurm's own commands."""
        nodes = ", ".join(host.private for host in self.nodes)
        rule = f"meta skuid >= 1000 ip daddr {{ {nodes} }} tcp dport != {{ 6817, 6818 }} ct state new reject"
        self._nft(f"table ip sky_tests {{\nchain out {{\ntype filter hook output priority 0\n{rule}\n}}\n}}\n")

    def allow_dialling(self) -> None:
        """Undo `forbid_dialling`."""
        self._nft("delete table ip sky_tests")

    def _nft(self, text: str) -> None:
        command = ["nsenter", f"--target={self.login.pid}", "--net", "nft", "-f", "-"]
        subprocess.run(command, input=text, text=True, check=True, env={**os.environ, "PATH": _PATH})

    def left(self, *, files: bool = True) -> list[str]:
        """What users have left: jobs, processes on any host that has power, and files outside of the caches.

        The connections of this process to the login host are not counted: they stay while it does.
        """
        found = [f"job {id}" for id in self.jobs()]
        for host in self.world:
            if host.pid:
                commands = [command for _, _, command in host.processes("ada")]
                found += [f"{host.name}: {one}" for one in commands if not one.startswith("sshd")]
                found += [f"{host.name}: {path}" for path in self._files(host)] if files else []
        return found

    def _files(self, host: Host) -> list[str]:
        """Files of ada's that were not there at the beginning, and that docs/slurm.md does not say to stay."""
        return sorted(path for path in _owned(host) - self.before if not STAYS.match(path))


@contextlib.contextmanager
def on_hosts(nodes: int = 2, *, shared_home: bool = True, warm: bool = True, more: str = "") -> Iterator[Cluster]:
    """A cluster that is there until the block ends; skips the test where it cannot be made.

    Parameters
    ----------
    nodes : int
        How many run jobs, each with two processors and two GPUs; there is one more for the login.
    shared_home : bool
        Whether all have the login host's /home.
    warm : bool
        Whether a plain pool has been in the users' homes; see tests/hosts/warm.py.
    more : str
        Lines for slurm.conf that replace those of the same name.
    """
    if not any(line.split()[:1] == ["freezer"] for line in Path("/proc/cgroups").read_text().splitlines()):
        pytest.skip("Slurm on hosts needs a kernel with cgroup v1's freezer")
    # Control groups go by the node's name, and are the whole machine's: clusters beside each other have other names.
    mark = "".join(secrets.choice(string.ascii_lowercase) for _ in range(6))
    names = [f"{mark}-login", *(f"{mark}-{number}" for number in range(nodes))]
    home_of = 0 if shared_home else None
    kinds = [Kind(python=True, slurm=True, warm=warm, home_of=home_of, name=name) for name in names]
    with hosts(*kinds) as world:
        login, *others = world
        lines = [f"NodeName={host.name} NodeAddr={host.private} {_resources()}" for host in others]
        settings = {
            "SlurmctldHost": f"{login.name}({login.private})",
            "SlurmUser": "root",
            "StateSaveLocation": "/var/spool/slurmctld",
            "SlurmdSpoolDir": "/var/spool/slurmd",
            "SlurmctldPidFile": "/run/slurmctld.pid",
            "SlurmdPidFile": "/run/slurmd.pid",
            "SlurmctldLogFile": "/var/log/slurmctld.log",
            "SlurmdLogFile": "/var/log/slurmd.log",
            "ProctrackType": "proctrack/cgroup",
        }
        cluster = Cluster(world, login, others, _conf(settings, lines, more), secrets.token_bytes(128))
        cluster.before = frozenset().union(*map(_owned, world))
        cluster.begin(*world)
        cluster.wait("all nodes are idle", lambda: cluster.idle() == nodes)
        yield cluster


@dataclass
class LocalCluster:
    """A cluster whose nodes are all this machine; made by `on_this_machine`.

    Attributes
    ----------
    env : dict
        What Slurm's commands need in their environment to find it.
    """

    folder: Path
    env: dict[str, str]

    def run(self, *command: str, check: bool = True) -> str:
        """What a command says."""
        done = subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True)
        if check and done.returncode:
            raise SlurmError(f"{' '.join(command)}: status {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """The ids of all jobs that have not ended."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def logs(self) -> str:
        """The last lines of what the daemons said."""
        said = [f"{path.name}:\n" + path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(said)


def missing() -> str:
    """What has to be there before slurmd can run on this machine; empty where nothing is missing."""
    if os.geteuid():
        return "root"
    if any(shutil.which(program, path=_PATH) is None for program in PROGRAMS):
        return f"programs: apt-get install --no-install-recommends {' '.join(SLURM)}"
    return ""


@contextlib.contextmanager
def on_this_machine(nodes: int = 2) -> Iterator[LocalCluster]:
    """A cluster of slurmds on this machine that is there until the block ends; skips the test where it cannot be."""
    if lacks := missing():
        pytest.skip(f"Slurm on this machine needs {lacks}")
    folder = Path(tempfile.mkdtemp(prefix="sky-slurm-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        folder.chmod(0o755)
        cluster = _described(folder, nodes)
        # The first process of a namespace: what is in it ends with it, and it ends with its standard input.
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", str(folder / "init")]
        with (folder / "init.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, "PATH": _PATH}
            )
        end = time.monotonic() + PATIENCE
        while cluster.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False) != str(nodes):
            if process.poll() is not None or time.monotonic() > end:
                raise SlurmError(f"the cluster does not begin\n{cluster.logs()}")
            time.sleep(0.05)
        yield cluster
    finally:
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def _described(folder: Path, nodes: int) -> LocalCluster:
    """Write the files of a cluster of this machine."""
    socket, host = folder / "munge", os.uname().nodename.partition(".")[0]
    names, place = [f"n{number}" for number in range(nodes)], f"NodeHostname={host} NodeAddr=127.0.0.1"
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_bytes(secrets.token_bytes(128))
    lines = [f"NodeName={name} {place} Port={free_port()} {_resources()}" for name in names]
    settings = {
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(free_port()),
        "SlurmUser": "root",
        "AuthInfo": f"socket={socket}",
        "StateSaveLocation": str(folder / "state"),
        "SlurmdSpoolDir": f"{folder}/spool.%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd.%n.log",
        # In the namespace nothing escapes; other ways of tracking would want control groups of the machine.
        "ProctrackType": "proctrack/linuxproc",
    }
    (folder / "slurm.conf").write_text(_conf(settings, lines, ""))
    gpus = [folder / f"gpu{number}" for number in range(GPUS)]
    for gpu in gpus:
        gpu.symlink_to("/dev/null")
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={gpu}\n" for gpu in gpus))
    munged = f"munged --foreground --force --key-file {folder}/key --socket {socket} --pid-file {folder}/munge.pid"
    munged += f" --log-file {folder}/munged.log --seed-file {folder}/munge.seed"
    slurmds = [f"mkdir {folder}/spool.{name}; slurmd -D -N {name} &" for name in names]
    begin = [f"export SLURM_CONF={folder}/slurm.conf", f"{munged} &", f"while ! [ -S {socket} ]; do sleep 0.01; done"]
    script = [*begin, f"mkdir {folder}/state", "slurmctld -D -c &", *slurmds, "read forever"]
    (folder / "init").write_text("\n".join(script) + "\n")
    return LocalCluster(folder, {"SLURM_CONF": str(folder / "slurm.conf")})


def _owned(host: Host) -> set[str]:
    """All files of ada's on a host."""
    places = ["/", "/home", "/tmp", "/run", "/dev", "/dev/shm"]
    return set(host.run(["find", *places, "-xdev", "-user", "ada", "-print"], check=False).splitlines())


def _resources() -> str:
    return f"CPUs={CPUS} RealMemory=4000 Gres=gpu:{GPUS} State=UNKNOWN"


def _conf(settings: dict[str, str], nodes: Sequence[str], more: str) -> str:
    """Slurm's configuration."""
    replaced = dict(line.split("=", 1) for line in more.splitlines())
    lines = [f"{key}={value}" for key, value in {**_COMMON, **settings, **replaced}.items()]
    return "\n".join([*lines, *nodes, *_PARTITIONS, ""])
