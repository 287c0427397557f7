"""Pods and how to connect to them; imports no kubernetes, for the link's client."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import SpecError

# Names of Kubernetes become parts of URLs. A name has at most 253 letters, a container's or namespace's at most 63.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


@dataclass(frozen=True)
class PodTarget:
    """Pod of a cluster, and how to reach its API. It has no secrets.

    Attributes
    ----------
    name : str
        Name in messages, such as ``ns/job/0``.
    namespace, pod, uid : str
        The pod. A pod with another uid is another machine, whatever its name.
    container : str
        The container in which commands run.
    kubeconfig : tuple of str
        Absolute paths of kubeconfig files, as ``KUBECONFIG`` has them; empty for the service account of the pod that
        this process runs in.
    context : str, optional
        Context of the kubeconfig; its current one by default.
    address : str
        The pod's IP address.
    """

    name: str
    namespace: str
    pod: str
    uid: str
    container: str = "node"
    kubeconfig: tuple[str, ...] = ()
    context: str | None = None
    address: str = ""

    def __post_init__(self) -> None:
        if not (_LABEL.match(self.namespace) and _NAME.match(self.pod) and _LABEL.match(self.container)):
            raise SpecError(f"{self.namespace}/{self.pod} ({self.container}) is no pod's name")

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}"
