"""Log of a pod's first process, and of the container or pod before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError
from ...machines.pods import kube_clients
from . import pod_records, pod_template

if TYPE_CHECKING:
    from ...machines.pods.kube_clients import KubeClients
    from .context import ClusterContext

# Maximum lines and bytes that are read from the end of a log.
_LINES, _MOST = 10_000, 1 << 20


def text(provider: ClusterContext, id: str, *, previous: bool = False, lines: int | None = None) -> str:
    """Return the newest lines of a pod's own log; see `LoggingProvider.console`.

    The log of the last incarnation is that of the container before its restart, or of the pod that this one replaced.

    Parameters
    ----------
    provider : ClusterContext
        The provider.
    id : str
        The machine.
    previous : bool
        True for the log of its last incarnation.
    lines : int, optional
        Maximum number of lines.

    Returns
    -------
    str
        The text.
    """
    parts = pod_records.by_namespace([id]).get(id.partition("/")[0], {}).get(id)
    if parts is None:
        raise ProvisionError(f"{id} is not a pod of a pool: they are called NAMESPACE/JOB/INDEX")
    namespace, job, index = parts
    access = provider.in_namespace(namespace).access

    def read(clients: KubeClients) -> str:
        base = f"/api/v1/namespaces/{namespace}/pods"
        listed = clients.call("GET", base, {"labelSelector": pod_template.pools_of([job])})["items"]
        pods = [pod for pod in listed if pod_records.job_of(pod) == job and pod_records.index_of(pod) == index]
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        name, again = _chosen(id, pods, previous=previous)
        query = {"container": pod_template.CONTAINER, "tailLines": str(lines or _LINES)}
        return _tail(clients, f"{base}/{name}/log", {**query, "previous": "true"} if again else query)

    return kube_clients.ask(access, f"read the log of {id}", read)


def _chosen(id: str, pods: list[Mapping[str, Any]], *, previous: bool) -> tuple[str, bool]:
    """Return the log's pod, and True if it is of its container before the restart."""
    if not pods:
        raise ProvisionError(f"{id} has no pod: it is not made yet, or it is gone")
    pod = pod_records.current(pods) or pods[0]
    if not previous:
        return str(pod["metadata"]["name"]), False
    containers = pod["status"].get("containerStatuses") or ()
    if any(one.get("restartCount") for one in containers if one.get("name") == pod_template.CONTAINER):
        return str(pod["metadata"]["name"]), True
    before = [one for one in pods if one is not pod]
    if not before:
        raise ProvisionError(
            f"{id} has no earlier log: its container was not restarted, and the cluster has no earlier pod of it now"
        )
    return str(before[0]["metadata"]["name"]), False


def _tail(clients: KubeClients, path: str, query: Mapping[str, str]) -> str:
    """Return the end of a log, which may be long and have lines of any length."""
    response = clients.stream(path, query)
    kept: deque[bytes] = deque()
    size, cut = 0, False
    try:
        for piece in response.stream(1 << 16):
            kept.append(piece)
            size += len(piece)
            while size - len(kept[0]) >= _MOST:
                size -= len(kept.popleft())
                cut = True
    finally:
        response.release_conn()
    data = b"".join(kept)
    if cut:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace")


__all__ = ["text"]
