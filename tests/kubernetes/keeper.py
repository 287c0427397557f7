"""Starts and keeps the programs of a cluster, in namespaces of its own, and takes all with it when it ends.

It is run by `warden`, and is the second process of its namespaces; the first one collects what is orphaned. Requests
come over a Unix socket, one JSON object a line. The network is that of the tests' hosts: a claimed /24, with the
cluster behind a link. Each of the addresses .1 to .250 is a door of its own to the API server, which a test can cut.

    laptop (the tests' own network)  sky7 ──── up0  API server, kubelet, …  cni0 ──┬── eth0 of a pod
                                   .253        .254, .1, .2, …        10.244.0.1   └── eth0 of a pod
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.hosts.inside import BIND, LINK, claim_network, ip, mount, tool
from tests.kubernetes import admission, authority, containers, definitions
from tests.kubernetes.rest import Rest, RestError

PODS, GATEWAY, SERVICES, SERVICE = "10.244.0.0/16", "10.244.0.1", "10.96.0.0/24", "10.96.0.1"
NODE = "node0"
PORT = 443
PATIENCE = 120.0
ROOT = Path(__file__).resolve().parents[2]
# 1.20's own controller of Jobs knows no indexes; the others have nothing to do here.
CONTROLLERS = (
    "*,-bootstrapsigner,-tokencleaner,-nodeipam,-cloud-node-lifecycle,-route,-service,-persistentvolume-binder,"
    "-attachdetach,-job,-cronjob,-ttl-after-finished,-horizontalpodautoscaling,-disruption"
)
_RULES = """
table ip cluster {
    set lost { type ipv4_addr; }
    chain input { type filter hook input priority 0; policy accept; ip daddr @lost drop; }
    chain output { type filter hook output priority 0; policy accept; ip saddr @lost drop; }
    chain forward { type filter hook forward priority 0; policy accept; iifname "up0" drop; oifname "up0" drop; }
}
"""
_CONTAINERD = """
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  max_container_log_line_size = -1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
"""


class KeeperError(Exception):
    """A program of the cluster did not begin, or has ended; the message says which, and its last words."""


class Keeper:
    """The programs; `folder` is the run's own, `programs` where `binaries` has put them."""

    def __init__(self, folder: Path, programs: Path, laptop: int) -> None:
        self.folder, self.programs = folder, programs
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.doors = 0
        self.lock = threading.Lock()
        (folder / "logs").mkdir()
        self.rest: Rest
        self._network(laptop)
        doors = [f"{self.network}.{number}" for number in range(1, 255)]
        authority.write(folder, ["127.0.0.1", SERVICE, GATEWAY, *doors], NODE)
        self.settings = json.loads((folder / "settings.json").read_text())

    def _network(self, laptop: int) -> None:
        mount("run", Path("/run"), "tmpfs", 0, "mode=755")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.network, interface = claim_network(laptop)
        ip(
            "link set lo up",
            f"addr add {self.network}.254/30 dev {LINK}",
            f"addr add {SERVICE}/32 dev lo",
            f"link set {LINK} up",
            f"route add default via {self.network}.253",  # the API server wants one; nothing answers there
        )
        ip(
            f"link set {interface} addrgenmode none",
            f"addr add {self.network}.253/30 dev {interface}",
            f"link set {interface} up",
            f"route add {self.network}.0/24 via {self.network}.254",
            within=("nsenter", f"--net=/proc/1/fd/{laptop}"),
        )
        tool(["nft", "-f", "-"], _RULES)

    # Programs.

    def start(self, name: str, command: list[str], *, needs_input: bool = False) -> None:
        """Start a program, whose output goes to its log."""
        self.commands[name] = command
        environment = {
            "PATH": f"{self.programs / 'bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(self.programs / "lib"),
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if needs_input else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise where a program has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise KeeperError(f"{name} has ended with status {process.returncode}:\n{self.last_words(name)}")

    def last_words(self, name: str) -> str:
        lines = (self.folder / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-8:])

    def begin(self) -> None:
        """Start all of it, and wait until pods can be made."""
        begun = time.monotonic()
        self._containerd()
        self._etcd()
        self.start("api", self._api(PORT))
        self._wait("the API server", lambda: self.ready(PORT))
        self._told("API server", begun)
        config = str(self.folder / "admin.conf")
        self._server("kube-scheduler", ["--kubeconfig", config, "--leader-elect=false"])
        self._kubelet()
        token = self.settings["admin"]
        self.rest = Rest(f"https://127.0.0.1:{PORT}", self.folder / "pki" / "ca.crt", token)
        self._objects()
        self._told("kinds", begun)
        # It looks for new kinds twice a minute only, and would not collect what these leave before that.
        self._server("kube-controller-manager", self._manager(config))
        address = f"https://127.0.0.1:{PORT}"
        helper = [sys.executable, "-m", "tests.kubernetes.controllers", address, str(self.folder), token]
        self.start("controllers", helper, needs_input=True)
        self._wait("the cluster's own controllers", self._helpers_ready)
        self._wait("the node", self._node_ready)
        self._told("node", begun)

    def _told(self, what: str, begun: float) -> None:
        print(f"{what} ready after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)

    def _wait(self, what: str, done: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            self.check()
            if time.monotonic() > end:
                raise KeeperError(f"{what} is not ready after {PATIENCE:.0f} s; the logs are in {self.folder / 'logs'}")
            time.sleep(0.05)

    def _server(self, name: str, flags: list[str]) -> None:
        self.start(name, [str(self.programs / "bin" / name), *flags])

    def _containerd(self) -> None:
        place, networks = self.folder / "containerd", self.folder / "networks"
        for target, source in containers.layers(place):
            mount(str(source), target, None, BIND)
        networks.mkdir()
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": str(self.folder / "addresses"),
            },
        }
        listing = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, {"type": "loopback"}]}
        (networks / "10-pods.conflist").write_text(json.dumps(listing))
        (self.folder / "containerd.toml").write_text(
            _CONTAINERD.format(
                root=place,
                state="/run/containerd",
                socket=self.folder / "containerd.sock",
                pause=containers.PAUSE,
                runc=self.programs / "bin" / "runc",
                plugins=self.programs / "cni",
                networks=networks,
            )
        )
        self._server("containerd", ["-c", str(self.folder / "containerd.toml")])

    def _etcd(self) -> None:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
        }
        self._server("etcd", ["--unsafe-no-fsync", *(f"--{key}={value}" for key, value in flags.items())])

    def _api(self, port: int) -> list[str]:
        pki = self.folder / "pki"
        flags = {
            "etcd-servers": "http://127.0.0.1:2379",
            "bind-address": "0.0.0.0",
            "advertise-address": f"{self.network}.254",
            "secure-port": port,
            "tls-cert-file": pki / "api.crt",
            "tls-private-key-file": pki / "api.key",
            "service-cluster-ip-range": SERVICES,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki / "accounts.pub",
            "service-account-signing-key-file": pki / "accounts.key",
            "token-auth-file": self.folder / "static-tokens.csv",
            "authentication-token-webhook-config-file": self.folder / "tokens.conf",
            "authentication-token-webhook-version": "v1",
            "authentication-token-webhook-cache-ttl": "1ns",
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "true",
            "client-ca-file": pki / "ca.crt",
            "disable-admission-plugins": "StorageObjectInUseProtection",
            "kubelet-preferred-address-types": "InternalIP",
            "event-ttl": "1h",
        }
        return [str(self.programs / "bin" / "kube-apiserver"), *(f"--{key}={value}" for key, value in flags.items())]

    def _manager(self, config: str) -> list[str]:
        pki = self.folder / "pki"
        flags = {
            "kubeconfig": config,
            "service-account-private-key-file": pki / "accounts.key",
            "root-ca-file": pki / "ca.crt",
            "use-service-account-credentials": "false",
            "leader-elect": "false",
            "controllers": CONTROLLERS,
            "node-monitor-period": "1s",
            "node-monitor-grace-period": "20s",  # the machine may be busy
        }
        return [f"--{key}={value}" for key, value in flags.items()]

    def _kubelet(self) -> None:
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "protectKernelDefaults": False,
            "resolvConf": "",
            "clusterDNS": [GATEWAY],
            "clusterDomain": "cluster.local",
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "1s",
            "oomScoreAdj": 0,
            "serializeImagePulls": False,
            "maxPods": 200,
            "volumeStatsAggPeriod": "0s",
        }
        file = self.folder / "kubelet.json"
        file.write_text(json.dumps(settings))
        flags = {
            "config": file,
            "kubeconfig": self.folder / "node.conf",
            "hostname-override": NODE,
            "node-ip": f"{self.network}.254",
            "root-dir": self.folder / "kubelet",
            "cert-dir": self.folder / "kubelet-pki",
            "container-runtime": "remote",
            "container-runtime-endpoint": f"unix://{self.folder / 'containerd.sock'}",
            "runtime-request-timeout": "5m",
        }
        Path("/var/lib/kubelet").mkdir(parents=True, exist_ok=True)
        mount("kubelet", Path("/var/lib/kubelet"), "tmpfs", 0, "mode=755")
        self._server("kubelet", [f"--{key}={value}" for key, value in flags.items()])

    # What there is to begin with.

    def _objects(self) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for one in definitions.definitions():
            self.rest.ensure(path, one)
        for kind in definitions.KINDS:
            self._wait(kind.name, functools.partial(self._served, kind))
        trainer = f"/apis/{definitions.TRAINER}/{definitions.TRAINER_VERSION}"
        for one in definitions.runtimes():
            self.rest.ensure(f"{trainer}/clustertrainingruntimes", one)
        self.rest.ensure("/api/v1/namespaces", {"metadata": {"name": "kubeflow-system"}})
        version = {
            "metadata": {"name": "kubeflow-trainer-public"},
            "data": {"kubeflow_trainer_version": "v2.3.0"},
        }
        self.rest.ensure("/api/v1/namespaces/kubeflow-system/configmaps", version)
        for path, one in admission.configurations(self.folder / "pki" / "ca.crt"):
            self.rest.ensure(path, one)
        self._publish_version()

    def _publish_version(self) -> None:
        """Trainer's version is for everybody to read, as where Trainer is installed."""
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/kubeflow-system"
        meta = {"name": "kubeflow-trainer-public"}
        group = "rbac.authorization.k8s.io"
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [meta["name"]], "verbs": ["get"]}
        self.rest.ensure(f"{path}/roles", {"metadata": meta, "rules": [rule]})
        everybody = {"kind": "Group", "name": "system:authenticated", "apiGroup": group}
        reference = {"kind": "Role", "name": meta["name"], "apiGroup": group}
        binding = {"metadata": meta, "subjects": [everybody], "roleRef": reference}
        self.rest.ensure(f"{path}/rolebindings", binding)

    def _served(self, kind: definitions.Kind) -> bool:
        """Whether a kind can be used, and is listed where controllers look for kinds."""
        with contextlib.suppress(RestError):
            listed = self.rest.get(f"/apis/{kind.group}/{kind.version}")["resources"]
            self.rest.get(f"/apis/{kind.group}/{kind.version}/{kind.plural}")
            return any(one["name"] == kind.plural for one in listed)
        return False

    def _node_ready(self) -> bool:
        node = self.rest.find(f"/api/v1/nodes/{NODE}")
        status = (node or {}).get("status") or {}
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
        return ready and (status.get("allocatable") or {}).get("cpu") == str(admission.CPUS)

    def _helpers_ready(self) -> bool:
        return (self.folder / "controllers-ready").exists()

    # Requests; each calls the method of its name.

    def ready(self, port: int) -> bool:
        """Whether the API server at this port serves."""
        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {self.settings['admin']}"}
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def open_door(self) -> str:
        """An address at which the API server is reached, which nobody else has been given."""
        self.doors += 1
        address = f"{self.network}.{self.doors}"
        ip(f"addr add {address}/32 dev {LINK}")
        return address

    def cut(self, address: str) -> None:
        """Drop all that comes to a door and all that leaves by it; nobody is told."""
        tool(["nft", "-f", "-"], f"add element ip cluster lost {{ {address} }}\n")

    def mend(self, address: str) -> None:
        tool(
            ["nft", "-f", "-"],
            f"add element ip cluster lost {{ {address} }}\ndelete element ip cluster lost {{ {address} }}\n",
        )

    def more_api(self) -> int:
        """The port of one more API server, of the same cluster, which may be stopped without the others' seeing it."""
        port = 8000 + len([name for name in self.commands if name.startswith("api")])
        self.start(f"api-{port}", self._api(port))
        self._wait(f"the API server at port {port}", lambda: self.ready(port))
        return port

    def stop_api(self, port: int) -> None:
        """End an API server as a crash does."""
        process = self.running.pop(self._api_name(port), None)
        if process is not None:
            process.kill()
            process.wait()

    def start_api(self, port: int) -> None:
        """Start an API server that was stopped, and wait until it serves."""
        name = self._api_name(port)
        if name not in self.running:
            self.start(name, self.commands[name])
        self._wait(f"the API server at port {port}", lambda: self.ready(port))

    def _api_name(self, port: int) -> str:
        return "api" if port == PORT else f"api-{port}"

    def run(self, command: list[str]) -> list[Any]:
        """A command beside the cluster's programs, as ctr or ip: status, output and errors."""
        path = f"{self.programs / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin"
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
        return [done.returncode, done.stdout, done.stderr]

    def processes(self) -> dict[str, int | None]:
        """The programs, and the status of each that has ended."""
        return {name: process.poll() for name, process in self.running.items()}


