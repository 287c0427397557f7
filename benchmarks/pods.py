"""A pod beside the kubernetes client's own streams: commands, much data each way, and a forwarded port.

Both are clients of the same API server and kubelet, those of the tests.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from .measure import Figures, Options, Row, by_turns, clock, rows

OURS, THEIRS = "ours", "kubernetes client"
MEGABYTES, QUICK_MEGABYTES = 100, 8
COMMANDS, ROUNDS = 5, 100
_PORT = 7777
# Echoes, takes or gives, as the first byte of a connection says.
_SERVER = f"""
import socket, threading
def serve(near):
    near.setsockopt(6, 1, 1)
    kind = near.recv(1)
    if kind == b"g":
        for _ in range(int(near.recv(9))):
            near.sendall(bytes(1_000_000))
    elif kind == b"t":
        left = int(near.recv(9)) * 1_000_000
        while left > 0:
            left -= len(near.recv(1 << 20))
        near.sendall(b"ok")
    else:
        while data := near.recv(65536):
            near.sendall(data)
    near.close()
made = socket.create_server(("127.0.0.1", {_PORT}))
print("on", flush=True)
while True:
    threading.Thread(target=serve, args=made.accept()[:1]).start()
"""
_WAIT = ("sh", "-c", "while :; do sleep 1 & wait; done")


def measure(options: Options) -> list[Row]:
    """Rows of ours beside the client's; none where there is no cluster."""
    from tests.kubernetes import cluster as clusters

    if lacks := clusters.missing():
        print(f"pods: nothing is measured: it needs {lacks}")
        return []
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    with clusters.running() as cluster, pod_of(cluster) as (machine, api, place):
        jobs = {OURS: lambda: ours(machine, megabytes), THEIRS: lambda: theirs(api, place, megabytes)}
        samples = by_turns(jobs, options.times(5, quick=1))
    what = f"{megabytes} MB"
    whole = None if options.quick else 1.2
    return [
        *rows("a command", samples, "exec", ours=OURS, unit="ms", best=None if options.quick else 1.2),
        *rows("a line to an open shell and its answer", samples, "shell", ours=OURS, unit="ms"),
        *rows(f"{what} to a command", samples, "in", ours=OURS, best=whole),
        *rows(f"{what} from a command", samples, "out", ours=OURS),
        *rows(f"{what} to a port", samples, "up", ours=OURS),
        *rows(f"{what} from a port", samples, "down", ours=OURS, best=None if options.quick else 0.2),
        *rows("a byte to a port and back", samples, "echo", ours=OURS, unit="ms"),
        *rows("a connection to a port", samples, "open", ours=OURS, unit="ms"),
    ]


@contextlib.contextmanager
def pod_of(cluster: Any) -> Iterator[tuple[Any, Any, tuple[str, str]]]:
    """A pod with a server in it: our machine, the client's API, and the namespace and name."""
    from kubernetes import client, config

    from sky_jupyter.machines.pods.machine import PodMachine
    from sky_jupyter.machines.pods.pod_target import PodTarget
    from tests.kubernetes import containers

    space = cluster.space()
    pod = space.run_pod("p", containers.NODE, *_WAIT)
    path = str(space.kubeconfig())
    configuration = client.Configuration()
    config.load_kube_config(path, client_configuration=configuration)
    target = PodTarget("p", space.name, "p", pod["metadata"]["uid"], "main", (path,))
    with PodMachine.connect(target) as machine:
        command = machine.exec(
            ["python3", "-c", _SERVER], env={}, cwd="/tmp", log=PurePosixPath("/tmp/log"), survive=False
        )
        assert next(command.lines()) == "on"
        yield machine, client.CoreV1Api(client.ApiClient(configuration)), (space.name, "p")
    space.close()


