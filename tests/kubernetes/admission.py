"""What stands before the API server's storage: rules that 1.20 has no words for, and who has which token.

Namespaces ask for them by labels, so that tests beside each other have different clusters:

- ``sky-tests/trainer: "2.1"``: the fields of TrainJobs that Trainer 2.1 does not know are dropped.
- ``sky-tests/queue: "on"``: TrainJobs with a queue's name begin suspended, as with Kueue.
- ``pod-security.kubernetes.io/enforce: restricted``: pods have to be as restricted namespaces want them.

Everywhere, what may not be changed of a TrainJob is refused, and the node says that it has `CPUS` processors: tests
beside each other would wait for the few that the machine has, and a pod's own limit holds all the same.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kubernetes.definitions import TRAINER, TRAINER_VERSION

Json = dict[str, Any]

PORT, TOKEN_PORT = 9443, 9442
CPUS = 32
OLD_TRAINER, QUEUE, ENFORCE = "sky-tests/trainer", "sky-tests/queue", "pod-security.kubernetes.io/enforce"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
NEW_FIELDS = ("runtimePatches", "activeDeadlineSeconds")
IMMUTABLE = ("trainer", "runtimeRef", "managedBy", "activeDeadlineSeconds")


def serve(certificate: Path, key: Path, tokens: Path) -> None:
    """Serve both, in threads that last as long as the process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    admission = ThreadingHTTPServer(("127.0.0.1", PORT), _handler(review))
    admission.socket = context.wrap_socket(admission.socket, server_side=True)
    known = ThreadingHTTPServer(("127.0.0.1", TOKEN_PORT), _handler(lambda path, asked: who(tokens, asked)))
    for server in (admission, known):
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()


def configurations(authority: Path) -> list[tuple[str, Json]]:
    """Path and object of each configuration that the API server is to have."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    jobs = {"apiGroups": [TRAINER], "apiVersions": [TRAINER_VERSION], "resources": ["trainjobs"]}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    nodes = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes/status"]}

    def hook(name: str, rule: Json, operations: list[str], labels: dict[str, str]) -> Json:
        return {
            "name": f"{name}.sky-tests.org",
            "clientConfig": {"url": f"https://127.0.0.1:{PORT}/{name}", "caBundle": bundle},
            "rules": [{**rule, "operations": operations}],
            "namespaceSelector": {"matchLabels": labels},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }

    mutating = [
        hook("older-trainer", jobs, ["CREATE", "UPDATE"], {OLD_TRAINER: "2.1"}),
        hook("queue", jobs, ["CREATE"], {QUEUE: "on"}),
        hook("processors", nodes, ["UPDATE"], {}),
    ]
    validating = [
        hook("immutable", jobs, ["UPDATE"], {}),
        hook("restricted", pods, ["CREATE"], {ENFORCE: "restricted"}),
    ]
    found = []
    for kind, hooks in (("Mutating", mutating), ("Validating", validating)):
        name = f"{kind}WebhookConfiguration"
        version = "admissionregistration.k8s.io/v1"
        one = {"apiVersion": version, "kind": name, "metadata": {"name": "sky-tests"}, "webhooks": hooks}
        found.append((f"/apis/{version}/{name.lower()}s", one))
    return found


def review(path: str, asked: Json) -> Json:
    """The answer to an AdmissionReview."""
    request = asked["request"]
    new, old = request.get("object") or {}, request.get("oldObject") or {}
    answer: Json = {"uid": request["uid"], "allowed": True}
    changes: list[Json] = []
    refusals: list[str] = []
    if path == "/older-trainer":
        changes = [{"op": "remove", "path": f"/spec/{name}"} for name in NEW_FIELDS if name in new["spec"]]
    elif path == "/queue" and QUEUE_NAME in (new["metadata"].get("labels") or {}):
        changes = [{"op": "add", "path": "/spec/suspend", "value": True}]
    elif path == "/processors" and new["status"].get("capacity"):
        places = ("/status/capacity/cpu", "/status/allocatable/cpu")
        changes = [{"op": "add", "path": place, "value": str(CPUS)} for place in places]
    elif path == "/immutable":
        refusals = [f"spec.{name}: field is immutable" for name in IMMUTABLE if _differs(old, new, name)]
    elif path == "/restricted":
        refusals = list(violations(new))
    if changes:
        patch = base64.b64encode(json.dumps(changes).encode()).decode()
        answer.update(patchType="JSONPatch", patch=patch)
    if refusals:
        text = "; ".join(refusals)
        if path == "/restricted":
            text = f'violates PodSecurity "restricted:latest": {text}'
        answer.update(allowed=False, status={"code": 403 if path == "/restricted" else 422, "message": text})
    return {"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": answer}


def _differs(old: Json, new: Json, name: str) -> bool:
    return old["spec"].get(name) != new["spec"].get(name)


def violations(pod: Json) -> Iterator[str]:
    """What the restricted Pod Security Standard says against a pod."""
    spec = pod["spec"]
    whole = spec.get("securityContext") or {}
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec.get("volumes") or []:
        if not allowed & volume.keys():
            yield f'volume "{volume["name"]}" uses a restricted volume type'
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    for container in (*spec["containers"], *(spec.get("initContainers") or [])):
        own, named = (
            container.get("securityContext") or {},
            f'container "{container["name"]}" must set securityContext.',
        )
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            yield f"{named}allowPrivilegeEscalation=false"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or []) or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f'{named}capabilities.drop=["ALL"]'
        if own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True:
            yield f"{named}runAsNonRoot=true"
        if own.get("runAsUser", whole.get("runAsUser")) == 0:
            yield f"{named}runAsUser to a user other than 0"
        profile = (own.get("seccompProfile") or whole.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            yield f'{named}seccompProfile.type to "RuntimeDefault" or "Localhost"'


def who(tokens: Path, asked: Json) -> Json:
    """The answer to a TokenReview, by the file of tokens as it is now."""
    known = json.loads(tokens.read_text()) if tokens.exists() else {}
    found = known.get(asked["spec"].get("token", ""))
    status: Json = {"authenticated": False}
    if found and time.time() < found["until"]:
        user = {"username": found["user"], "uid": found["user"], "groups": found["groups"]}
        status = {"authenticated": True, "user": user}
    return {"apiVersion": asked["apiVersion"], "kind": asked["kind"], "status": status}


def _handler(answer: Callable[[str, Json], Json]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer(self.path.partition("?")[0], asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler
