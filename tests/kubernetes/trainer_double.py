"""What Trainer 2.3 makes of a TrainJob: a JobSet, by its runtime, the runtime's patches and the framework's policy.

Functions from objects to objects; `controllers` calls the API server.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.definitions import JOBSET, JOBSET_VERSION, TRAINER, TRAINER_VERSION

Json = dict[str, Any]

STEP = f"{TRAINER}/trainjob-ancestor-step"
INDEX = "batch.kubernetes.io/job-completion-index"
PORT = 29500


def jobset_of(job: Json, runtime: Json) -> Json:
    """The JobSet of a TrainJob, with its name."""
    template = copy.deepcopy(runtime["spec"]["template"])
    spec, meta = template["spec"], template.get("metadata") or {}
    labels, annotations = dict(meta.get("labels") or {}), dict(meta.get("annotations") or {})
    for patch in job["spec"].get("runtimePatches") or []:
        changes = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        more = changes.get("metadata") or {}
        labels.update(more.get("labels") or {})
        annotations.update(more.get("annotations") or {})
        merge(spec, changes.get("spec") or {})
    for replicated in spec["replicatedJobs"]:
        replicated["replicas"] = 1
        replicated.setdefault("groupName", "default")
        inner = replicated["template"]["spec"]
        inner.setdefault("completionMode", "Indexed")
        inner["template"].setdefault("spec", {}).setdefault("restartPolicy", "OnFailure")
        if ((replicated["template"].get("metadata") or {}).get("labels") or {}).get(STEP) == "trainer":
            _train(inner, job, runtime["spec"].get("mlPolicy") or {})
    spec["network"] = {"enableDNSHostnames": True, "publishNotReadyAddresses": True, **(spec.get("network") or {})}
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    spec["suspend"] = bool(job["spec"].get("suspend"))
    return {
        "apiVersion": f"{JOBSET}/{JOBSET_VERSION}",
        "kind": "JobSet",
        "metadata": {
            "name": job["metadata"]["name"],
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner(job, "TrainJob", f"{TRAINER}/{TRAINER_VERSION}")],
        },
        "spec": spec,
    }


def _train(inner: Json, job: Json, policy: Json) -> None:
    """Set the training container up as the TrainJob's trainer and the framework want it."""
    trainer = job["spec"].get("trainer") or {}
    count = trainer.get("numNodes", policy.get("numNodes", 1))
    inner["parallelism"] = inner["completions"] = count
    container = next(one for one in inner["template"]["spec"]["containers"] if one["name"] == "node")
    container.update({key: trainer[key] for key in ("image", "command", "args") if trainer.get(key)})
    if trainer.get("resourcesPerNode"):
        merge(container.setdefault("resources", {}), trainer["resourcesPerNode"])
    environment = container.setdefault("env", [])
    upsert(environment, trainer.get("env") or [])
    framework = next((one for one in ("jax", "torch") if policy.get(one) is not None), None)
    if trainer and framework:
        name = job["metadata"]["name"]
        head = f"{name}-node-0-0.{name}"
        upsert(environment, _jax(head, count) if framework == "jax" else _torch(head, count, trainer))
        upsert(container.setdefault("ports", []), [{"containerPort": PORT, "protocol": "TCP"}], "containerPort")


def _jax(head: str, count: int) -> list[Json]:
    return [
        {"name": "JAX_NUM_PROCESSES", "value": str(count)},
        index_variable("JAX_PROCESS_ID"),
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{head}:{PORT}"},
    ]


def _torch(head: str, count: int, trainer: Json) -> list[Json]:
    return [
        {"name": "PET_NNODES", "value": str(count)},
        {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode") or 1)},
        index_variable("PET_NODE_RANK"),
        {"name": "PET_MASTER_ADDR", "value": head},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]


def index_variable(name: str) -> Json:
    """A variable that holds a pod's index."""
    return {
        "name": name,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{INDEX}']"}},
    }


def owner(of: Json, kind: str, version: str) -> Json:
    """A reference to the controller that made an object."""
    meta = of["metadata"]
    reference = {"apiVersion": version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}
    return {**reference, "controller": True, "blockOwnerDeletion": True}


def upsert(items: list[Json], new: list[Json], key: str = "name") -> None:
    """Put items in a list in the place of those that have the same key."""
    for item in new:
        items[:] = [old for old in items if old[key] != item[key]] + [item]


def merge(base: Json, patch: Json) -> None:
    """Apply a strategic merge patch, as far as pods and jobs need it: named things are merged by their names."""
    for key, value in patch.items():
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list) and key != "tolerations" and _named(value):
            name = "mountPath" if key == "volumeMounts" else "name"
            for item in value:
                same = next((one for one in old if one.get(name) == item.get(name)), None)
                if same is None:
                    old.append(copy.deepcopy(item))
                else:
                    merge(same, item)
        else:
            base[key] = copy.deepcopy(value)


def _named(items: list[Any]) -> bool:
    return bool(items) and isinstance(items[0], dict)
