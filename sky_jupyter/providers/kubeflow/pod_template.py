"""Parts of every pod that we make: volumes, security context, marks, resources."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError
from ...spec.accelerators import NVIDIA
from . import pod_options

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from ..provisioning_types import Order
    from .context import PodContext

CONTAINER = "node"
# The user's home is a volume: the image's root is read-only, and its user unknown.
HOME = "/sky"
POWER_FILE = f"{HOME}/.sky_life/power"
POOL = "sky-jupyter/pool"
OWNER, NAME, UNTIL, TOKEN = (f"sky-jupyter/{word}" for word in ("owner", "name", "until", "token"))
_GPU = {NVIDIA: "nvidia.com/gpu", "AMD": "amd.com/gpu", "Google": "google.com/tpu", "AWS": "aws.amazon.com/neuron"}
# The user id has no name in the image; libraries ask for one.
_NAME = "sky"
_SHM, _TMP = "/dev/shm", "/tmp"


def job_name(order: Order) -> str:
    """Return the job's name; a retried order has the same name, so it is refused."""
    token = re.sub(r"[^a-z0-9]", "", order.token.lower()) or hashlib.sha256(order.pool.encode()).hexdigest()
    return f"sky-{pool_label(order.pool)}-{token[:8]}"


def pool_label(pool: str) -> str:
    """Return a pool's id as a label's value."""
    if re.fullmatch(r"[a-z0-9]{1,12}", pool):
        return pool
    return hashlib.sha256(pool.encode()).hexdigest()[:12]


def pools_of(names: Iterable[str]) -> str:
    """Return the label selector of the pools that jobs with these names belong to."""
    return selector(name.split("-")[1] for name in names if name.startswith("sky-") and name.count("-") > 1)


def selector(pools: Iterable[str]) -> str:
    """Return the label selector of some pools."""
    return f"{POOL} in ({','.join(sorted({pool_label(pool) for pool in pools}))})"


def labels(order: Order) -> dict[str, str]:
    """Return the labels of an order's objects."""
    return {POOL: pool_label(order.pool), "app.kubernetes.io/managed-by": "sky-jupyter"}


def notes(order: Order) -> dict[str, str]:
    """Return the annotations of an order's objects."""
    until = {} if order.until is None else {UNTIL: f"{order.until:.0f}"}
    said = {POOL: order.pool, OWNER: order.owner, NAME: order.name, TOKEN: order.token, **until}
    # Trainer's patch treats an empty text like a missing one.
    return {key: value for key, value in said.items() if value}


def seconds_left(order: Order) -> int | None:
    """Return the seconds for which an order's pods may live; None without a limit."""
    return None if order.until is None else max(1, math.ceil(order.until - time.time()))


def resources(provider: PodContext, spec: PoolSpec) -> dict[str, str]:
    """Return the resources of each pod: the provider's, else the spec's.

    Raises ProvisionError if both differ in the number of accelerators, or if no resource is known for their maker.
    """
    wished = {"cpu": spec.vcpus, "memory": spec.memory_gb, "ephemeral-storage": spec.disk_gb}
    units = {"cpu": "", "memory": "G", "ephemeral-storage": "G"}
    found = {name: f"{value:g}{units[name]}" for name, value in wished.items() if value is not None}
    if spec.accelerator is not None:
        name = _GPU.get(spec.accelerator.maker, "")
        said = dict(provider.resources).get(name, str(spec.accelerator.count))
        if not name or said != str(spec.accelerator.count):
            what = f"resources say {name}: {said}" if name else f"no resource is known for {spec.accelerator.maker}'s"
            raise ProvisionError(f"accelerator {spec.accelerator}: {what}; give one of them alone")
        found[name] = said
    return {**found, **dict(provider.resources)}


def env(provider: PodContext) -> dict[str, str]:
    """Return the variables of the container."""
    return {"USER": _NAME, "LOGNAME": _NAME, **dict(provider.env), "HOME": HOME}


def mounts(provider: PodContext) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mount paths: home, /tmp, shared memory, and the user's own."""
    own = dict(provider.volumes)
    memory: dict[str, Any] = {"medium": "Memory", **({"sizeLimit": provider.shm} if provider.shm else {})}
    ours: dict[str, dict[str, Any]] = {HOME: {"emptyDir": {}}, _TMP: {"emptyDir": {}}, _SHM: {"emptyDir": memory}}
    sources = {**ours, **{path: pod_options.volume(given) for path, given in own.items()}}
    names = {path: f"sky-{number}" for number, path in enumerate(sources)}
    volumes = [{"name": names[path], **source} for path, source in sources.items()]
    return volumes, [{"name": names[path], "mountPath": path} for path in sources]


def pod_security(provider: PodContext) -> dict[str, Any]:
    """Return the pod's security context, as restricted namespaces want it."""
    user = {} if provider.run_as is None else {"runAsUser": provider.run_as, "fsGroup": provider.run_as}
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **user}


def container_security() -> dict[str, Any]:
    """Return the container's security context."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def metadata(order: Order) -> dict[str, Any]:
    """Return a pod's labels and annotations; they disable sidecars, which never end."""
    off = {"sidecar.istio.io/inject": "false"}
    return {"labels": {**labels(order), **off}, "annotations": {**notes(order), **off}}


def placement(provider: PodContext) -> dict[str, Any]:
    """Return a pod's service account, node selector and tolerations, where given."""
    found: dict[str, Any] = {
        "serviceAccountName": provider.service_account,
        "nodeSelector": dict(provider.node_selector),
        "tolerations": [pod_options.toleration(one) for one in provider.tolerations],
    }
    return {key: value for key, value in found.items() if value}


__all__ = ["CONTAINER", "HOME", "NAME", "OWNER", "POOL", "POWER_FILE", "TOKEN", "UNTIL"]
