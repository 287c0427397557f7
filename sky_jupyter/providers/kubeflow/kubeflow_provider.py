"""`Kubeflow`: pods of a Kubeflow TrainJob, made for a pool and ended with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...spec.pool_spec import PoolSpec
from .. import provider_registry
from ..base import MachineRecord, Offer, Order
from ..line_options import LineOption
from . import pod_options
from .pod_provider import PodProvider


@dataclass(frozen=True)
class Kubeflow(PodProvider):
    """Pods of a Kubeflow TrainJob, made for the pool and ended with it.

    It needs Kubeflow Trainer 2.2 or later.

    The cluster is found as by `kubectl`: KUBECONFIG, ``~/.kube/config``, or in a pod its service account.

    Parameters
    ----------
    namespace : str, optional
        Namespace of the pods; the context's by default.
    context : str, optional
        Context of the kubeconfig; the current one by default.
    kubeconfig : str or iterable of str, optional
        Configuration files; KUBECONFIG or ``~/.kube/config`` by default.
    image : str, optional
        Image of the pods, which needs ``sh``; the runtime's by default.
    resources : mapping of str to str or number, optional
        Resources of each pod, such as ``{"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": 1}``; the runtime's by default.
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
    runtime : str, optional
        Training runtime, such as ``"torch-distributed"``; by default one for the plugins' framework.
    queue : str, optional
        Local queue of Kueue to wait in.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """

    kind = "kubeflow"
    line_options = {
        **PodProvider.line_options,
        "runtime": LineOption("NAME", "a name", "the training runtime (that of the plugins)", finds=True),
        "queue": LineOption("NAME", "a name", "Kueue's local queue to wait in"),
    }

    runtime: str | None = None
    queue: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        pod_options.text("runtime", self.runtime, pod_options.NAME, "a runtime's name, such as 'torch-distributed'")
        pod_options.text("queue", self.queue, pod_options.NAME, "a local queue's name")

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return the training runtime of a pool."""
        from . import runtimes

        return runtimes.offers(self, spec)

    def price_list(self, spec: PoolSpec) -> tuple[Sequence[Offer], str]:
        """Return all runtimes with the nodes' accelerators, and a text of their images."""
        from . import runtimes

        return runtimes.table(self, spec)

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Create a TrainJob with ``count`` pods; return their ids."""
        from . import train_jobs

        return train_jobs.create(self, spec, count, order)

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return the pods of a pool's TrainJobs, or of all; regions are namespaces."""
        from . import train_jobs

        return [
            one
            for place in regions or [self.access.namespace]
            for one in train_jobs.of_pool(self.in_namespace(place), pool)
        ]

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return the state of pods; ``"ended"`` for those whose TrainJob is gone."""
        from . import train_jobs

        return train_jobs.describe(self, ids)

    def destroy(self, ids: Sequence[str]) -> None:
        """End pods, ignoring those that are gone; delete TrainJobs with no pod left."""
        from . import train_jobs

        train_jobs.destroy(self, ids)


provider_registry.register(Kubeflow)

__all__ = ["Kubeflow"]
