"""A way to the API server on which things go wrong as they are planned, for each caller apart.

    with faulty_api.serving(kubeconfig) as way:
        config = way.kubeconfig(folder, "start7")       # its requests pass here
        faulty_api.plan(way.address, "start7", "POST trainjobs", {"how": "lost"})

A request is called by its method and the collection that it is about. It may be refused by a status, or be cut before
it is sent on, lost after it was, late, or be when its caller is interrupted or killed.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

LATE = 1.2
_DEADLY = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}
_COLLECTION = re.compile(
    r"/(trainjobs|pods|nodes|configmaps|(?:cluster)?trainingruntimes|selfsubjectaccessreviews)(?=/|$)"
)
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 429: "TooManyRequests"}
_HOP = ("connection", "host", "content-length", "transfer-encoding")


class FaultyApi:
    """The way; made by `serving`.

    Attributes
    ----------
    address : str
        Where it is reached.
    jobs : dict
        Names of TrainJobs and bare pods that each caller has made and not deleted, with how many pods each is.
    most : dict
        How many pods each caller had at a time, at most.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._given = yaml.safe_load(kubeconfig.read_text())
        cluster = self._given["clusters"][0]["cluster"]
        self._server = urlsplit(cluster["server"])
        authority = cluster.get("certificate-authority-data")
        trusted = {"cadata": base64.b64decode(authority).decode()} if authority else {}
        self._tls = ssl.create_default_context(cafile=cluster.get("certificate-authority"), **trusted)
        self._faults: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.jobs: dict[str, dict[str, int]] = {}
        self.most: dict[str, int] = {}
        self.address = ""

    def kubeconfig(self, folder: Path, caller: str) -> Path:
        """A kubeconfig file whose user comes this way, as this caller."""
        said = json.loads(json.dumps(self._given))
        said["clusters"][0]["cluster"] = {"server": f"{self.address}/{caller}"}
        path = folder / f"{caller}.conf"
        path.write_text(yaml.safe_dump(said))
        return path

    def calm(self) -> None:
        """Have no more faults."""
        with self._lock:
            self._faults.clear()

    def add(self, caller: str, fault: dict[str, Any]) -> None:
        with self._lock:
            self._faults.setdefault(caller, []).append({"skip": 0, "times": 1, **fault})

    def fault(self, caller: str, action: str) -> Mapping[str, Any]:
        """What happens to a request; nothing mostly."""
        with self._lock:
            for one in self._faults.get(caller, []):
                if one["action"] != action or not one["times"]:
                    continue
                if one["skip"]:
                    one["skip"] -= 1
                    return {}
                one["times"] -= 1
                return one
        return {}

    def send_on(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, bytes]:
        """What the API server answers: status, type and body."""
        assert self._server.hostname
        there = http.client.HTTPSConnection(self._server.hostname, self._server.port, timeout=60, context=self._tls)
        try:
            there.request(method, path, body or None, dict(headers))
            answer = there.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            there.close()

    def note(self, caller: str, method: str, path: str, body: bytes) -> None:
        """Note a TrainJob or a pod that was made or deleted."""
        with self._lock:
            jobs = self.jobs.setdefault(caller, {})
            if method == "POST":
                made = json.loads(body)
                jobs[made["metadata"]["name"]] = made["spec"]["trainer"]["numNodes"] if "trainer" in made["spec"] else 1
                self.most[caller] = max(self.most.get(caller, 0), sum(jobs.values()))
            elif method == "DELETE":
                jobs.pop(urlsplit(path).path.rpartition("/")[2], None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, caller, rest = self.path.split("/", 2)
        way, path = self.server.way, f"/{rest}"
        if caller == "plan":
            way.add(rest, json.loads(body))
            self._answer(200, "application/json", b"{}")
            return
        found = _COLLECTION.search(urlsplit(path).path)
        fault = way.fault(caller, f"{self.command} {found[1] if found else ''}")
        how = str(fault.get("how", ""))
        if how in _DEADLY:
            _end(fault, how)
        if how == "cut":
            self.close_connection = True
            return
        if code := fault.get("code"):
            self._refuse(int(code))
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        status, kind, answer = way.send_on(self.command, path, headers, body)
        if found and found[1] in ("trainjobs", "pods") and status < 300:
            way.note(caller, self.command, path, answer)
        if how.endswith("-after"):
            _end(fault, how.removesuffix("-after"))
        if how == "late":
            time.sleep(LATE)
        if how == "lost":
            self.close_connection = True
            return
        self._answer(status, kind, answer)

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _serve

    def _refuse(self, code: int) -> None:
        reason = _REASONS.get(code, "InternalError")
        said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
        self._answer(code, "application/json", json.dumps({**said, "message": f"planned: {reason}"}).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    way: FaultyApi

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers that have died."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _end(fault: Mapping[str, Any], how: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(fault["pid"]), _DEADLY[how])
    time.sleep(0.05)


@contextlib.contextmanager
def serving(kubeconfig: Path) -> Iterator[FaultyApi]:
    """Serve the way to the API server of a kubeconfig file."""
    way = FaultyApi(kubeconfig)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.way = way
        way.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield way
        finally:
            server.shutdown()
            thread.join()


def plan(address: str, caller: str, action: str, details: Mapping[str, Any]) -> None:
    """Have a fault happen to a request of this process, which is this caller."""
    body = json.dumps({"action": action, "pid": os.getpid(), **details}).encode()
    with urllib.request.urlopen(f"{address}/plan/{caller}", body) as answer:
        assert answer.status == 200
