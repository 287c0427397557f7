"""The part of a cluster's API that streams of pods need, over TLS: real commands and real ports of this machine.

Its WebSockets are those of the kubelet (``v4``), or of API servers since 1.30 (``v5``, whose clients can end a
command's input). It can refuse, cut its connections, and say what no server says.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import ipaddress
import json
import os
import socket
import ssl
import struct
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
TOKEN = "the-token-of-the-tests"
POD = {
    "metadata": {"name": "p-0", "namespace": "ns", "uid": "u-1"},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "containerStatuses": [{"name": "node", "state": {"running": {}}}],
    },
}


class Stream:
    """Server's end of a WebSocket."""

    def __init__(self, made: socket.socket, api: PodApi) -> None:
        self.socket, self._api = made, api
        self._file = made.makefile("rb")
        self._lock = threading.Lock()

    def send(self, channel: int, data: bytes) -> None:
        self.raw(frame(bytes([channel]) + data))

    def raw(self, data: bytes) -> None:
        with self._lock:
            self.socket.sendall(data)

    def receive(self) -> tuple[int, bytes] | None:
        """The next message's channel and data; None at the end."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                head = self._file.read(2)
                if len(head) == 2:
                    code, size = head[0] & 15, head[1] & 127
                    assert head[1] & 128, "a client's frame has a mask"
                    if size > 125:
                        size = int.from_bytes(self._file.read(2 if size == 126 else 8), "big")
                    mask = self._file.read(4)
                    data = self._file.read(size)
                    if any(mask):
                        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
                    if code == 9:
                        self._api.pings += 1
                        if not self._api.deaf:
                            self.raw(frame(data, 10))
                        continue
                    if code == 2 and data:
                        return data[0], data[1:]
                    if code in (2, 10):
                        continue
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.raw(frame(struct.pack("!H", 1000), 8))
        hang_up(self.socket)


def frame(data: bytes, code: int = 2, final: bool = True) -> bytes:
    """A server's frame."""
    size = len(data)
    head = bytes([(0x80 if final else 0) | code])
    if size < 126:
        return head + bytes([size]) + data
    return head + (b"\x7e" + struct.pack("!H", size) if size < 1 << 16 else b"\x7f" + struct.pack("!Q", size)) + data


