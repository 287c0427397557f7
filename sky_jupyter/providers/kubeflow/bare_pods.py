"""`Kubernetes`: pods made by the pool itself, where there is no Kubeflow Trainer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import OrderSpent, SkyError, SpecError
from ...machines import container_command
from ...spec.pool_spec import PoolSpec
from ...util.background_tasks import map_all
from .. import provider_registry
from ..base import MachineRecord, Offer, Order
from ..provisioning_types import ENDED, ENDING
from . import pod_records, pod_template
from .pod_provider import PodProvider
from .pod_records import PodGroup

if TYPE_CHECKING:
    from ...machines.pods.cluster_place import ClusterPlace
    from ...machines.pods.kube_clients import KubeClients

_COUNT = "sky-jupyter/count"
# Statuses that refuse an order for good. After other errors the order is sent again, and finds the pods that it made.
_REFUSED = (400, 403, 404, 422)
_lock = threading.Lock()
# Names of orders whose pods this process has deleted: a retried order must not make them again.
_deleted: set[tuple[ClusterPlace, str]] = set()


@dataclass(frozen=True)
class Kubernetes(PodProvider):
    """Pods of a Kubernetes cluster, made for the pool and ended with it.

    It needs no Kubeflow Trainer. A pod that is evicted does not come back: the pool makes another one.

    Parameters
    ----------
    namespace : str, optional
        Namespace of the pods; the context's by default.
    context : str, optional
        Context of the kubeconfig; the current one by default.
    kubeconfig : str or iterable of str, optional
        Configuration files; KUBECONFIG or ``~/.kube/config`` by default.
    image : str, optional
        Image of the pods, which needs ``sh``. It must be given.
    resources : mapping of str to str or number, optional
        Resources of each pod, such as ``{"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": 1}``.
    service_account : str, optional
        Service account of the pods; the namespace's default one unless given.
    node_selector : mapping of str to str, optional
        Labels that the nodes must have.
    tolerations : iterable of str or mapping, optional
        Tolerated taints, such as ``"nvidia.com/gpu:NoSchedule"``.
    env : mapping of str to str, optional
        Variables of the containers. They can be read in the cluster: secrets belong in ``Image.env``.
    volumes : mapping of str to str or mapping, optional
        Claims by the paths where they are mounted, such as ``{"/data": "my-claim"}``, or volume sources.
    shm : str, optional
        Size of the shared memory, such as ``"8Gi"``; up to the pod's memory by default.
    run_as : int, optional
        User id of the containers; None leaves the image's, which must not be root. OpenShift chooses it itself.
    offline : bool
        True to send pods all packages from here.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """

    kind = "kubernetes"

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return the image's offer; empty if nodes are known to lack the accelerators."""
        from . import runtimes

        return runtimes.of_nodes(self, spec, [self.image or "pods"])

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Create ``count`` pods; return their ids."""
        from ...machines.pods import kube_clients
        from . import access_review

        if self.image is None:
            raise SpecError("pods without a training runtime need an image: --image python:3.12 (image=)")
        access, name = self.access, pod_template.job_name(order)
        if (access, name) in _deleted:
            raise OrderSpent(f"{access}: the pods {name} of this order were deleted")
        access_review.require(access, access_review.BARE_PODS)
        bodies = [self._pod(spec, count, order, index) for index in range(count)]
        kube_clients.ask(access, f"make the pods {name}", lambda clients: self._make(clients, bodies))
        return [f"{access.namespace}/{name}/{index}" for index in range(count)]

    def _make(self, clients: KubeClients, bodies: Sequence[Mapping[str, Any]]) -> None:
        """Create the pods that do not exist yet; if one is refused, delete all."""
        from ...machines.pods import kube_errors

        path = f"/api/v1/namespaces/{self.access.namespace}/pods"
        try:
            for body in bodies:
                try:
                    clients.call("POST", path, body=body)
                except Exception as error:
                    if kube_errors.status_of(error) != kube_errors.CONFLICT:
                        raise
        except Exception as error:
            if kube_errors.status_of(error) in _REFUSED:
                names = [body["metadata"]["name"].rpartition("-") for body in bodies]
                with contextlib.suppress(SkyError):
                    self.destroy([f"{self.access.namespace}/{job}/{index}" for job, _, index in names])
            raise

    def _pod(self, spec: PoolSpec, count: int, order: Order, index: int) -> dict[str, Any]:
        name, metadata = pod_template.job_name(order), pod_template.metadata(order)
        volumes, mounts = pod_template.mounts(self)
        amounts, limit = pod_template.resources(self, spec), pod_template.seconds_left(order)
        container = {
            "name": pod_template.CONTAINER,
            "image": self.image,
            "command": container_command.command(order.until, file=self.power_file),
            "env": [{"name": key, "value": value} for key, value in pod_template.env(self).items()],
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": mounts,
            "securityContext": pod_template.container_security(),
        }
        marks = {pod_records.INDEX: str(index), pod_records.JOB: name}
        metadata["annotations"][_COUNT] = str(count)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "name": f"{name}-{index}", "labels": {**metadata["labels"], **marks}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [container],
                "volumes": volumes,
                "securityContext": pod_template.pod_security(self),
                "automountServiceAccountToken": self.service_account is not None,
                **pod_template.placement(self),
                **({} if limit is None else {"activeDeadlineSeconds": limit}),
            },
        }

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return the pods of a pool, or of all; regions are namespaces."""
        labels = pod_template.POOL if pool is None else pod_template.selector([pool])
        return [one for place in regions or [self.access.namespace] for one in self.in_namespace(place).marked(labels)]

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return the state of pods; ``"ended"`` for those that are gone."""
        found: dict[str, MachineRecord] = {}
        for namespace, several in pod_records.by_namespace(ids).items():
            labels = pod_template.pools_of(name for _, name, _ in several.values())
            found.update((one.id, one) for one in self.in_namespace(namespace).marked(labels))
        return [found.get(id) or MachineRecord(id, ENDED, reason="it is gone") for id in ids]

    def marked(self, selector: str) -> Sequence[MachineRecord]:
        """Return the pods that a label selector matches, except those of TrainJobs."""
        pods = pod_records.listed(self.access, f"{selector},!jobset.sigs.k8s.io/jobset-uid")
        return [record for pod in pods if (record := self._record(pod)) is not None]

    def _record(self, pod: Mapping[str, Any]) -> MachineRecord | None:
        index = pod_records.index_of(pod)
        if index is None:
            return None
        facts = pod_records.facts(pod["metadata"], str(pod["spec"]["containers"][0].get("image", "")))
        # No controller replaces such a pod.
        state = ENDING if pod["metadata"].get("deletionTimestamp") else ""
        state = ENDED if pod["status"].get("phase") in ("Failed", "Succeeded") else state
        group = PodGroup(
            facts.region, pod_records.job_of(pod), index + 1, facts.pool, facts, state, pod_records.end_of(pod)
        )
        return pod_records.records(group, [pod])[index]

    def destroy(self, ids: Sequence[str]) -> None:
        """Delete pods; ignore those that are gone."""
        from ...machines.pods import kube_clients, kube_errors

        def delete(clients: KubeClients, path: str) -> None:
            try:
                clients.call("DELETE", path)
            except Exception as error:
                if kube_errors.status_of(error) != kube_errors.NOT_FOUND:
                    raise

        for namespace, several in pod_records.by_namespace(ids).items():
            access = self.in_namespace(namespace).access
            with _lock:
                _deleted.update((access, name) for _, name, _ in several.values())
            paths = [f"/api/v1/namespaces/{namespace}/pods/{name}-{index}" for _, name, index in several.values()]

            def end(clients: KubeClients, paths: Sequence[str] = paths) -> None:
                map_all(lambda path: delete(clients, path), paths, "sky-pods", most=8)

            kube_clients.ask(access, "delete pods", end)


provider_registry.register(Kubernetes)

__all__ = ["Kubernetes"]