def ours(machine: Any, megabytes: int) -> Figures:
    """Over our session."""
    figures: Figures = {}
    data, size = os.urandom(1_000_000), megabytes * 1_000_000
    with clock(figures, "exec", 1000 / COMMANDS):
        for _ in range(COMMANDS):
            channel = machine.open_shell("true")
            assert machine.status(channel) == 0
            channel.close()
    shell = machine.open_shell("exec sh")
    with clock(figures, "shell", 1000 / ROUNDS):
        for _ in range(ROUNDS):
            shell.send_all(b"echo x\n")
            assert shell.recv(10) == b"x\n"
    shell.close()
    with clock(figures, "in"):
        assert machine.run(f"head -c {size} >/dev/null", stdin=[data] * megabytes).status == 0
    channel, got = machine.open_shell(f"head -c {size} /dev/zero"), 0
    with clock(figures, "out"):
        while part := channel.recv(1 << 18):
            got += len(part)
    assert got == size

    def dial(first: bytes) -> Any:
        made = machine.open_stream("127.0.0.1", _PORT)
        made.send_all(first)
        return made

    return {**figures, **port_figures(dial, lambda made, part: made.send_all(part), megabytes)}


def theirs(api: Any, place: tuple[str, str], megabytes: int) -> Figures:
    """Over the kubernetes client's streams."""
    from kubernetes.stream import portforward, stream

    figures: Figures = {}
    data, size = b"x" * 1_000_000, megabytes * 1_000_000
    namespace, name = place

    def run(*command: str, stdin: bool = False) -> Any:
        return stream(
            api.connect_get_namespaced_pod_exec, name, namespace, container="main", command=list(command),
            stdin=stdin, stdout=True, stderr=True, tty=False, _preload_content=False, binary=True,
        )  # fmt: skip

    with clock(figures, "exec", 1000 / COMMANDS):
        for _ in range(COMMANDS):
            made = run("/bin/sh", "-c", "true")
            made.run_forever(timeout=300)
            assert made.returncode == 0
    shell = run("sh", stdin=True)
    with clock(figures, "shell", 1000 / ROUNDS):
        for _ in range(ROUNDS):
            shell.write_stdin(b"echo x\n")
            assert shell.readline_stdout(timeout=30) == b"x"
    shell.close()
    made = run("sh", "-c", f"head -c {size} >/dev/null", stdin=True)
    with clock(figures, "in"):
        for _ in range(megabytes):
            made.write_stdin(data)
        made.run_forever(timeout=300)
    made, got = run("head", "-c", str(size), "/dev/zero"), 0
    with clock(figures, "out"):
        while made.is_open():
            made.update(timeout=5)
            got += len(made.read_stdout()) if made.peek_stdout() else 0
    assert got == size

    def dial(first: bytes) -> Any:
        made = portforward(api.connect_get_namespaced_pod_portforward, name, namespace, ports=str(_PORT))
        near = made.socket(_PORT)
        near.setblocking(True)
        near.sendall(first)
        return near

    return {**figures, **port_figures(dial, lambda made, part: made.sendall(part), megabytes)}


def port_figures(dial: Any, send: Any, megabytes: int) -> Figures:
    """What a forwarded port does; each connection's first bytes say what the server does with it."""
    figures: Figures = {}
    data, size = bytes(1_000_000), megabytes * 1_000_000
    began = time.perf_counter()
    near = dial(b"e")
    figures["open"] = (time.perf_counter() - began) * 1000
    with clock(figures, "echo", 1000 / ROUNDS):
        for _ in range(ROUNDS):
            send(near, b"x")
            assert near.recv(10) == b"x"
    near.close()
    near, got = dial(b"g"), 0
    with clock(figures, "down"):
        send(near, b"%9d" % megabytes)
        while got < size:
            got += len(near.recv(1 << 18))
    near.close()
    near = dial(b"t")
    with clock(figures, "up"):
        send(near, b"%9d" % megabytes)
        for _ in range(megabytes):
            send(near, data)
        assert near.recv(10) == b"ok"
    near.close()
    return figures
