"""Pods as machines over the real API server and kubelet: what every machine does, cuts, restarts, credentials."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sky_jupyter.errors import LinkLost, Unreachable
from sky_jupyter.machines.base import Machine
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.encoding import Event
from sky_jupyter.machines.pods.machine import PodMachine
from sky_jupyter.machines.pods.pod_target import PodTarget
from sky_jupyter.machines.ssh.types import NoShell
from tests.kubernetes import containers
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.space import Space
from tests.providers.conformance import MachineConformance, eventually

pytestmark = pytest.mark.root

WAIT = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]


def pod_in(space: Space, name: str = "p", image: str = containers.NODE, command: list[str] = WAIT) -> PodTarget:
    """The target of a new pod, as the plain user reaches it."""
    pod = space.run_pod(name, image, *command)
    return target_of(space, pod)


def target_of(space: Space, pod: dict[str, Any], *, plugin: bool = False) -> PodTarget:
    metadata, path = pod["metadata"], space.kubeconfig("ada", plugin=plugin)
    address = pod["status"].get("podIP", "")
    name = metadata["name"]
    return PodTarget(f"{space.name}/{name}", space.name, name, metadata["uid"], "main", (str(path),), address=address)


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Iterator[PodTarget]:
    """A pod for tests that change nothing of it."""
    space = cluster.space()
    yield pod_in(space)
    space.close()


@pytest.mark.slow
class TestPodOverTheLink(MachineConformance):
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, target: PodTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
        with Link.start(tmp_path_factory.mktemp("links") / "link") as link:
            yield link.connect(target)
            link.end()


@pytest.mark.long
class TestPod(MachineConformance):
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, target: PodTarget) -> Iterator[Machine]:
        with PodMachine.connect(target) as made:
            yield made


class Held:
    """A machine of a link with a command that counts, and the link's events."""

    def __init__(self, link: Link, target: PodTarget) -> None:
        self.events: list[Event] = []
        link.on_event(self.events.append)
        self.machine = link.connect(target)
        count = "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.1; done"
        self.command = self.machine.exec(["sh", "-c", count], env={}, cwd="/tmp", log=PurePosixPath("/tmp/log"))
        eventually(self.count)

    def count(self) -> int:
        return int(self.machine.run("cat /tmp/count").out or 0)

    def wait_for(self, kind: str) -> None:
        eventually(lambda: kind in [event.kind for event in self.events])


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link.start(tmp_path / "link") as made:
        yield made
        made.end()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_a_cut_connection_comes_back_and_what_runs_goes_on(space: Space, link: Link, seconds: float) -> None:
    held = Held(link, pod_in(space))
    before = held.count()
    space.cut()
    began = time.monotonic()
    held.wait_for("waiting")
    with pytest.raises(LinkLost):
        held.count()
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    space.mend()
    held.machine.retry()
    held.wait_for("back")
    assert held.count() > before
    held.machine.process(held.command.identity).kill()


@pytest.mark.slow
def test_an_api_server_that_restarts_is_reached_again(space: Space, link: Link) -> None:
    space.own_api()
    held = Held(link, pod_in(space))
    before = held.count()
    space.stop_api()
    held.wait_for("waiting")
    space.start_api()
    held.machine.retry()
    held.wait_for("back")
    assert held.count() > before
    assert held.machine.process(held.command.identity).alive


@pytest.mark.slow
def test_credentials_expire_and_are_renewed(space: Space, link: Link) -> None:
    pod = space.run_pod("p", containers.NODE, *WAIT)
    plain, plugin = target_of(space, pod), target_of(space, pod, plugin=True)
    machines = [link.connect(one) for one in (plain, plugin)]
    assert [machine.run("echo on").out for machine in machines] == [b"on\n"] * 2
    calls = space.plugin_calls()
    space.expire()

    def refused(machine: Any) -> bool:
        try:
            machine.open_stream("127.0.0.1", 1).close()
        except Unreachable as error:
            return error.reason == "credentials"
        return False

    # (A real API server remembers tokens for ten seconds.)
    for machine in machines:
        eventually(lambda machine=machine: refused(machine))
        # What was open goes on.
        assert machine.run("echo on").out == b"on\n"
    assert space.plugin_calls() > calls
    space.renew()
    space.kubeconfig()
    for machine in machines:
        eventually(lambda machine=machine: not refused(machine))


@pytest.mark.slow
def test_an_image_without_a_shell_is_refused_in_words(space: Space) -> None:
    target = pod_in(space, image=containers.NO_SHELL, command=["/usr/bin/sleep", "1000"])
    with pytest.raises(NoShell, match=r"runs no /bin/sh: name an image with a shell.*/bin/sh"):
        PodMachine.connect(target)


@pytest.mark.slow
def test_a_notebook_in_the_cluster_connects_by_its_service_account(space: Space) -> None:
    target = pod_in(space)
    given = (target.name, target.namespace, target.pod, target.uid, target.container)
    notebook = space.notebook()
    code = (
        "from sky_jupyter.machines.pods.machine import PodMachine\n"
        "from sky_jupyter.machines.pods.pod_target import PodTarget\n"
        f"machine = PodMachine.connect(PodTarget(*{given!r}))\n"
        "print(machine.run('hostname').out.decode(), machine.address)\n"
        "machine.close()\n"
    )
    said = notebook.run(code).split()
    assert said == ["p", target.address]


@pytest.mark.slow
def test_a_large_array_goes_up_once_and_comes_back(target: PodTarget, tmp_path: Path) -> None:
    source, back = tmp_path / "array", tmp_path / "back"
    source.write_bytes(os.urandom(1 << 20) * 50)
    with PodMachine.connect(target) as machine:
        assert machine.upload(source, "/tmp/array").sent == 50 << 20
        machine.download("/tmp/array", back)
        assert back.read_bytes() == source.read_bytes()
        machine.run("rm /tmp/array")
