"""`PodProvider`: base of providers of pods, whatever object makes the pods."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import SkyError, SpecError
from ...util.validate import check_flag, check_whole
from .. import pool_listing
from ..line_options import LineOption
from . import pod_options, pod_template
from .pod_options import NAME

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ...machines.pods.cluster_place import ClusterPlace
    from ..base import ConnectionSession
    from ..pool_listing import BoughtPool

P = TypeVar("P", bound="PodProvider")
_TEXTS = {
    "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a namespace's name, such as 'people'"),
    "context": (r"[^\x00-\x1f]{1,253}", "a context's name in the kubeconfig"),
    "image": (r"[^\s\x00-\x1f]{1,500}", "an image, such as 'pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime'"),
    "service_account": (NAME, "a service account's name"),
    "shm": (r"[0-9]{1,15}(\.[0-9]{1,9})?([KMGTPE]i?)?", "a size such as '8Gi'"),
}
# A user id that images do not know, and that owns nothing in them.
_USER = 1000


@dataclass(frozen=True)
class PodProvider:
    """Base of providers of pods; `Kubeflow` explains the fields."""

    kind = "pods"
    provisions = True
    survives_manager = True
    queues = True
    has_prices = False
    # The environment is built on top of the packages of the image's Python.
    image_packages = True
    power_file = pod_template.POWER_FILE
    supported_options = ("vcpus", "memory_gb", "disk_gb")
    notice = ""
    # The API lists an object as soon as it has accepted it.
    visible_within = 0.0

    line_options = {
        "namespace": LineOption("NAME", "a name", "where pods are made (the context's)", finds=True),
        "context": LineOption("NAME", "a name", "the context of the kubeconfig (the current one)", finds=True),
        "kubeconfig": LineOption("FILE", "a path", "how the cluster is reached (KUBECONFIG's)", finds=True),
        "image": LineOption("IMAGE", "an image", "what the pods run, with sh in it"),
        "resources": LineOption("K=V", "cpu=4,memory=16Gi,nvidia.com/gpu=1", "the resources of each pod"),
        "service_account": LineOption("NAME", "a name", "the pods' service account (the namespace's default)"),
        "node_selector": LineOption("K=V", "labels with a comma between", "labels of the nodes to run on", finds=True),
        "tolerations": LineOption("K:EFFECT", "texts such as nvidia.com/gpu:NoSchedule", "taints that do not matter"),
        "volumes": LineOption("/PATH=CLAIM", "paths and claims", "volumes of every pod, by their paths"),
        "shm": LineOption("SIZE", "a size such as 8Gi", "shared memory of each pod (what it has)"),
    }

    namespace: str | None = None
    context: str | None = None
    kubeconfig: tuple[str, ...] = ()
    image: str | None = None
    resources: tuple[tuple[str, str], ...] = ()
    service_account: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    volumes: tuple[tuple[str, str], ...] = ()
    shm: str | None = None
    run_as: int | None = _USER
    offline: bool = field(default=False, compare=False)
    # The cluster as it was first resolved: in another process, or later, the current context may be another one.
    resolved: tuple[tuple[str, ...], str | None, str] | None = field(
        default=None, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for name, (pattern, form) in _TEXTS.items():
            pod_options.text(name, getattr(self, name), pattern, form)
        given = {
            "kubeconfig": pod_options.config_files(self.kubeconfig),
            "resources": pod_options.resources(self.resources),
            "node_selector": pod_options.labels("node_selector", self.node_selector),
            "tolerations": pod_options.tolerations(self.tolerations),
            "env": pod_options.env(self.env),
            "volumes": pod_options.volumes(self.volumes),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        check_flag("offline", self.offline)
        if self.run_as is not None:
            check_whole("run_as", self.run_as, 1, 2**31 - 1)

    @property
    def access(self) -> ClusterPlace:
        """The cluster and namespace; raises SpecError if the configuration lacks it."""
        from ...machines.pods.cluster_place import ClusterPlace, resolve

        if self.resolved is None:
            found = resolve(self.kubeconfig, self.context, self.namespace)
            self.pinned(found.kubeconfig, found.context, found.namespace)
        assert self.resolved is not None
        return ClusterPlace(*self.resolved)

    def __getstate__(self) -> dict[str, Any]:
        with contextlib.suppress(SkyError):
            _ = self.access
        return dict(self.__dict__)

    def __str__(self) -> str:
        where = self.namespace or (self.resolved[2] if self.resolved else "")
        return f"{self.kind} ({where})" if where else self.kind

    # -- what every provider says ------------------------------------------------------------------

    def default_nodes(self) -> int:
        """Return 1."""
        return 1

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Return None: pods are created as needed."""
        return None

    def resized(self: P, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> P:
        """Return the same provider; raise SpecError if machines are added by name."""
        if add:
            raise SpecError("pods are made, not added by name: say how many nodes there shall be")
        return self

    def recipe(self) -> Mapping[str, Any]:
        """Return the fields that are set, and the cluster to which they resolve here."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        found = {item.name: given[item.name] for item in fields(self) if item.init and given[item.name] != item.default}
        with contextlib.suppress(SkyError):
            found["resolved"] = astuple(self.access)
        return found

    @classmethod
    def restore(cls: type[P], recipe: Mapping[str, Any]) -> P:
        """Return a provider made from its recipe."""
        given = dict(recipe)
        known = given.pop("resolved", None)
        made = cls(**given)
        return made if known is None else made.pinned(tuple(known[0]), known[1], known[2])

    def pinned(self: P, files: tuple[str, ...], context: str | None, namespace: str) -> P:
        """Set the cluster of this provider, and return the provider."""
        object.__setattr__(self, "resolved", (files, context, namespace))
        return self

    def account(self) -> str:
        """Return the cluster's address and the namespace."""
        from ...machines.pods import kube_clients

        host = kube_clients.ask(self.access, "find the cluster", lambda clients: str(clients.configuration.host))
        return f"{host} {self.access.namespace}"

    def pools(self) -> Sequence[BoughtPool]:
        """Return the namespace's pools, found by labels, also those of other computers."""
        return pool_listing.pools(self)

    def in_namespace(self: P, namespace: str) -> P:
        """Return the provider of another namespace of the cluster."""
        here = self.access
        if namespace == here.namespace:
            return self
        return replace(self, namespace=namespace).pinned(here.kubeconfig, here.context, namespace)

    def all_regions(self) -> Sequence[str]:
        """Return nothing: the other namespaces belong to other people."""
        return ()

    def forget(self, pool: str) -> None:
        """Do nothing: no files are kept of a pool."""

    def console(self, id: str, *, previous: bool = False, lines: int | None = None) -> str:
        """Return the newest lines of a pod's own log, or of its last incarnation's."""
        from . import pod_logs

        return pod_logs.text(self, id, previous=previous, lines=lines)

    @property
    def shared_memory(self) -> int:
        """Bytes of /dev/shm that are asked for; 0 if none are."""
        return int(pod_options.quantity(self.shm) or 0)

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
        """Connect to running pods, over the session's link if it has one."""
        from .. import pod_connections, ssh_connections
        from . import pod_records

        found = pod_records.targets(self, ids)
        open = pod_connections.opener(session)
        return ssh_connections.connect_all(lambda name: open(found[name]), ids)


__all__ = ["PodProvider"]
