"""Protocols of the provider, as the modules that call the cluster see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...machines.pods.cluster_place import ClusterPlace


class ClusterContext(Protocol):
    """Cluster and namespace of a provider's pods, and the file that ends them."""

    @property
    def access(self) -> ClusterPlace:
        """The cluster and namespace; raises SpecError if the configuration lacks it."""
        ...

    @property
    def power_file(self) -> str: ...

    def in_namespace(self, namespace: str) -> ClusterContext:
        """Return the same for another namespace of the cluster."""
        ...


class PodContext(ClusterContext, Protocol):
    """Further options with which pods are made; `Kubeflow` explains them."""

    @property
    def image(self) -> str | None: ...

    @property
    def resources(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def service_account(self) -> str | None: ...

    @property
    def node_selector(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def tolerations(self) -> tuple[str, ...]: ...

    @property
    def env(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def volumes(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def shm(self) -> str | None: ...

    @property
    def run_as(self) -> int | None: ...


class TrainJobContext(PodContext, Protocol):
    """Further options with which TrainJobs are made."""

    @property
    def runtime(self) -> str | None: ...

    @property
    def queue(self) -> str | None: ...
