"""The cluster of the tests itself: what it does of a real one's, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import cluster as clusters
from tests.kubernetes import containers, warden
from tests.kubernetes.admission import ENFORCE, OLD_TRAINER, QUEUE, QUEUE_NAME
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.definitions import TRAINER, TRAINER_VERSION
from tests.kubernetes.rest import Rest, RestError
from tests.kubernetes.space import Space

pytestmark = pytest.mark.root

WAIT = ["sh", "-c", "trap 'exit 143' TERM; while [ ! -e /tmp/end ]; do sleep 0.1 & wait $!; done; exit $(cat /tmp/end)"]


def train_job(name: str, nodes: int = 1, **spec: Any) -> dict[str, Any]:
    trainer = {"numNodes": nodes, "command": WAIT, "image": containers.NODE}
    trainer |= spec.pop("trainer", {})
    return {
        "apiVersion": f"{TRAINER}/{TRAINER_VERSION}",
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {"runtimeRef": {"name": "jax-distributed"}, "trainer": trainer, **spec},
    }


def start(space: Space, name: str, nodes: int = 1, **spec: Any) -> list[dict[str, Any]]:
    """The pods of a TrainJob, once all run."""
    space.cluster.rest.post(space.path("trainjobs"), train_job(name, nodes, **spec))
    return space.wait("the pods", lambda: len(found := space.pods("Running")) == nodes and found)


def end(space: Space, pod: dict[str, Any], status: int) -> None:
    space.kubectl("exec", pod["metadata"]["name"], "--", "sh", "-c", f"echo {status} > /tmp/end")


def condition(space: Space, job: str, kind: str) -> str:
    """``"True"``, ``"False"``, or nothing where the TrainJob says nothing of it."""
    found = space.cluster.rest.get(space.path("trainjobs", job)).get("status") or {}
    return next((one["status"] for one in found.get("conditions") or [] if one["type"] == kind), "")


@pytest.mark.slow
def test_a_train_job_becomes_pods_that_know_each_other(space: Space) -> None:
    first, second = start(space, "p", 2)
    assert first["spec"]["hostname"] == "p-node-0-0"
    script = "echo $JAX_PROCESS_ID $JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS $(id -u); getent hosts p-node-0-0.p"
    said = space.kubectl("exec", second["metadata"]["name"], "--", "sh", "-c", script).split()
    assert said[:5] == ["1", "2", "p-node-0-0.p:29500", "1000", first["status"]["podIP"]]
    space.cluster.rest.delete(space.path("trainjobs", "p"))
    space.wait("nothing is left", lambda: space.left() == [])


@pytest.mark.slow
def test_an_index_that_has_succeeded_is_not_replaced_and_one_that_was_evicted_is(space: Space) -> None:
    first, second = start(space, "p", 2)
    end(space, first, 0)
    space.wait("the first has succeeded", lambda: len(space.pods("Succeeded")) == 1)
    space.evict(second["metadata"]["name"])
    (again,) = space.wait(
        "the second is back",
        lambda: [
            pod
            for pod in space.pods("Running")
            if pod["spec"]["hostname"] == "p-node-0-1" and pod["metadata"]["uid"] != second["metadata"]["uid"]
        ],
    )
    end(space, again, 0)
    space.wait("the job is complete", lambda: condition(space, "p", "Complete") == "True")
    assert len(space.pods("Succeeded")) == 2


@pytest.mark.slow
def test_a_container_that_is_killed_starts_again_in_its_place(space: Space) -> None:
    (pod,) = start(space, "p")
    space.kill_container(pod["metadata"]["name"])

    def restarts() -> int:
        (now,) = space.pods()
        assert now["metadata"]["uid"] == pod["metadata"]["uid"]
        return now["status"]["containerStatuses"][0]["restartCount"]

    space.wait("it was restarted", lambda: restarts() == 1)


@pytest.mark.slow
def test_a_job_in_a_queue_waits_and_loses_its_pods_when_it_is_preempted(cluster: Cluster) -> None:
    space = cluster.space(labels={QUEUE: "on"})
    cluster.rest.post(space.path("trainjobs"), train_job("p", labels={QUEUE_NAME: "q"}))
    space.wait("it is suspended", lambda: condition(space, "p", "Suspended") == "True")
    assert space.pods() == []
    space.admit_all()
    space.wait("it runs", lambda: space.pods("Running"))
    space.suspend("p")
    space.wait("its pods are gone", lambda: not space.all("pods"))
    assert condition(space, "p", "Suspended") == "True"
    space.close()


@pytest.mark.slow
def test_a_deadline_ends_a_job(space: Space) -> None:
    space.cluster.rest.post(space.path("trainjobs"), train_job("p", activeDeadlineSeconds=1))
    space.wait("it has failed", lambda: condition(space, "p", "Failed") == "True")
    space.wait("its pods are gone", lambda: not space.all("pods"))


@pytest.mark.slow
def test_what_the_server_does_not_know_or_allow_is_dropped_or_refused(cluster: Cluster) -> None:
    space = cluster.space(labels={OLD_TRAINER: "2.1", ENFORCE: "restricted"})
    job = cluster.rest.post(
        space.path("trainjobs"), train_job("p", activeDeadlineSeconds=600, runtimePatches=[], odd=1)
    )
    assert set(job["spec"]) == {"runtimeRef", "trainer", "suspend", "managedBy"}
    with pytest.raises(RestError, match=r"spec\.trainer: field is immutable"):
        cluster.rest.patch(space.path("trainjobs", "p"), {"spec": {"trainer": {"numNodes": 3}}})
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": containers.NODE}]}}
    space.wait("the service account", lambda: space._has_account("default"))
    with pytest.raises(RestError, match=r"violates PodSecurity.*runAsNonRoot=true"):
        cluster.rest.post(space.path("pods"), pod)
    space.close()


@pytest.mark.slow
def test_a_token_that_has_expired_is_refused_until_there_is_another(space: Space) -> None:
    def ada() -> Rest:
        return Rest(space.cluster.server(), space.cluster.authority, space._tokens["ada"])

    space.kubeconfig("ada", plugin=True)
    assert ada().get(space.path("trainjobs"))["items"] == []
    with pytest.raises(RestError, match="403"):
        ada().get(space.path("secrets"))
    space.expire("ada")
    with pytest.raises(RestError, match="401"):
        ada().get(space.path("trainjobs"))
    space.renew("ada")
    assert space.kubectl("get", "pods", user="ada") == ""
    assert json.loads(space._credential("ada").read_text())["status"]["token"] == space._tokens["ada"]


@pytest.mark.slow
def test_a_door_is_cut_and_an_api_server_stopped_for_one_namespace_alone(cluster: Cluster) -> None:
    one, other = cluster.space(), cluster.space()
    one.own_api()

    def reach(space: Space) -> Any:
        rest = Rest(cluster.server(space.address, space.port), cluster.authority, cluster._admin)
        return rest.get("/api", timeout=2.0)

    assert reach(one)
    one.cut()
    with pytest.raises(Exception, match=r"timed out|timeout"):
        reach(one)
    assert reach(other)
    one.mend()
    assert reach(one)
    one.stop_api()
    with pytest.raises(Exception, match="refused"):
        reach(one)
    assert reach(other)
    one.start_api()
    assert reach(one)
    one.close()
    other.close()


@pytest.mark.slow
def test_a_notebook_in_the_cluster_reaches_the_api_server_by_its_service_account(space: Space) -> None:
    notebook = space.notebook()
    code = (
        "from kubernetes import client, config\n"
        "config.load_incluster_config()\n"
        f"print(len(client.CoreV1Api().list_namespaced_pod({space.name!r}).items))\n"
        "import sky_jupyter; print(sky_jupyter.__file__)\n"
    )
    said = notebook.run(code)
    assert said.splitlines() == ["1", str(clusters.ROOT / "sky_jupyter" / "__init__.py")]


@pytest.mark.slow
def test_nothing_of_a_cluster_stays_when_its_owner_is_killed(cluster: Cluster) -> None:
    code = (
        "import sys, time\n"
        "from tests.kubernetes import cluster\n"
        "with cluster.running() as made:\n"
        "    made.space('p').run_pod('p', 'docker.io/library/sky-node:1', 'sleep', '1000')\n"
        "    print(made.folder, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=clusters.ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert (folder / "keeper.sock").exists()
    inside = _namespace(folder)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while folder.exists() or folder.with_suffix(".lock").exists():
        assert time.monotonic() < deadline, sorted(folder.rglob("*"))[:10]
        time.sleep(0.05)
    assert not [one for one in Path("/proc").iterdir() if one.name.isdigit() and _network(one) == inside]
    assert not [group for root in warden.hierarchies() for group in root.glob(f"*{folder.name}*")]
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if folder.name in line]


def _namespace(folder: Path) -> str:
    """The network namespace of the cluster with this folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if "etcd" in command and str(folder) in command:
                return _network(process)
    raise AssertionError("the cluster has no etcd")


def _network(process: Path) -> str:
    try:
        return os.readlink(process / "ns" / "net")
    except OSError:
        return ""
