"""Protocols for what the calls of a cluster know of their provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...machines.pods.cluster_place import ClusterPlace


class ClusterContext(Protocol):
    """Where a provider's pods are, and how they end."""

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
    """What pods are made with besides; `Kubeflow` says what the options mean."""

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
    """What TrainJobs are made with besides."""

    @property
    def runtime(self) -> str | None: ...

    @property
    def queue(self) -> str | None: ...
