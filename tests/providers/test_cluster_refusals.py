"""What a cluster's API may answer to orders of pods: over an HTTP server of this file's own."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import NoCapacity, OrderSpent, ProvisionError, Unanswered
from sky_jupyter.machines.pods import kube_clients
from sky_jupyter.machines.pods.cluster_place import ClusterPlace
from sky_jupyter.providers import Kubernetes
from sky_jupyter.providers.base import Offer, Order
from sky_jupyter.providers.kubeflow import kubeflow_sdk
from sky_jupyter.spec.pool_spec import PoolSpec

pytest.importorskip("kubernetes")


class Api:
    """An API that has pods, by their names, and answers some requests as `refusals` says: status and text."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        # Set once requests for TrainJobs are answered.
        self.answers = threading.Event()
        self.refusals: dict[str, tuple[int, str]] = {}

    def answer(self, method: str, path: str, body: Any) -> tuple[int, str]:
        if path.endswith("/trainjobs"):
            self.answers.wait(20)
        name = body["metadata"]["name"] if method == "POST" and path.endswith("/pods") else path.rpartition("/")[2]
        if (found := self.refusals.get(f"{method} {name}")) is not None:
            return found
        if path.endswith("selfsubjectaccessreviews"):
            return 201, json.dumps({"status": {"allowed": True}})
        if method == "POST" and name in self.pods:
            return 409, json.dumps({"message": f'pods "{name}" already exists'})
        if method == "POST":
            self.pods[name] = body
            return 201, json.dumps(body)
        if method == "DELETE":
            return (200, "{}") if self.pods.pop(name, None) else (404, json.dumps({"message": "not found"}))
        return 200, json.dumps({"items": list(self.pods.values())})


@pytest.fixture
def api() -> Iterator[tuple[Api, str]]:
    made = Api()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, text = made.answer(self.command, self.path.partition("?")[0], body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_DELETE = do

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_port}"
    made.answers.set()
    server.shutdown()
    server.server_close()
    thread.join()


def config(folder: Path, server: str, user: Any = None) -> str:
    path = folder / "config"
    facts = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(facts))
    return str(path)


QUOTA = (403, json.dumps({"message": 'pods "sky" is forbidden: exceeded quota: small'}))


@pytest.mark.parametrize("lost", [False, True])
def test_of_an_order_that_is_refused_no_pod_is_left(api: tuple[Api, str], tmp_path: Path, lost: bool) -> None:
    made, server = api
    provider = Kubernetes(image="i", kubeconfig=config(tmp_path, server))  # type: ignore[arg-type]
    order = Order("pool1", f"token{lost:d}", Offer("i", None))
    name = f"sky-pool1-token{lost:d}"
    if lost:
        made.refusals[f"POST {name}-2"] = (500, "{}")
        with pytest.raises(Unanswered):
            provider.create(PoolSpec(provider=provider), 3, order)
        assert list(made.pods) == [f"{name}-0", f"{name}-1"]
    made.refusals[f"POST {name}-2"] = QUOTA
    with pytest.raises(NoCapacity, match="exceeded quota"):
        provider.create(PoolSpec(provider=provider), 3, order)
    assert made.pods == {}
    # Those that end now would be taken for the order's.
    with pytest.raises(OrderSpent):
        provider.create(PoolSpec(provider=provider), 3, order)


def test_an_api_that_is_busy_keeps_the_pods_that_were_made(api: tuple[Api, str], tmp_path: Path) -> None:
    made, server = api
    provider = Kubernetes(image="i", kubeconfig=config(tmp_path, server))  # type: ignore[arg-type]
    order = Order("pool1", "busy", Offer("i", None))
    made.refusals["POST sky-pool1-busy-1"] = (429, "{}")
    with pytest.raises(Unanswered):
        provider.create(PoolSpec(provider=provider), 2, order)
    assert list(made.pods) == ["sky-pool1-busy-0"]
    made.refusals.clear()
    assert list(provider.create(PoolSpec(provider=provider), 2, order)) == [
        f"ns/sky-pool1-busy/{one}" for one in (0, 1)
    ]


def test_a_login_page_in_place_of_the_api_is_said_in_words(api: tuple[Api, str], tmp_path: Path) -> None:
    made, server = api
    provider = Kubernetes(image="i", kubeconfig=config(tmp_path, server))  # type: ignore[arg-type]
    for page in ("<html>Please log in</html>", "[]", "null"):
        made.refusals["GET pods"] = (200, page)
        with pytest.raises(Unanswered, match="login page"):
            provider.list("pool1")


def test_a_refused_login_names_no_option_of_the_plugin(api: tuple[Api, str], tmp_path: Path) -> None:
    made, server = api
    made.refusals["GET pods"] = (401, "{}")
    version = "client.authentication.k8s.io/v1"
    code = f"print({json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': {'token': 't'}})!r})"
    plugin = {"apiVersion": version, "command": sys.executable, "args": ["-c", code, "--oidc-client-secret=hidden"]}
    provider = Kubernetes(image="i", kubeconfig=config(tmp_path, server, {"exec": plugin}))  # type: ignore[arg-type]
    with pytest.raises(ProvisionError, match="log in there again") as caught:
        provider.list("pool1")
    assert sys.executable in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert "-c" not in str(caught.value).partition("`")[2].partition("`")[0].split()


def test_an_answer_to_the_sdk_that_is_lost_is_not_waited_for(
    api: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubeflow.trainer")
    monkeypatch.setattr(kube_clients, "TIMEOUT", (5.0, 0.3))
    place = ClusterPlace((config(tmp_path, api[1]),), "x", "ns")

    def order(clients: kube_clients.KubeClients) -> None:
        where = ("trainer.kubeflow.org", "v1alpha1", "ns", "trainjobs")
        kubeflow_sdk.client(clients).backend.custom_api.create_namespaced_custom_object(*where, {})

    with pytest.raises(Unanswered, match="timed out"):
        kube_clients.ask(place, "make a TrainJob", order)
