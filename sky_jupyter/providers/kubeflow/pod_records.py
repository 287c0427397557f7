"""Records of machines, from the API's pods and the jobs that made them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...errors import MachineError
from ...machines.pods import kube_clients
from ..provisioning_types import ENDED, ENDING, PENDING, QUEUED, RUNNING, MachineRecord
from . import pod_template

if TYPE_CHECKING:
    from ...machines.pods.cluster_place import ClusterPlace
    from ...machines.pods.pod_target import PodTarget
    from .context import ClusterContext

JOB, INDEX = "jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-completion-index"
# Reasons for which a container may wait forever.
_HOPELESS = (
    *("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
)
Json = Mapping[str, Any]


@dataclass(frozen=True)
class PodGroup:
    """Pods that one call made; indexes count from 0.

    Attributes
    ----------
    namespace, name : str
        The job's.
    count : int
        Number of pods.
    pool : str
        The pool's id.
    state : str
        State of all its machines, whatever their pods' states are; empty if the pods' states count.
    reason : str
        Why a pod does not exist, or why all have ended.
    facts : MachineRecord
        The fields that its machines have in common.
    """

    namespace: str
    name: str
    count: int
    pool: str
    facts: MachineRecord
    state: str = ""
    reason: str = ""

    def id(self, index: int) -> str:
        """Return the id of a machine."""
        return f"{self.namespace}/{self.name}/{index}"


def split(id: str) -> tuple[str, str, int]:
    """Split a machine's id into namespace, job and index, or raise MachineError."""
    namespace, _, rest = id.partition("/")
    name, _, index = rest.partition("/")
    if not (namespace and name and index.isdecimal()):
        raise MachineError(id, "closed", "this is not a pod of a pool: they are called NAMESPACE/JOB/INDEX")
    return namespace, name, int(index)


def by_namespace(ids: Iterable[str]) -> dict[str, dict[str, tuple[str, str, int]]]:
    """Return the parts of ids, by namespace and id; leave out invalid ids."""
    found: dict[str, dict[str, tuple[str, str, int]]] = {}
    for id in ids:
        with contextlib.suppress(MachineError):
            parts = split(id)
            found.setdefault(parts[0], {})[id] = parts
    return found


def facts(metadata: Json, kind: str) -> MachineRecord:
    """Return a record with what a job's metadata says about its machines."""
    notes: Json = metadata.get("annotations") or {}
    until: float | None = None
    with contextlib.suppress(KeyError, ValueError):
        until = float(notes[pod_template.UNTIL])
    return MachineRecord(
        "",
        QUEUED,
        pool=str(notes.get(pod_template.POOL, "")),
        region=str(metadata.get("namespace", "")),
        kind=kind,
        launched=moment(metadata.get("creationTimestamp")),
        until=until,
        owner=str(notes.get(pod_template.OWNER, "")),
        name=str(notes.get(pod_template.NAME, "")),
    )


def moment(text: Any) -> float | None:
    """Return a time of the API in seconds since 1970."""
    with contextlib.suppress(ValueError, AttributeError):
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    return None


def records(group: PodGroup, pods: Iterable[Json]) -> list[MachineRecord]:
    """Return the machines of a group, by their indexes."""
    by_index: dict[int, list[Json]] = {}
    for pod in pods:
        if (index := index_of(pod)) is not None:
            by_index.setdefault(index, []).append(pod)
    found = [_record(group, index, by_index.get(index, [])) for index in range(group.count)]
    # A job whose pods have all ended exists until it is deleted.
    remains = group.state != ENDING and not any(one.is_there for one in found)
    return [replace(one, remains=True) for one in found] if remains else found


def index_of(pod: Json) -> int | None:
    """Return a pod's index in its job."""
    metadata = pod["metadata"]
    said = (metadata.get("annotations") or {}).get(INDEX, (metadata.get("labels") or {}).get(INDEX, ""))
    return int(said) if str(said).isdecimal() else None


def current(pods: Sequence[Json]) -> Json | None:
    """Return an index's current pod: a job replaces failed or deleted pods only."""
    ordered = sorted(pods, key=_order, reverse=True)
    phases = {str(pod["metadata"]["name"]): pod["status"].get("phase", "") for pod in ordered}
    done = [pod for pod in ordered if phases[pod["metadata"]["name"]] == "Succeeded"]
    live = [pod for pod in ordered if phases[pod["metadata"]["name"]] != "Failed" and not _is_deleted(pod)]
    return next(iter([*done, *live]), None)


