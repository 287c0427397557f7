"""Pods as machines: over an API of this file's own that runs real commands; `tests/kubernetes` has the real one."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sky_jupyter.errors import LinkLost, LoginRefused, MachineError, SpecError, Unanswered, Unreachable
from sky_jupyter.machines.base import Machine
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.encoding import Event, from_target, target
from sky_jupyter.machines.pods import api_access, kube_clients, pod_channels, pod_session
from sky_jupyter.machines.pods.cluster_place import ClusterPlace
from sky_jupyter.machines.pods.machine import PodMachine
from sky_jupyter.machines.pods.pod_target import PodTarget
from sky_jupyter.machines.ssh.types import NoShell

from ..providers.conformance import MachineConformance, eventually
from .pod_api import TOKEN, V4, V5, PodApi, Stream, certificate, frame, serve

pytest.importorskip("kubernetes")


def target_of(api: PodApi) -> PodTarget:
    return PodTarget("ns/job/0", "ns", "p-0", "u-1", kubeconfig=(str(api.kubeconfig),), address="127.0.0.1")


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodApi]:
    """An API since 1.30, for tests that change nothing of it."""
    with serve(tmp_path_factory.mktemp("newer"), V5) as made:
        yield made


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodApi]:
    """An earlier one."""
    with serve(tmp_path_factory.mktemp("older"), V4) as made:
        yield made


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PodApi]:
    """An API of a test's own."""
    with serve(tmp_path) as made:
        yield made


