"""What JobSet 0.9 makes of a JobSet, and an Indexed Job of itself: Jobs and pods with all their marks.

Kubernetes 1.20 has no Indexed Jobs, so that its own controller of Jobs is off. Functions from objects to objects.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections.abc import Iterator
from typing import Any

from tests.kubernetes.definitions import JOBSET, JOBSET_VERSION
from tests.kubernetes.trainer_double import INDEX, index_variable, owner, upsert

Json = dict[str, Any]

BACKOFF = 6
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def service_of(jobset: Json) -> Json:
    """The headless service that gives the pods their names."""
    name = jobset["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "ownerReferences": [_owner(jobset)]},
        "spec": {
            "clusterIP": "None",
            "selector": {"jobset.sigs.k8s.io/jobset-name": name},
            "publishNotReadyAddresses": True,
        },
    }


def jobs_of(jobset: Json) -> Iterator[Json]:
    """The Jobs of a JobSet, one for each of its replicated jobs."""
    name, namespace = jobset["metadata"]["name"], jobset["metadata"]["namespace"]
    for number, replicated in enumerate(jobset["spec"]["replicatedJobs"]):
        job = f"{name}-{replicated['name']}-0"
        marks = _marks(jobset, replicated["name"], number, job)
        spec = copy.deepcopy(replicated["template"]["spec"])
        template = spec["template"]
        template["spec"]["subdomain"] = name
        template["metadata"] = _marked(template.get("metadata"), marks)
        meta = _marked(replicated["template"].get("metadata"), marks)
        meta.update(name=job, namespace=namespace, ownerReferences=[_owner(jobset)])
        spec.setdefault("backoffLimit", BACKOFF)
        spec["suspend"] = jobset["spec"]["suspend"]
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def pod_of(job: Json, uid: str, index: int) -> Json:
    """The pod of an Indexed Job for one index, with a name that no pod had before."""
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    meta = copy.deepcopy(job["spec"]["template"]["metadata"])
    batch = {"controller-uid": uid, "job-name": name}
    meta["labels"].update({f"batch.kubernetes.io/{key}": value for key, value in batch.items()} | batch)
    for marks in (meta["labels"], meta["annotations"]):
        marks[INDEX] = str(index)
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(5))
    meta.update(name=f"{name}-{index}-{suffix}", namespace=namespace)
    made_by = {"metadata": {"name": name, "uid": uid}}
    meta["ownerReferences"] = [owner(made_by, "Job", "batch/v1")]
    spec = copy.deepcopy(job["spec"]["template"]["spec"])
    spec["hostname"] = f"{name}-{index}"
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        upsert(container.setdefault("env", []), [index_variable("JOB_COMPLETION_INDEX")])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _marks(jobset: Json, replicated: str, number: int, job: str) -> dict[str, str]:
    meta = jobset["metadata"]
    total = str(len(jobset["spec"]["replicatedJobs"]))
    marks = {
        "jobset-name": meta["name"],
        "jobset-uid": meta["uid"],
        "replicatedjob-name": replicated,
        "restart-attempt": "0",
        "replicatedjob-replicas": "1",
        "global-replicas": total,
        "job-index": "0",
        "job-key": hashlib.sha1(f"{meta['namespace']}/{job}".encode()).hexdigest(),
        "job-global-index": str(number),
        "group-name": "default",
        "group-replicas": total,
        "job-group-index": str(number),
    }
    return {f"jobset.sigs.k8s.io/{key}": value for key, value in marks.items()}


def _marked(meta: Json | None, marks: dict[str, str]) -> Json:
    meta = dict(meta or {})
    for key in ("labels", "annotations"):
        meta[key] = {**(meta.get(key) or {}), **marks}
    return meta


def _owner(jobset: Json) -> Json:
    return owner(jobset, "JobSet", f"{JOBSET}/{JOBSET_VERSION}")