def targets(provider: ClusterContext, ids: Sequence[str]) -> dict[str, PodTarget]:
    """Return the targets of machines by id; raise MachineError unless all run."""
    from ...machines.pods.pod_target import PodTarget

    found: dict[str, PodTarget] = {}
    for namespace, several in by_namespace(ids).items():
        access = provider.in_namespace(namespace).access
        pods = listed(access, pod_template.pools_of(name for _, name, _ in several.values()))
        for id, (_, name, index) in several.items():
            pod = current([pod for pod in pods if job_of(pod) == name and index_of(pod) == index])
            if pod is not None and "running" in (_container(pod).get("state") or {}):
                metadata, address = pod["metadata"], str(pod["status"].get("podIP") or "")
                parts = (id, namespace, str(metadata["name"]), str(metadata["uid"]), pod_template.CONTAINER)
                found[id] = PodTarget(*parts, access.kubeconfig, access.context, address)
    for id in ids:
        if id not in found:
            split(id)
            raise MachineError(id, "closed", "there is no such pod that runs")
    return found


def listed(access: ClusterPlace, selector: str) -> list[Json]:
    """Return the pods with some labels."""
    query, path = {"labelSelector": selector}, f"/api/v1/namespaces/{access.namespace}/pods"
    found: list[Json] = kube_clients.ask(access, "list pods", lambda clients: clients.call("GET", path, query)["items"])
    return found


def job_of(pod: Json) -> str:
    """Return the name of the job that a pod belongs to."""
    return str((pod["metadata"].get("labels") or {}).get(JOB, ""))


def _record(group: PodGroup, index: int, pods: Sequence[Json]) -> MachineRecord:
    record = replace(group.facts, id=group.id(index))
    if group.state:
        return replace(record, state=group.state, reason=group.reason)
    pod = current(pods)
    lost = next(
        (told for one in sorted(pods, key=_order, reverse=True) if one is not pod and (told := end_of(one))), ""
    )
    if pod is None:
        return replace(record, state=QUEUED, reason=lost or group.reason or "its pod is not made yet")
    phase, status = pod["status"].get("phase", ""), pod["status"]
    if phase == "Succeeded":
        return replace(record, state=ENDED, reason=end_of(pod) or "its command has ended")
    container = _container(pod)
    waiting = (container.get("state") or {}).get("waiting") or {}
    if phase == "Running" and "running" in (container.get("state") or {}):
        again = int(container.get("restartCount") or 0)
        why = _ended((container.get("lastState") or {}).get("terminated") or {}) if again else lost
        uid = f"{pod['metadata']['uid']}/{again}" if again else str(pod["metadata"]["uid"])
        addresses = tuple(filter(None, [status.get("podIP", "")]))
        # No zone is given: the cluster's scheduler chooses the node, which is no zone in which a pool could ask for
        # other machines.
        return replace(record, state=RUNNING, reason=why, incarnation=uid, addresses=addresses)
    told = _words(waiting.get("reason", ""), waiting.get("message", ""))
    if waiting.get("reason") in _HOPELESS:
        return replace(record, state=PENDING, reason=told)
    return replace(record, state=QUEUED, reason=_unscheduled(pod) or lost or told or "its container is not running yet")


def _order(pod: Json) -> tuple[float, str]:
    return moment(pod["metadata"].get("creationTimestamp")) or 0.0, str(pod["metadata"]["name"])


def _is_deleted(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _container(pod: Json) -> Json:
    several = pod["status"].get("containerStatuses") or ()
    return next((one for one in several if one.get("name") == pod_template.CONTAINER), {})


def _unscheduled(pod: Json) -> str:
    for one in pod["status"].get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "")
    return ""


def end_of(pod: Json) -> str:
    """Return why a pod ended or is being deleted; empty if nothing says it."""
    status = pod["status"]
    if told := _words(status.get("reason", ""), status.get("message", "")):
        return told
    for one in status.get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return _words(one.get("reason", ""), one.get("message", ""))
    if told := _ended((_container(pod).get("state") or {}).get("terminated") or {}):
        return told
    return "its pod is being deleted" if _is_deleted(pod) else ""


def _ended(state: Json) -> str:
    if not state or (state.get("exitCode") == 0 and state.get("reason") == "Completed"):
        return ""
    status = f"status {state['exitCode']}" if state.get("exitCode") is not None else ""
    return _words(", ".join(filter(None, [state.get("reason", ""), status])), state.get("message", ""))


def _words(reason: Any, message: Any) -> str:
    return ": ".join(str(part).strip() for part in (reason, message) if part)


__all__ = ["INDEX", "JOB", "PodGroup", "current", "end_of", "facts", "index_of", "moment", "records", "split"]