@contextlib.contextmanager
def hasty(api: PodApi) -> Iterator[Machine]:
    """Its pod, with streams that wait for no more once we have sent our end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_channels, "LINGER", 0.0)
        patch.setattr(pod_channels, "TICK", 0.1)
        with PodMachine.connect(target_of(api)) as made:
            yield made


class TestPodMachine(MachineConformance):
    python = sys.executable
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, newer: PodApi) -> Iterator[Machine]:
        with hasty(newer) as made:
            yield made


@pytest.mark.slow  # the same over the framing of earlier servers, as tests/kubernetes has it
class TestPodMachineOfAnEarlierServer(MachineConformance):
    python = sys.executable
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, older: PodApi) -> Iterator[Machine]:
        with hasty(older) as made:
            yield made


@pytest.mark.slow  # the same through another process
class TestPodMachineOverTheLink(MachineConformance):
    python = sys.executable
    ends_scripts = False

    @pytest.fixture(scope="class")
    @classmethod
    def machine(cls, newer: PodApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
        with Link.start(tmp_path_factory.mktemp("links") / "link") as link:
            yield link.connect(target_of(newer))
            link.end()


# Commands and ports


def test_the_input_of_a_command_ends_where_the_server_cannot_be_told(older: PodApi) -> None:
    with PodMachine.connect(target_of(older)) as machine:
        data = [os.urandom(300_000) for _ in range(5)]
        with machine.script("cat; echo bye; exit 7", data) as pipes:
            said = b"".join(iter(lambda: pipes.recv(65536), b""))
            assert (said, machine.status(pipes)) == (b"".join(data) + b"bye\n", 7)
        # One that does not read has ended all the same.
        with machine.script("exit 3", [bytes(1000)] * 3) as pipes:
            assert pipes.recv(10) == b""
            assert machine.status(pipes) == 3


def test_output_that_nobody_reads_is_left_to_the_server(api: PodApi) -> None:
    with PodMachine.connect(target_of(api)) as machine:
        channel = machine.open_shell("head -c 100000000 /dev/zero; exit 5")
        assert channel.recv(1) == b"\0"
        eventually(channel.recv_ready)
        for _ in range(2000):
            channel.look()
        # What came is no more than its limit and a frame.
        assert channel._out_size < (4 << 20) + (1 << 18)
        got = 1
        while data := channel.recv(1 << 20):
            got += len(data)
        assert (got, machine.status(channel)) == (100_000_000, 5)


def test_a_pod_leads_to_its_own_ports_only_and_says_so(newer: PodApi) -> None:
    with PodMachine.connect(target_of(newer)) as machine:
        with pytest.raises(MachineError, match=r"own ports only, not to 10\.9\.9\.9:80"):
            machine.open_stream("10.9.9.9", 80)
        with pytest.raises(MachineError, match="cannot listen on a port for us"):
            machine.session.listen(0, lambda channel: None)
        with pytest.raises(MachineError, match="relays"):
            machine.relay(machine, "127.0.0.1", 1)


def test_a_refusal_that_comes_late_breaks_the_stream(newer: PodApi) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with PodMachine.connect(target_of(newer)) as machine:
        stream = machine.open_stream("127.0.0.1", port)
        assert stream.recv(10) == b""
        assert stream.closed
        with pytest.raises(OSError, match="error forwarding"):
            stream.send_all(b"x")


def test_an_image_without_a_shell_is_refused_in_words(api: PodApi) -> None:
    message = 'exec failed: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'

    def refuse(stream: Stream) -> None:
        stream.send(3, json.dumps({"status": "Failure", "code": 500, "message": message}).encode())
        stream.close()

    api.script = refuse
    with pytest.raises(NoShell, match="name an image with a shell") as caught:
        PodMachine.connect(target_of(api))
    assert message in str(caught.value)


# Access


def test_a_missing_right_is_named(api: PodApi) -> None:
    words = 'pods "p-0" is forbidden: User "ada" cannot create resource "pods/exec"'
    api.refusals["pods/exec"] = (403, words)
    with pytest.raises(LoginRefused) as caught:
        PodMachine.connect(target_of(api))
    assert all(part in str(caught.value) for part in ("ns/job/0", words, "namespace ns", "get and create on pods/exec"))
    api.refusals = {}
    with PodMachine.connect(target_of(api)) as machine:
        api.refusals["pods/portforward"] = (403, "forbidden")
        with pytest.raises(LoginRefused, match="pods/portforward"):
            machine.open_stream("127.0.0.1", 80)
        assert machine.run("echo on").out == b"on\n"


@pytest.mark.parametrize("way", ["deleted", "expired", "replaced", "evicted"])
def test_a_pod_that_is_gone_is_not_waited_for(api: PodApi, way: str) -> None:
    if way in ("deleted", "expired"):
        api.refusals["pods"] = (404 if way == "deleted" else 410, 'pods "p-0" not found')
    elif way == "replaced":
        api.pod["metadata"]["uid"] = "u-2"
    else:
        api.pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}
    with pytest.raises(MachineError, match="ns/p-0 is gone") as caught:
        PodMachine.connect(target_of(api))
    assert caught.value.reason == "gone"
    assert way != "evicted" or "Evicted: The node was low on memory" in str(caught.value)


@pytest.mark.parametrize("resource", ["pods", "pods/exec"])
def test_a_pod_that_something_on_the_way_does_not_know_is_not_gone(api: PodApi, resource: str) -> None:
    # As a kubelet answers that has just begun, and a proxy whose API server is not there.
    api.refusals[resource] = (0, "HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\npod does not exist")
    with pytest.raises(Unreachable, match="pod does not exist") as caught:
        PodMachine.connect(target_of(api))
    assert caught.value.reason == "api"


def test_a_container_that_waits_says_why(api: PodApi) -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    api.pod["status"]["containerStatuses"][0]["state"] = waiting
    with pytest.raises(Unreachable, match=r"waits \(CrashLoopBackOff: back-off 10s\)"):
        PodMachine.connect(target_of(api))


def test_credentials_are_read_anew_once_they_have_expired(api: PodApi) -> None:
    target = target_of(api)
    with PodMachine.connect(target) as machine:
        api.token = "another"
        with pytest.raises(Unreachable, match="does not accept the credentials") as caught:
            machine.open_shell("true")
        assert caught.value.reason == "credentials"
        assert TOKEN not in str(caught.value)
        assert api.kubeconfig.exists()  # written with the new token
        channel = machine.open_shell("exit 4")
        assert machine.status(channel) == 4


def plugin_of(api: PodApi) -> tuple[Path, PodTarget]:
    """A file that has the token, and a target whose kubeconfig has a plugin that reads it."""
    place = api.folder / "token"
    place.write_text(TOKEN)
    code = (
        "import json, sys; t = open(sys.argv[1]).read() or sys.exit('please log in again'); "
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
        "'status': {'token': t}}))"
    )
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": sys.executable, "args": ["-c", code, str(place)]}
    path = api.write_kubeconfig({"exec": plugin}, "plugin")
    return place, replace(target_of(api), kubeconfig=(str(path),))


def test_an_exec_plugin_is_asked_again_and_says_why_it_failed(
    api: PodApi, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    place, target = plugin_of(api)
    handlers = list(logging.getLogger().handlers)
    with PodMachine.connect(target) as machine:
        api.token = "another"
        place.write_text("another")
        assert machine.status(machine.open_shell("exit 4")) == 4
        api.token = "third"
        place.write_text("")
        with pytest.raises(Unreachable, match="please log in again") as caught:
            machine.open_shell("true")
        assert "another" not in str(caught.value)
    assert logging.getLogger().handlers == handlers
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


def test_a_client_certificate_is_shown(api: PodApi) -> None:
    api.ask_for_certificate()
    files = {"client-certificate": str(api.folder / "cert.pem"), "client-key": str(api.folder / "key.pem")}
    target = replace(target_of(api), kubeconfig=(str(api.write_kubeconfig(files, "certificates")),))
    with PodMachine.connect(target) as machine:
        assert machine.run("echo on").out == b"on\n"
    without = replace(target, kubeconfig=(str(api.write_kubeconfig({}, "without")),))
    with pytest.raises(Unreachable):
        PodMachine.connect(without)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")
def test_a_key_in_the_kubeconfig_reaches_no_disk(
    api: PodApi, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.ask_for_certificate()
    names = {"client-certificate-data": "cert.pem", "client-key-data": "key.pem"}
    inline = {name: base64.b64encode((api.folder / file).read_bytes()).decode() for name, file in names.items()}
    path = api.write_kubeconfig(inline, "inline")
    # A killed process removes nothing: nothing may be there while it works.
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = in_memory()
    with PodMachine.connect(replace(target_of(api), kubeconfig=(str(path),))) as machine:
        assert machine.run("echo on").out == b"on\n"
        assert list(temporary.iterdir()) == []
    place = ClusterPlace((str(path),), None, "ns")
    clients = kube_clients.KubeClients(place, api_access.access_to((str(path),)).configuration())
    assert clients.call("GET", "/api/v1/namespaces/ns/pods/p-0")["metadata"]["name"] == "p-0"
    assert list(temporary.iterdir()) == []
    # What is replaced is let go.
    assert len(in_memory() - before) >= 2
    del clients, machine
    api_access.access_to.cache_clear()
    gc.collect()
    assert in_memory() <= before


def in_memory() -> set[str]:
    """The descriptors of keys that are kept in memory."""
    found = set()
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found |= {one} if "sky-credentials" in os.readlink(f"/proc/self/fd/{one}") else set()
    return found


def test_a_token_that_is_renewed_leaves_the_authority_where_it_was(api: PodApi) -> None:
    target = plugin_of(api)[1]
    path = Path(target.kubeconfig[0])
    facts = json.loads(path.read_text())
    cluster = facts["clusters"][0]["cluster"]
    cluster["certificate-authority-data"] = base64.b64encode(
        Path(cluster.pop("certificate-authority")).read_bytes()
    ).decode()
    path.write_text(json.dumps(facts))
    access = api_access.ApiAccess(target.kubeconfig, None)
    before = access.configuration().ssl_ca_cert
    access.credentials()
    assert access.configuration().ssl_ca_cert == before
    assert Path(before).read_bytes() == (api.folder / "cert.pem").read_bytes()


def test_a_proxy_is_not_used_for_what_no_proxy_names(api: PodApi, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = nobody.getsockname()[1]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{dead}")
    target = target_of(api)
    place = ClusterPlace(target.kubeconfig, None, "ns")
    for value in ("", "10.0.0.0/8", "127.0.0.0/8", "localhost,127.0.0.1"):
        monkeypatch.setenv("NO_PROXY", value)
        api_access.access_to.cache_clear()
        bypassed = "127" in value
        with contextlib.nullcontext() if bypassed else pytest.raises(Unreachable):
            PodMachine.connect(target).close()
        with contextlib.nullcontext() if bypassed else pytest.raises(Unanswered):
            kube_clients.ask(place, "read a pod", lambda one: one.call("GET", "/api/v1/namespaces/ns/pods/p-0"))


def test_the_proxy_of_a_kubeconfig_counts_for_its_cluster_alone(api: PodApi, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = nobody.getsockname()[1]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    target = target_of(api)
    facts = json.loads(api.kubeconfig.read_text())
    cluster, here = facts["clusters"][0], facts["contexts"][0]
    other = {**cluster, "name": "other", "cluster": {**cluster["cluster"], "proxy-url": f"http://127.0.0.1:{dead}"}}
    facts["clusters"].append(other)
    facts["contexts"].append({"name": "far", "context": {**here["context"], "cluster": "other"}})
    path = api.folder / "proxied.json"
    path.write_text(json.dumps(facts))
    target = replace(target, kubeconfig=(str(path),))
    PodMachine.connect(target).close()
    with pytest.raises(Unreachable, match="does not answer"):
        PodMachine.connect(replace(target, context="far"))
    far = ClusterPlace(target.kubeconfig, "far", "ns")
    with pytest.raises(Unanswered):
        kube_clients.ask(far, "read a pod", lambda one: one.call("GET", "/api/v1/namespaces/ns/pods/p-0"))


def test_a_notebook_in_the_cluster_needs_no_kubeconfig(api: PodApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config

    (api.folder / "token").write_text(TOKEN)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(api.folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(api.folder / "cert.pem"))
    target = replace(target_of(api), kubeconfig=())
    api_access.access_to.cache_clear()
    with pytest.raises(Unreachable, match="the service account of this pod"):
        PodMachine.connect(target)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    with PodMachine.connect(target) as machine:
        assert machine.run("echo on").out == b"on\n"
        # An address within the cluster is dialled, without the API.
        with socket.create_server(("127.0.0.2", 0)) as there:
            before = len(api.asked)
            stream = machine.open_stream("127.0.0.2", there.getsockname()[1])
            near, _ = there.accept()
            near.sendall(b"direct")
            assert stream.recv(10) == b"direct"
            near.close()
            stream.close()
            assert len(api.asked) == before


def test_a_kubeconfig_that_is_none_is_an_error_in_words(api: PodApi) -> None:
    for text in ("", "{}", "not: [a", json.dumps({"current-context": "nothing"})):
        path = api.folder / "bad"
        path.write_text(text)
        with pytest.raises(Unreachable, match="no access to the cluster"):
            PodMachine.connect(replace(target_of(api), kubeconfig=(str(path),)))
        path.unlink()


def test_another_authority_is_not_trusted(api: PodApi, tmp_path_factory: pytest.TempPathFactory) -> None:
    facts = json.loads(api.kubeconfig.read_text())
    facts["clusters"][0]["cluster"]["certificate-authority"] = str(certificate(tmp_path_factory.mktemp("other"))[0])
    path = api.folder / "other"
    path.write_text(json.dumps(facts))
    with pytest.raises(Unreachable, match="is not trusted"):
        PodMachine.connect(replace(target_of(api), kubeconfig=(str(path),)))


# Breaks


def test_a_cut_ends_all_and_is_told(api: PodApi) -> None:
    told: list[LinkLost] = []
    with PodMachine.connect(target_of(api)) as machine:
        machine.session.on_lost(told.append)
        pipes = machine.open_shell("echo on; sleep 600")
        assert pipes.recv(100) == b"on\n"
        api.cut()
        assert pipes.recv(100) == b""
        eventually(lambda: told)
        assert not machine.up
        for use in (lambda: machine.run(":"), lambda: machine.status(pipes), lambda: machine.open_shell("true")):
            with pytest.raises(LinkLost):
                use()
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("sky-pod-")])


def test_a_pod_that_answers_nothing_is_given_up(api: PodApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_session, "TICK", 0.1)
    monkeypatch.setattr(pod_session, "SILENT", 10)
    with PodMachine.connect(target_of(api)) as machine:
        told: list[LinkLost] = []
        machine.session.on_lost(told.append)
        api.deaf = True
        eventually(lambda: told)
        assert told[0].reason == "silent"


def test_pings_keep_a_quiet_session(api: PodApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_session, "TICK", 0.1)
    monkeypatch.setattr(pod_session, "SILENT", 10)
    monkeypatch.setattr(pod_session, "PULSE", 1)
    with PodMachine.connect(target_of(api)) as machine:
        before = api.pings
        eventually(lambda: api.pings > before + 4)
        assert machine.up


def test_the_link_brings_a_pod_back_and_its_commands_go_on(api: PodApi, tmp_path: Path) -> None:
    events: list[Event] = []
    with Link.start(tmp_path / "link") as link:
        link.on_event(events.append)
        machine = link.connect(target_of(api))
        home = machine.run("pwd").out.decode().strip()
        command = machine.exec(["sleep", "600"], env={}, cwd=home, log=PurePosixPath(home, "log"))
        api.stop()
        eventually(lambda: [event.kind for event in events] == ["waiting"])
        with pytest.raises(LinkLost):
            machine.run(":")
        api.start()
        machine.retry()
        eventually(lambda: events[-1].kind == "back")
        process = machine.process(command.identity)
        assert process.alive
        process.kill()
        # Another pod of the name is another machine.
        api.pod["metadata"]["uid"] = "u-2"
        api.cut()
        eventually(lambda: events[-1].kind == "refused")
        assert "another pod has its name" in str(events[-1])
        (found,) = link.machines()
        assert not found.up
        assert found.target == machine.target
        with pytest.raises(MachineError) as caught:
            link.connect(target_of(api))
        assert caught.value.reason == "gone"
        link.end()


def test_the_link_does_not_wait_to_clean_up_a_pod_that_is_gone(api: PodApi, tmp_path: Path) -> None:
    events: list[Event] = []
    with Link.start(tmp_path / "link") as link:
        link.on_event(events.append)
        machine = link.connect(target_of(api))
        api.refusals["pods"] = (404, 'pods "p-0" not found')
        api.cut()
        eventually(lambda: events)
        link.finish([(machine, "true")], 600.0, [])
        eventually(lambda: "ended" in [event.kind for event in events])
        eventually(lambda: not link.alive)


# What no server says

NONSENSE: dict[str, Callable[[Stream], None]] = {
    "length": lambda stream: stream.raw(b"\x82\x7f" + b"\xff" * 8 + b"\x01x"),
    "masked": lambda stream: stream.raw(b"\x82\x81\0\0\0\0\x01"),
    "reserved": lambda stream: stream.raw(b"\xf2\x02\x01x"),
    "code": lambda stream: stream.raw(b"\x83\x02\x01x"),
    "control": lambda stream: stream.raw(b"\x89\x7e\xff\xff" + bytes(65535)),
    "control in parts": lambda stream: stream.raw(b"\x09\x01x"),
    "a part of nothing": lambda stream: stream.raw(frame(b"\x01x", 0)),
    "a message in another": lambda stream: stream.raw(frame(b"\x01x", 2, final=False) + frame(b"\x01x", 2)),
    "channel": lambda stream: stream.send(9, b"x" * 1000),
    "no status": lambda stream: stream.send(3, b"[1, 2]"),
    "nested status": lambda stream: stream.send(3, b"[" * 60_000),
    "long status": lambda stream: stream.send(3, b"x" * 100_000),
    "endless status": lambda stream: [stream.send(3, b"x" * 1000) for _ in range(1000)] and None,
    "half a frame": lambda stream: stream.raw(b"\x82\x7f" + struct.pack("!Q", 1 << 40) + b"\x01" + b"x" * 100),
    "half a head": lambda stream: stream.raw(b"\x82"),
    "empty frames": lambda stream: stream.raw(frame(b"") * 10_000),
    "text": lambda stream: stream.send(1, b"hello"),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_ends_the_session_and_hangs_nobody(api: PodApi, kind: str) -> None:
    def say(stream: Stream) -> None:
        NONSENSE[kind](stream)
        if not kind.startswith("half") and kind not in ("empty frames", "text"):
            stream.receive()
        stream.close() if kind == "text" else stream.socket.close()

    api.script = say
    with pytest.raises(MachineError):
        PodMachine.connect(target_of(api))


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "HTTP/1.1 101 x\r\n",
        "HTTP/1.1 101 x\r\n\r\n",
        "HTTP/1.1 101 x\r\nSec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 x\r\nContent-Length: 99999999999999\r\n\r\nx",
        "HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nx",
        "x" * 200_000,
    ],
)
@pytest.mark.parametrize("resource", ["pods", "pods/exec"])
def test_an_answer_that_is_none_is_an_error(api: PodApi, resource: str, answer: str) -> None:
    api.refusals[resource] = (0, answer)
    with pytest.raises(MachineError):
        PodMachine.connect(target_of(api))


def test_a_frame_of_any_length_passes_in_pieces(api: PodApi) -> None:
    size = 30_000_000

    def say(stream: Stream) -> None:
        stream.raw(b"\x02\x7f" + struct.pack("!Q", size // 2 + 1) + b"\x01")
        for _ in range(size // 2 // 100_000):
            stream.raw(bytes(100_000))
        stream.raw(frame(b"ping", 9))
        stream.raw(frame(bytes(size // 2), 0))
        stream.send(3, b'{"status": "Success"}')
        assert stream.receive() is not None or True

    with PodMachine.connect(target_of(api)) as machine:
        api.script = say
        channel = machine.open_shell("true")
        got = 0
        while data := channel.recv(1 << 18):
            assert len(data) <= 1 << 18
            got += len(data)
        assert (got, machine.status(channel)) == (size, 0)


# Targets


def test_a_target_is_its_json_again_and_has_no_secret(newer: PodApi) -> None:
    made = replace(target_of(newer), context="x")
    facts: dict[str, Any] = json.loads(json.dumps(from_target(made)))
    assert target(facts) == made
    assert facts["kind"] == "pod"
    assert TOKEN not in json.dumps(facts)
    for wrong in ({"kind": "nothing"}, {"pod": "../x"}, {"namespace": "a b"}, {"kubeconfig": "x"}, {"more": 1}):
        with pytest.raises(SpecError):
            target({**facts, **wrong})
