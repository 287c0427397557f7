"""Training runtimes of a cluster: which one a pool takes, and what they offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError
from ...machines.pods import kube_clients, kube_errors
from ...spec.accelerators import Accelerator, recognised
from ...util.text import nearest
from ..provisioning_types import Offer
from . import kubeflow_sdk, pod_options

if TYPE_CHECKING:
    from ...machines.pods.kube_clients import KubeClients
    from ...spec.pool_spec import PoolSpec
    from .context import PodContext, TrainJobContext

# Frameworks of runtimes by the plugins that need them. Without such a plugin, the first of `_USUAL` that there is.
_FRAMEWORKS = {"jax": "jax", "torch": "torch", "accelerate": "torch", "huggingface": "torch"}
_USUAL = ("jax", "torch")
# Accelerators by the names of their resources, and labels that name the model.
_PRODUCTS = {
    "nvidia.com/gpu": ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
    "amd.com/gpu": ("amd.com/gpu.product-name",),
    "google.com/tpu": ("cloud.google.com/gke-tpu-accelerator",),
}


def available(provider: TrainJobContext) -> list[Any]:
    """Return the SDK's runtimes that can run a pool, those of the namespace first."""
    found = kube_clients.ask(
        provider.access, "list training runtimes", lambda clients: kubeflow_sdk.client(clients).list_runtimes()
    )
    return [one for one in found if one.trainer.trainer_type.value == "CustomTrainer"]


def chosen(provider: TrainJobContext, spec: PoolSpec) -> Any:
    """Return a pool's runtime: the named one, else one for its plugins' framework.

    Raises ProvisionError if there is none.
    """
    found = available(provider)
    names = [one.name for one in found]
    if provider.runtime is not None:
        if provider.runtime in names:
            return found[names.index(provider.runtime)]
        told = nearest(provider.runtime, names) or f"; there are {', '.join(names) or 'none'}"
        raise ProvisionError(f"{provider.access} has no training runtime {provider.runtime!r}{told}")
    for framework in wanted(spec):
        several = [one for one in found if one.trainer.framework == framework]
        if several:
            return next((one for one in several if one.name == f"{framework}-distributed"), several[0])
    needed = " or ".join(wanted(spec))
    raise ProvisionError(
        f"{provider.access} has no training runtime for {needed}; there are {', '.join(names) or 'none'}: name one by "
        "--runtime, or have the administrator install Kubeflow's"
    )


def wanted(spec: PoolSpec) -> Sequence[str]:
    """Return the frameworks that fit a pool, the best first."""
    for plugin in spec.plugins:
        if (framework := _FRAMEWORKS.get(plugin.name)) is not None:
            return (framework,)
    return _USUAL


def offers(provider: TrainJobContext, spec: PoolSpec) -> list[Offer]:
    """Return the pool's runtime; empty if nodes are known to lack the accelerators."""
    return of_nodes(provider, spec, [chosen(provider, spec).name])


def of_nodes(provider: PodContext, spec: PoolSpec, names: Sequence[str]) -> list[Offer]:
    """Return an offer per name; empty if nodes are known to lack the accelerators."""
    region, asked, kinds = provider.access.namespace, spec.accelerator, None
    if asked is not None:
        kinds = node_kinds(provider)
    if asked is not None and kinds is not None and not any(_fits(one, asked) for one in kinds):
        return []
    return [
        Offer(name, None, asked.kind if asked else "", asked.count if asked else 0, region=region) for name in names
    ]


def _fits(kind: NodeKind, asked: Accelerator | None) -> bool:
    return asked is None or (kind.count >= asked.count and asked.fits(kind.product))


def table(provider: TrainJobContext, spec: PoolSpec) -> tuple[list[Offer], str]:
    """Return each runtime on each kind of node, and lines that describe the images."""
    found, region = available(provider), provider.access.namespace
    kinds = node_kinds(provider)
    asked = spec.accelerator
    rows = [one for one in kinds or [] if _fits(one, asked)]
    if kinds is None:
        rows = [NodeKind()]
    made = [
        Offer(one.name, None, kind.accelerator, kind.count, kind.cpus, kind.memory_gb, region)
        for one in found
        for kind in rows
    ]
    told = [f"{one.name}: {one.trainer.framework}, packages of the image {one.trainer.image}" for one in found]
    if kinds is None:
        told.append("which accelerators the nodes have is not known: your user may not list nodes")
    return made, "\n".join(told)


@dataclass(frozen=True)
class NodeKind:
    """Nodes with equal accelerators; processors and memory are the largest node's."""

    product: str = ""
    accelerator: str = ""
    count: int = 0
    cpus: float | None = None
    memory_gb: float | None = None


def node_kinds(provider: PodContext) -> list[NodeKind] | None:
    """Return the kinds of nodes for pods; None if the user may not list nodes."""

    def ask(clients: KubeClients) -> list[Any] | None:
        try:
            nodes: list[Any] = clients.call("GET", "/api/v1/nodes")["items"]
        except Exception as error:
            if kube_errors.status_of(error) != kube_errors.FORBIDDEN:
                raise
            return None
        return nodes

    nodes = kube_clients.ask(provider.access, "list nodes", ask)
    if nodes is None:
        return None
    wanted = dict(provider.node_selector)
    found: dict[tuple[str, int], NodeKind] = {}
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        if node["spec"].get("unschedulable") or any(labels.get(key) != value for key, value in wanted.items()):
            continue
        one = _kind_of(labels, node["status"].get("allocatable") or {})
        before = found.get((one.product, one.count))
        if before is None or (one.cpus or 0.0) > (before.cpus or 0.0):
            found[one.product, one.count] = one
    return [found[key] for key in sorted(found)]


def _kind_of(labels: Mapping[str, str], room: Mapping[str, str]) -> NodeKind:
    count, product = 0, ""
    for resource, names in _PRODUCTS.items():
        if (number := int(room.get(resource, "0"))) > 0:
            count, product = number, next((labels[name] for name in names if name in labels), resource)
    name, memory = recognised(product.replace("-", " ")) if product else (None, None)
    kind = product if name is None else name if memory is None else f"{name}-{memory}GB"
    return NodeKind(
        product.replace("-", " "), kind, count, pod_options.quantity(room.get("cpu")), _gigabytes(room.get("memory"))
    )


def _gigabytes(text: str | None) -> float | None:
    amount = pod_options.quantity(text)
    return None if amount is None else round(amount / 1e9, 1)


__all__ = ["NodeKind", "available", "chosen", "node_kinds", "offers", "table", "wanted"]
