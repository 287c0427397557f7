"""A namespace of a test, with what its user may do there, its door to the API server, and what can befall its pods."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kubernetes import authority, keeper
from tests.kubernetes.admission import QUEUE_NAME
from tests.kubernetes.definitions import JOBSET, JOBSET_VERSION, TRAINER, TRAINER_VERSION
from tests.kubernetes.rest import Rest, RestError

if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster

Json = dict[str, Any]

PATIENCE = 120.0
ADMIN = "admin"
# What a user needs, and no more; ``docs/kubeflow.md`` hands the same to administrators.
RULES: list[Json] = [
    {"apiGroups": [TRAINER], "resources": ["trainjobs"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [TRAINER], "resources": ["trainingruntimes"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
]
CLUSTER_RULES: list[Json] = [
    {"apiGroups": [TRAINER], "resources": ["clustertrainingruntimes"], "verbs": ["get", "list"]}
]
# More for pools of bare pods, which nobody else makes.
POD_RULES: list[Json] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}]
_RBAC = "rbac.authorization.k8s.io"


class Space:
    """One namespace; made by `cluster.Cluster.space`.

    Attributes
    ----------
    name : str
        The namespace's.
    address, port : str, int
        Where this namespace's laptop reaches the API server.
    """

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self.cluster, self.name, self.address, self.port = cluster, name, address, keeper.PORT
        self.folder = cluster.folder / "spaces" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tokens: dict[str, str] = {}
        self.allow("ada", RULES, CLUSTER_RULES)

    def close(self) -> None:
        """Give up all that is in it; the cluster removes it in its own time."""
        self.cluster.rest.remove(f"/api/v1/namespaces/{self.name}")

    # Users.

    def allow(
        self, user: str, rules: Sequence[Json], cluster_rules: Sequence[Json] = (), *, kind: str = "User"
    ) -> None:
        """Let a user, or a ``ServiceAccount`` of this namespace, do this here, and the other everywhere."""
        rest, name = self.cluster.rest, f"{kind.lower()}-{user}-{secrets.token_hex(3)}"
        for which, given, path in (
            ("Role", rules, f"/namespaces/{self.name}/role"),
            ("ClusterRole", cluster_rules, "/clusterrole"),
        ):
            if not given:
                continue
            subject: Json = {"kind": kind, "name": user}
            subject |= {"namespace": self.name} if kind == "ServiceAccount" else {"apiGroup": _RBAC}
            meta = {"name": f"{self.name}-{name}" if which == "ClusterRole" else name}
            binding = {
                "metadata": meta,
                "subjects": [subject],
                "roleRef": {"apiGroup": _RBAC, "kind": which, "name": meta["name"]},
            }
            rest.post(f"/apis/{_RBAC}/v1{path}s", {"metadata": meta, "rules": list(given)})
            rest.post(f"/apis/{_RBAC}/v1{path}bindings", binding)
            self.wait(f"{user} is allowed", lambda given=given: self._is_allowed(user, given[-1], kind))  # type: ignore[misc]

    def _is_allowed(self, user: str, rule: Json, kind: str) -> bool:
        """Whether the API server has seen the rule, as it does a moment after it was made."""
        resource, _, part = rule["resources"][0].partition("/")
        asked = {"group": rule["apiGroups"][0], "resource": resource, "subresource": part, "verb": rule["verbs"][0]}
        name = f"system:serviceaccount:{self.name}:{user}" if kind == "ServiceAccount" else user
        spec = {"user": name, "resourceAttributes": {"namespace": self.name, **asked}}
        body = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}
        review = self.cluster.rest.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return bool(review["status"]["allowed"])

    def kubeconfig(self, user: str = "ada", *, plugin: bool = False) -> Path:
        """A kubeconfig file of a user, with this namespace; ``admin`` may do everything.

        Parameters
        ----------
        user : str
            Whose; known to the API server by a token.
        plugin : bool
            Whether a program has to be asked for the token each time, as clouds' own have it: see `renew`.
        """
        if user not in self._tokens:
            self.renew(user)
        path = self.folder / f"{user}{'-plugin' if plugin else ''}-{self.port}.conf"
        said: Json = {"token": self._tokens[user]}
        if plugin:
            script = f"echo >> {self._calls(user)}; cat {self._credential(user)}"
            version = "client.authentication.k8s.io/v1beta1"
            said = {"exec": {"apiVersion": version, "command": "sh", "args": ["-c", script]}}
        path.touch(mode=0o600)
        server = self.cluster.server(self.address, self.port)
        path.write_text(authority.kubeconfig(server, self.cluster.authority, said, self.name))
        return path

    def expire(self, user: str = "ada") -> None:
        """The API server knows the user's token no longer; it keeps an answer for ten seconds, which this waits for."""
        token = self._tokens[user]
        self.cluster.expire(token)
        asked = Rest(self.cluster.server(port=self.port), self.cluster.authority, token)
        self.wait("the token has expired", lambda: not _accepted(asked))

    def renew(self, user: str = "ada", *, lasts: float = 3600.0) -> None:
        """Give the user a new token, which the plugin of their kubeconfig hands out from now on."""
        groups = ["system:masters"] if user == ADMIN else ["people"]
        self._tokens[user] = token = self.cluster.give_token(user, *groups, lasts=lasts)
        until = datetime.now(timezone.utc) + timedelta(seconds=lasts)
        status = {"token": token, "expirationTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        version = "client.authentication.k8s.io/v1beta1"
        credential = {"apiVersion": version, "kind": "ExecCredential", "status": status}
        self._credential(user).touch(mode=0o600)
        self._credential(user).write_text(json.dumps(credential))

    def plugin_calls(self, user: str = "ada") -> int:
        """How often the plugin of a user's kubeconfig has been run."""
        calls = self._calls(user)
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def _credential(self, user: str) -> Path:
        return self.folder / f"{user}.credential.json"

    def _calls(self, user: str) -> Path:
        return self.folder / f"{user}.calls"

    # The way to the API server.

    def cut(self) -> None:
        """Nothing passes between this namespace's laptop and the API server; nobody is told."""
        self.cluster.ask("cut", self.address)

    def mend(self) -> None:
        """Undo `cut`."""
        self.cluster.ask("mend", self.address)

    def own_api(self) -> None:
        """Have an API server of its own for this namespace's laptop, which `stop_api` may end; it takes seconds."""
        self.port = self.cluster.ask("more_api")

    def stop_api(self) -> None:
        """End this namespace's own API server as a crash does."""
        self.cluster.ask("stop_api", self.port)

    def start_api(self) -> None:
        """Start it again, and wait until it serves."""
        self.cluster.ask("start_api", self.port)

    def restart_api(self) -> None:
        self.stop_api()
        self.start_api()

    # What is there.

    def kubectl(self, *words: str, user: str = ADMIN) -> str:
        """What kubectl prints, in this namespace."""
        return self.cluster.run_kubectl(self.kubeconfig(user), *words)

    def path(self, plural: str, name: str = "") -> str:
        """The path of a collection of this namespace, or of an object of it."""
        groups = {
            "trainjobs": f"{TRAINER}/{TRAINER_VERSION}",
            "jobsets": f"{JOBSET}/{JOBSET_VERSION}",
            "jobs": "batch/v1",
        }
        base = f"/apis/{groups[plural]}" if plural in groups else "/api/v1"
        return f"{base}/namespaces/{self.name}/{plural}{f'/{name}' if name else ''}"

    def all(self, plural: str) -> list[Json]:
        """The objects of a collection: ``"pods"``, ``"trainjobs"``, ``"jobsets"``, ``"jobs"``, ``"services"``, …."""
        return self.cluster.rest.get(self.path(plural))["items"]

    def pods(self, phase: str = "") -> list[Json]:
        """The pods that are not on their way out, in the order of their names; of one phase only if given."""
        found = [pod for pod in self.all("pods") if not pod["metadata"].get("deletionTimestamp")]
        found = [pod for pod in found if phase in ("", pod["status"].get("phase"))]
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def left(self) -> list[str]:
        """All that somebody has made here, as ``plural/name``."""
        found = []
        for plural in ("trainjobs", "jobsets", "jobs", "pods", "services", "configmaps", "secrets"):
            names = (one["metadata"]["name"] for one in self.all(plural))
            found += [f"{plural}/{name}" for name in names if not _given(plural, name)]
        return found

    def wait(self, what: str, done: Callable[[], Any]) -> Any:
        """What `done` returns once that is true."""
        end = time.monotonic() + PATIENCE
        while not (found := done()):
            assert time.monotonic() < end, f"{what} in {self.name}: not after {PATIENCE:.0f} s; {self.described()}"
            time.sleep(0.05)
        return found

    def described(self) -> str:
        """Pods and events, for a failure's message."""
        rows = [f"{pod['metadata']['name']} {json.dumps(pod['status'])}" for pod in self.all("pods")]
        rows += [f"{one['involvedObject']['name']}: {one.get('message')}" for one in self.all("events")[-10:]]
        return "\n".join(rows)

    # What befalls pods.

    def evict(self, pod: str) -> None:
        """Evict a pod, as when its node is drained: it is told to end, and its Job makes another."""
        eviction = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.name},
        }
        self.cluster.rest.post(f"{self.path('pods', pod)}/eviction", eviction)

    def kill_container(self, pod: str) -> None:
        """End a pod's container as the kernel does where its memory is up; the kubelet starts it again in its place."""
        status = self.cluster.rest.get(self.path("pods", pod))["status"]
        number = status["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        sock = str(self.cluster.folder / "containerd.sock")
        command = ["ctr", "--address", sock, "-n", "k8s.io", "task", "kill", "--signal", "SIGKILL", number]
        code, _, errors = self.cluster.ask("run", command)
        assert code == 0, errors

    def suspend(self, job: str, value: bool = True) -> None:
        """Suspend a TrainJob, or let it go on, as Kueue does when it preempts or admits one."""
        self.cluster.rest.patch(self.path("trainjobs", job), {"spec": {"suspend": value}})

    def admit_all(self) -> None:
        """Let all TrainJobs with a queue's name go on."""
        for job in self.all("trainjobs"):
            if QUEUE_NAME in (job["metadata"].get("labels") or {}) and job["spec"].get("suspend"):
                self.suspend(job["metadata"]["name"], False)

    def run_pod(self, name: str, image: str, *command: str, **spec: Any) -> Json:
        """Start a pod of one container, and wait until that runs."""
        container = {"name": "main", "image": image, "command": list(command)}
        container |= spec.pop("container", {})
        body = {
            "metadata": {"name": name},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
        }
        self.wait("the service account", lambda: self._has_account(spec.get("serviceAccountName", "default")))
        self.cluster.rest.post(self.path("pods"), body)
        return self.wait(f"{name} runs", lambda: self._running(name))

    def _running(self, name: str) -> Json | None:
        pod = self.cluster.rest.get(self.path("pods", name))
        return pod if pod["status"].get("phase") in ("Running", "Succeeded") else None

    def _has_account(self, name: str) -> bool:
        account = self.cluster.rest.find(self.path("serviceaccounts", name))
        return bool(account and account.get("secrets"))

    def notebook(self, name: str = "notebook", account: str = "notebook", image: str = "") -> Notebook:
        """Start a pod in which this very Python and this working copy are, as a notebook server's pod has them.

        Its service account may do what ``ada`` may, and there is no kubeconfig.
        """
        from tests.kubernetes import containers

        path = self.path("serviceaccounts")
        try:
            self.cluster.rest.post(path, {"metadata": {"name": account}})
            self.allow(account, RULES, CLUSTER_RULES, kind="ServiceAccount")
        except RestError as error:
            if error.status != 409:
                raise
        places = list(
            dict.fromkeys(
                [str(keeper.ROOT), sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
            )
        )
        volumes = [{"name": f"here-{number}", "hostPath": {"path": place}} for number, place in enumerate(places)]
        mounts = [
            {"name": f"here-{number}", "mountPath": place, "readOnly": True} for number, place in enumerate(places)
        ]
        environment = [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]
        pod = self.run_pod(
            name,
            image or containers.ROOT_NODE,
            "sh",
            "-c",
            "while :; do sleep 1 & wait; done",
            container={"volumeMounts": mounts, "env": environment},
            volumes=volumes,
            serviceAccountName=account,
        )
        return Notebook(self, pod)


class Notebook:
    """A pod in which commands run with this Python; made by `Space.notebook`."""

    def __init__(self, space: Space, pod: Json) -> None:
        self.space, self.pod = space, pod
        self.name: str = pod["metadata"]["name"]

    def run(self, code: str) -> str:
        """What Python code prints there, in the working copy's folder; a failure says what it wrote of errors."""
        script = f"cd {keeper.ROOT} && exec {sys.executable} -"
        from tests.kubernetes import binaries

        command = [str(binaries.place() / "bin" / "kubectl"), "--kubeconfig", str(self.space.kubeconfig(ADMIN))]
        command += ["exec", "-i", self.name, "--", "sh", "-c", script]
        end = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(command, input=code, capture_output=True, text=True)
            if done.returncode == 0:
                # Warnings, which a failing assertion of the test shows.
                sys.stderr.write(done.stderr)
                return done.stdout
            if "unable to upgrade connection" not in done.stderr or time.monotonic() > end:
                raise AssertionError(
                    f"the notebook's code ended with {done.returncode}:\n{done.stdout}\n{done.stderr}\n"
                    f"{self.space.described()}"
                )
            # The kubelet does not know the container yet: nothing has run.
            time.sleep(0.2)


def _accepted(asked: Rest) -> bool:
    try:
        asked.get("/api")
    except RestError as error:
        if error.status != 401:
            raise
        return False
    return True


def _given(plural: str, name: str) -> bool:
    """Whether each namespace has such an object of its own accord."""
    return (plural, name) == ("configmaps", "kube-root-ca.crt") or (plural == "secrets" and "-token-" in name)