class _Requests(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        keeper: Keeper = self.server.keeper  # type: ignore[attr-defined]
        for line in self.rfile:
            request = json.loads(line)
            try:
                with keeper.lock:
                    answer = {"result": getattr(keeper, request["do"])(*request["with"])}
            except Exception as error:
                answer = {"error": str(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    keeper: Keeper


def _mount_cgroups() -> None:
    """Show the hierarchies as this cluster's namespace has them: its own group is the root of each."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    found = [(place, kind, options) for _, place, kind, options, *_ in lines if kind in ("cgroup", "cgroup2")]
    for place, kind, options in found:
        names = [one for one in options.split(",") if one not in ("rw", "ro", "relatime", "nosuid", "nodev", "noexec")]
        tool(["umount", place])
        mount("cgroup", Path(place), kind, 0, ",".join(names) if kind == "cgroup" else None)


def _leave_orphans_to_parent() -> None:
    """Fork: the child goes on, and the parent, as the first process here, collects what is orphaned until it ends."""
    child = os.fork()
    if not child:
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pid, ended = os.wait()
        if pid == child:
            os._exit(min(abs(os.waitstatus_to_exitcode(ended)), 1))


def main(folder: str, programs: str, laptop: str) -> None:
    _leave_orphans_to_parent()
    place = Path(folder)
    try:
        _mount_cgroups()
        keeper = Keeper(place, Path(programs), int(laptop))
        keeper.begin()
    except Exception as error:
        print(json.dumps({"error": str(error) or repr(error)}), flush=True)
        raise
    server = _Server(str(place / "keeper.sock"), _Requests)
    server.keeper = keeper
    print(json.dumps({"result": keeper.network}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
