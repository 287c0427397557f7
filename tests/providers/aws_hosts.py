"""Instances that are hosts: each that moto launches boots a host of `tests.hosts` at its address."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.hosts import images
from tests.hosts.world import Host, Kind, World
from tests.providers.aws_world import AwsWorld

USER = "ubuntu"
_METADATA_PORT = 8169
_METADATA = Path(__file__).with_name("instance_metadata.py")
_FOLDER, _PROGRAM = "/run/instance-metadata", "/opt/instance_metadata.py"
_MOST_HOSTS = 125


class HostedAws(AwsWorld):
    """A cloud whose instances are hosts; made by `aws_world.hosts`.

    A thread follows what moto launches and ends. Another one a host waits until that has shut itself down.

    Parameters
    ----------
    address : str
        The server's.
    world : World
        Where hosts are added.
    """

    def __init__(self, address: str, world: World) -> None:
        super().__init__(address)
        self.world = world
        self.hosts: dict[str, Host] = {}
        self.trouble: list[BaseException] = []
        self._user_data: dict[str, str] = {}
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Of hosts that end because their instance does: nothing is told of that.
        self._ended: set[str] = set()

    def __enter__(self) -> HostedAws:
        self.configure(network=self.world.network, hosts=len(self.world), capacity=_MOST_HOSTS)
        self._follow_in_thread(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.configure(network="")
        for thread in self._threads[:1]:
            thread.join()
        for id, host in self.hosts.items():
            self._power_off(id, host)
        for thread in self._threads[1:]:
            thread.join()
        if self.trouble:
            raise self.trouble[0]

    def host(self, id: str) -> Host:
        """Return the host that an instance is."""
        return self.hosts[id]

    def instances(self, **wanted: Any) -> list[dict[str, Any]]:
        if self.trouble:
            raise self.trouble[0]
        return super().instances(**wanted)

    def notice(self, id: str, seconds: float = 120.0) -> None:
        """Tell a spot instance, by its metadata, that it will be taken away."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        self._metadata(id, "spot/instance-action", json.dumps({"action": "terminate", "time": at}))

    def advise(self, id: str) -> None:
        """Tell a spot instance, by its metadata, that it is more likely than others to be taken away."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._metadata(id, "events/recommendations/rebalance", json.dumps({"noticeTime": at}))

    def _metadata(self, id: str, path: str, text: str) -> None:
        self.hosts[id].write(f"{_FOLDER}/{path}", text)

    # -- what moto tells ---------------------------------------------------------------------------

    def _follow(self) -> None:
        seen = 0
        while not self._done.is_set():
            events = self._ask("events", after=seen, wait=0.5)
            seen += len(events)
            try:
                self._boot([one for one in events if one["what"] == "run"])
                for event in events:
                    self._changed(event["what"], event["id"])
            except BaseException as error:
                self.trouble.append(error)

    def _changed(self, what: str, id: str) -> None:
        if what in ("end", "stop") and id in self.hosts:
            self._power_off(id, self.hosts[id])
        if what == "start":
            self._ended.discard(id)
            self.hosts[id].boot()
            self._set_up(id, first=False)

    def _boot(self, events: Sequence[Mapping[str, Any]]) -> None:
        if not events:
            return
        kinds = []
        for event in events:
            self._user_data[event["id"]] = event["user_data"]
            kinds.append(_kind(cloud_config(event["user_data"]), f"{self.world.network}.{event['host']}"))
        for event, host in zip(events, self.world.add(*kinds), strict=True):
            assert host.private == f"{self.world.network}.{event['host']}"
            self.hosts[event["id"]] = host
        for event in events:
            self._set_up(event["id"], first=True)

    def _set_up(self, id: str, *, first: bool) -> None:
        """Do what a machine does as it boots; what has failed is passed over, as cloud-init does."""
        host, config = self.hosts[id], cloud_config(self._user_data[id])
        self._follow_in_thread(self._await_end, id, host, host.pid)
        if first:
            host.run(["chmod", "4755", "/usr/bin/sudo"])
            for file in config.get("write_files", ()):
                host.write(file["path"], file.get("content", ""), mode=int(str(file.get("permissions", "644")), 8))
        commands = [*config.get("bootcmd", ()), *(config.get("runcmd", ()) if first else ())]
        for command in commands:
            host.run(command, check=False)
        host.run(["mkdir", "-p", _FOLDER])
        if first:
            host.write(_PROGRAM, _METADATA.read_text())
        words = ["python3", _PROGRAM, host.private, str(_METADATA_PORT), _FOLDER]
        host.run(f"{shlex.join(words)} </dev/null >/dev/null 2>&1 &")
        if id not in self._ended:
            self._ask("running", id=id)

    def _await_end(self, id: str, host: Host, pid: int) -> None:
        """Tell moto when a host has shut itself down."""
        # What has ended is seen as such before anybody has waited for it, which no descriptor tells everywhere.
        while _runs(pid) and host.pid == pid and not self._done.wait(0.05):
            pass
        with self._lock:
            if self._done.is_set() or host.pid != pid or id in self._ended:
                return
            self._ended.add(id)
            host.kill()  # what is left of it here
        self._ask("ended", id=id)

    def _power_off(self, id: str, host: Host) -> None:
        with self._lock:
            if id not in self._ended:
                self._ended.add(id)
                host.kill()

    def _follow_in_thread(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def cloud_config(text: str) -> dict[str, Any]:
    """Return what user data says, where it is cloud-config."""
    found = yaml.safe_load(text) if text.startswith("#cloud-config") else {}
    return dict(found or {})


def _kind(config: Mapping[str, Any], address: str) -> Kind:
    """Return a host with the keys that its user data gives it."""
    keys = config.get("ssh_keys", {})
    pair = (keys["ed25519_private"], keys["ed25519_public"]) if "ed25519_private" in keys else ()
    names = [f"SetEnv AWS_EC2_METADATA_SERVICE_ENDPOINT=http://{address}:{_METADATA_PORT}"]
    authorized = "".join(f"{line}\n" for line in config.get("ssh_authorized_keys", ())) or "# none\n"
    return Kind(python=True, warm=True, user=USER, sudo=True, keys=authorized, host_key=pair, sshd=tuple(names))


assert USER not in images.USERS
