"""TrainJobs of Kubeflow: made by the SDK, listed, described and deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import OrderSpent, ProvisionError
from ...machines import container_command
from ...machines.pods import kube_clients, kube_errors
from ..provisioning_types import ENDED, ENDING, QUEUED, MachineRecord
from . import access_review, kubeflow_sdk, pod_endings, pod_records, pod_template, runtimes
from .pod_records import PodGroup

if TYPE_CHECKING:
    from ...machines.pods.cluster_place import ClusterPlace
    from ...machines.pods.kube_clients import KubeClients
    from ...spec.pool_spec import PoolSpec
    from ..provisioning_types import Order
    from .context import TrainJobContext

_QUEUE = "kueue.x-k8s.io/queue-name"
_lock = threading.Lock()
# TrainJobs that this process has deleted: a retried order must not make them again.
_deleted: set[tuple[ClusterPlace, str]] = set()


def create(provider: TrainJobContext, spec: PoolSpec, count: int, order: Order) -> list[str]:
    """Create an order's TrainJob unless it exists; return its machines' ids."""
    access, name = provider.access, pod_template.job_name(order)
    with _lock:
        if (access, name) in _deleted:
            raise OrderSpent(f"{access}: the TrainJob {name} of this order was deleted")
    access_review.require(access, access_review.TRAIN_JOBS, (access_review.RUNTIMES,))
    runtime = runtimes.chosen(provider, spec)
    image, wished = provider.image or runtime.trainer.image, pod_template.resources(provider, spec)
    queue = {_QUEUE: provider.queue} if provider.queue else {}

    def make(clients: KubeClients) -> Mapping[str, Any]:
        try:
            kubeflow_sdk.train(
                *(kubeflow_sdk.client(clients), runtime, provider, order, count),
                image=image,
                resources=wished,
                command=container_command.command(order.until, file=provider.power_file),
                labels=queue,
            )
        except Exception as error:
            if kube_errors.status_of(error) != kube_errors.CONFLICT:
                raise
        made: Mapping[str, Any] = clients.call("GET", _path(access, name))
        return made

    job = kube_clients.ask(access, f"make the TrainJob {name}", make)
    group = group_of(job)
    if group.pool != order.pool or group.state in (ENDED, ENDING):
        raise OrderSpent(f"{access}: there is a TrainJob {name} already, {group.state or 'of another pool'}")
    if not job["spec"].get("runtimePatches"):
        delete(access, name)
        raise ProvisionError(
            f"{access}: its Kubeflow Trainer is older than 2.2: it has dropped the pods' volumes and security context "
            f"(runtimePatches) from the TrainJob, which is deleted again. The administrator must install 2.2 or later; "
            "--provider kubernetes (sky.Kubernetes) makes pods without Trainer"
        )
    return [group.id(index) for index in range(group.count)]


def group_of(job: Mapping[str, Any]) -> PodGroup:
    """Return the group of a TrainJob's pods."""
    metadata, spec = job["metadata"], job["spec"]
    facts = pod_records.facts(metadata, str(spec["runtimeRef"]["name"]))
    conditions = {one["type"]: one for one in (job.get("status") or {}).get("conditions") or ()}
    conditions = {kind: one for kind, one in conditions.items() if one.get("status") == "True"}
    state, reason = "", ""
    if metadata.get("deletionTimestamp"):
        state, reason = ENDING, "its TrainJob is being deleted"
    for kind, told in (("Failed", ENDED), ("Complete", ENDED), ("Suspended", QUEUED)):
        if kind in conditions and not state:
            state, reason = told, reason or _said(conditions[kind])
    if not state and spec.get("suspend"):
        state, reason = QUEUED, "its TrainJob is suspended: it waits for its queue"
    count = int((spec.get("trainer") or {}).get("numNodes") or 1)
    return PodGroup(str(metadata["namespace"]), str(metadata["name"]), count, facts.pool, facts, state, reason)


def _said(condition: Mapping[str, Any]) -> str:
    words = [condition.get("reason", ""), condition.get("message", "")]
    return ": ".join(dict.fromkeys(filter(None, words))) or str(condition["type"])


def of_pool(provider: TrainJobContext, pool: str | None) -> list[MachineRecord]:
    """Return the machines of a pool's TrainJobs, or of all that are ours."""
    return _listed(provider.access, pod_template.POOL if pool is None else pod_template.selector([pool]))


def describe(provider: TrainJobContext, ids: Sequence[str]) -> list[MachineRecord]:
    """Return the state of machines; those whose TrainJob is gone have ended."""
    found: dict[str, MachineRecord] = {}
    for namespace, several in pod_records.by_namespace(ids).items():
        labels = pod_template.pools_of(name for _, name, _ in several.values())
        found.update((one.id, one) for one in _listed(provider.in_namespace(namespace).access, labels))
    return [found.get(id) or MachineRecord(id, ENDED, reason="its TrainJob is gone") for id in ids]


def _listed(access: ClusterPlace, selector: str) -> list[MachineRecord]:
    query = {"labelSelector": selector}
    jobs = kube_clients.ask(
        access, "list TrainJobs", lambda clients: clients.call("GET", _path(access), query)["items"]
    )
    pods = pod_records.listed(access, selector) if jobs else []
    by_job: dict[str, list[Any]] = {}
    for pod in pods:
        by_job.setdefault(pod_records.job_of(pod), []).append(pod)
    groups = [group_of(job) for job in jobs]
    return [record for group in groups for record in pod_records.records(group, by_job.get(group.name, ()))]


def destroy(provider: TrainJobContext, ids: Iterable[str]) -> None:
    """Delete TrainJobs that have no other machine left; else end single pods."""
    for namespace, several in pod_records.by_namespace(ids).items():
        place = provider.in_namespace(namespace)
        names = sorted({name for _, name, _ in several.values()})

        def there(access: ClusterPlace = place.access, names: Sequence[str] = names) -> list[MachineRecord]:
            return [one for one in _listed(access, pod_template.pools_of(names)) if one.is_there]

        living, single = there(), []
        for name in names:
            of_job = [one for one in living if pod_records.split(one.id)[1] == name]
            if all(one.id in several for one in of_job):
                delete(place.access, name)
            else:
                single += [one for one in of_job if one.id in several]
        pod_endings.end(place, single, there)


def delete(access: ClusterPlace, name: str) -> None:
    """Delete a TrainJob with all that it made; ignore one that is gone."""

    def call(clients: KubeClients) -> None:
        try:
            clients.call("DELETE", _path(access, name), {"propagationPolicy": "Background"})
        except Exception as error:
            if kube_errors.status_of(error) != kube_errors.NOT_FOUND:
                raise

    with _lock:
        _deleted.add((access, name))
    kube_clients.ask(access, f"delete the TrainJob {name}", call)


def _path(access: ClusterPlace, name: str = "") -> str:
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{access.namespace}/trainjobs"
    return f"{path}/{name}" if name else path