def hang_up(made: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(made, socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        made.close()


class PodApi:
    """An API server with one pod, made by `serve`."""

    def __init__(self, folder: Path, protocols: tuple[str, ...] = (V4,)) -> None:
        self.folder, self.protocols = folder, protocols
        self.token = TOKEN
        self.pod: dict[str, Any] = json.loads(json.dumps(POD))
        # Answers in place of what a path would give: by "pods", "pods/exec", "pods/portforward".
        self.refusals: dict[str, tuple[int, str]] = {}
        # In place of a command: called with the stream.
        self.script: Callable[[Stream], None] | None = None
        self.asked: list[str] = []
        # Whether nothing is answered any more, and how many pings were.
        self.deaf, self.pings = False, 0
        self.commands: list[subprocess.Popen[bytes]] = []
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*certificate(folder))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.home = folder / "home"
        self.home.mkdir()
        self._accepting()

    def _accepting(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def kubeconfig(self) -> Path:
        return self.write_kubeconfig({"token": self.token})

    def write_kubeconfig(self, user: dict[str, Any], name: str = "kubeconfig") -> Path:
        path = self.folder / name
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.folder / "cert.pem")}
        context = {"cluster": "c", "user": "u"}
        facts = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        path.write_text(json.dumps(facts))
        return path

    def ask_for_certificate(self) -> None:
        """Let in whoever has its own certificate, instead of a token."""
        self.token = ""
        self._tls.load_verify_locations(self.folder / "cert.pem")
        self._tls.verify_mode = ssl.CERT_REQUIRED

    def stop(self) -> None:
        """As an API server that ends: all connections end, and no other is made."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting()

    def cut(self) -> None:
        with self._lock:
            left, self._open = self._open, []
        for one in left:
            hang_up(one)

    def close(self) -> None:
        self.stop()
        for command in self.commands:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, 9)
            command.wait()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                made, _ = listener.accept()
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            made = self._tls.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        with self._lock:
            self._open.append(made)
        with contextlib.suppress(OSError, ValueError):
            self._answer(made)
        hang_up(made)

    def _answer(self, made: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (part := made.recv(65536)):
                return None
            data += part
        first, *lines = data.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        url = urllib.parse.urlsplit(first.split(" ")[1])
        query = urllib.parse.parse_qs(url.query)
        parts = url.path.split("/")
        resource = "/".join(["pods", *parts[7:]])
        with self._lock:
            self.asked.append(resource)
        if self.token and headers.get("authorization", "").partition(" ")[2] != self.token:
            return _tell(made, 401, {"message": "Unauthorized"})
        if resource in self.refusals:
            status, message = self.refusals[resource]
            about = {"kind": "Status", "message": message, "details": {"name": parts[6], "kind": "pods"}}
            return _tell(made, status, about) if status else made.sendall(message.encode())
        if parts[4:7] != ["ns", "pods", "p-0"]:
            about = {"kind": "Status", "details": {"name": parts[6], "kind": "pods"}}
            return _tell(made, 404, {**about, "message": f'pods "{parts[6]}" not found'})
        if resource == "pods":
            return _tell(made, 200, self.pod)
        offered = [name.strip() for name in headers["sec-websocket-protocol"].split(",")]
        protocol = next(name for name in offered if name in (self.protocols if resource == "pods/exec" else (V4,)))
        digest = base64.b64encode(hashlib.sha1((headers["sec-websocket-key"] + _GUID).encode()).digest()).decode()
        made.sendall(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {digest}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
        )
        stream = Stream(made, self)
        if self.script is not None:
            self.script(stream)
        elif resource == "pods/exec":
            self._exec(stream, query["command"])
        else:
            _forward(stream, int(query["ports"][0]))
        return None

    def _exec(self, stream: Stream, argv: list[str]) -> None:
        stream.send(1, b"")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        try:
            command = subprocess.Popen(
                argv, stdin=-1, stdout=-1, stderr=-1, env=env, cwd=self.home, start_new_session=True
            )
        except OSError as error:
            stream.send(3, json.dumps({"status": "Failure", "code": 500, "message": f"{argv[0]}: {error}"}).encode())
            return stream.close()
        with self._lock:
            self.commands.append(command)
        assert command.stdin is not None
        threads = [
            threading.Thread(target=_pour, args=(stream, channel, pipe), daemon=True)
            for channel, pipe in ((1, command.stdout), (2, command.stderr))
        ]
        feeder = threading.Thread(target=_feed, args=(stream, command.stdin), daemon=True)
        for thread in (*threads, feeder):
            thread.start()
        status = command.wait()
        for thread in threads:
            thread.join()
        status = status if status >= 0 else 128 - status
        causes = {"causes": [{"reason": "ExitCode", "message": str(status)}]}
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": causes}
        told = failed if status else {"status": "Success"}
        with contextlib.suppress(OSError):
            stream.send(3, json.dumps(told).encode())
        return stream.close()


def _tell(made: socket.socket, status: int, facts: Any) -> None:
    body = json.dumps(facts).encode()
    made.sendall(f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def _pour(stream: Stream, channel: int, pipe: Any) -> None:
    """Send what a command says; what nobody hears any more is thrown away, as containerd's."""
    heard = True
    while data := pipe.read1(32768):
        if heard:
            try:
                stream.send(channel, data)
            except OSError:
                heard = False
    pipe.close()


def _feed(stream: Stream, pipe: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while (message := stream.receive()) is not None:
            channel, data = message
            if channel == 255:
                pipe.close()
            elif data:
                pipe.write(data)
                pipe.flush()
    with contextlib.suppress(OSError):
        pipe.close()


def _forward(stream: Stream, port: int) -> None:
    for channel in (0, 1):
        stream.send(channel, port.to_bytes(2, "little"))
    try:
        far = socket.create_connection(("127.0.0.1", port))
    except OSError as error:
        stream.send(1, f"error forwarding port {port}: {error}".encode())
        return stream.close()

    def up() -> None:
        with contextlib.suppress(OSError):
            while (message := stream.receive()) is not None:
                if message[0] == 0:
                    far.sendall(message[1])
        hang_up(far)

    threading.Thread(target=up, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := far.recv(32768):
            stream.send(0, data)
    far.close()
    return stream.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine's loopback, which is its own authority; and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@contextlib.contextmanager
def serve(folder: Path, *protocols: str) -> Iterator[PodApi]:
    """An API server whose pod's commands run on this machine."""
    made = PodApi(folder, protocols or (V4,))
    try:
        yield made
    finally:
        made.close()
