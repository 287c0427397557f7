"""Check of the user's rights before pods are made; a Role shows missing ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...errors import ProvisionError
from ...machines.pods import kube_clients
from ...util.background_tasks import map_all

if TYPE_CHECKING:
    from ...machines.pods.cluster_place import ClusterPlace
    from ...machines.pods.kube_clients import KubeClients


class AccessRule(NamedTuple):
    """Verbs on some resources of an API group."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


_TRAINER = "trainer.kubeflow.org"
# Exec and port-forward: WebSockets are opened by GET, which some servers take for "get" and others for "create".
_REACH = (
    AccessRule("", ("pods/exec", "pods/portforward"), ("get", "create")),
    AccessRule("", ("pods/log",), ("get",)),
    AccessRule("", ("events",), ("list",)),
)
TRAIN_JOBS = (
    AccessRule(_TRAINER, ("trainjobs",), ("create", "get", "list", "delete")),
    AccessRule(_TRAINER, ("trainingruntimes",), ("get", "list")),
    AccessRule("", ("pods",), ("get", "list")),
    *_REACH,
)
BARE_PODS = (AccessRule("", ("pods",), ("create", "get", "list", "delete")), *_REACH)
# Rights in the whole cluster.
RUNTIMES = AccessRule(_TRAINER, ("clustertrainingruntimes",), ("get", "list"))
_lock = threading.Lock()
_allowed: set[tuple[ClusterPlace, int]] = set()


def require(access: ClusterPlace, rules: Sequence[AccessRule], of_cluster: Sequence[AccessRule] = ()) -> None:
    """Raise ProvisionError, with the Role to apply, unless the user has all rights.

    Rights that the user has are checked only once in each process.

    Parameters
    ----------
    access : ClusterPlace
        The cluster and namespace.
    rules : sequence of AccessRule
        Rights in the namespace.
    of_cluster : sequence of AccessRule
        Rights on objects that belong to no namespace.
    """
    key = access, hash((os.getpid(), *rules, *of_cluster))
    with _lock:
        if key in _allowed:
            return
    asked = [
        (rule, scope, resource, verb)
        for scope, several in (("", of_cluster), (access.namespace, rules))
        for rule in several
        for resource in rule.resources
        for verb in rule.verbs
    ]

    def review(clients: KubeClients) -> list[bool]:
        # The first question is asked alone, so that expired credentials are reported once.
        one = _is_allowed(clients, *asked[0])
        return [one, *map_all(lambda question: _is_allowed(clients, *question), asked[1:], "sky-rights", most=8)]

    granted = kube_clients.ask(access, "ask for the user's rights", review)
    missing = [question for question, yes in zip(asked, granted, strict=True) if not yes]
    if not missing:
        with _lock:
            _allowed.add(key)
        return
    needed = [AccessRule(rule.group, (resource,), (verb,)) for rule, _, resource, verb in missing]
    lacking = ", ".join(f"{rule.verbs[0]} {rule.resources[0]}" for rule in needed)
    cluster_wide = [rule for rule in of_cluster if any(rule is one[0] for one in missing)]
    of_namespace = [rule for rule in rules if any(rule is one[0] for one in missing)]
    raise ProvisionError(
        f"in {access} your user may not: {lacking}. Ask the administrator to apply this, with your user's name for "
        f"NAME:\n{as_yaml(access.namespace, of_namespace, cluster_wide)}"
    )


def as_yaml(namespace: str, rules: Sequence[AccessRule], of_cluster: Sequence[AccessRule] = ()) -> str:
    """Return a Role with its binding, and a ClusterRole if ``of_cluster`` has rules.

    Parameters
    ----------
    namespace : str
        Namespace of the Role.
    rules : sequence of AccessRule
        Rights in the namespace.
    of_cluster : sequence of AccessRule
        Rights on objects that belong to no namespace.

    Returns
    -------
    str
        YAML for `kubectl apply -f -`.
    """
    parts = []
    if rules:
        parts += _role("Role", "sky-jupyter", f", namespace: {namespace}", rules)
    if of_cluster:
        parts += _role("ClusterRole", "sky-jupyter-runtimes", "", of_cluster)
    return "\n---\n".join(parts)


def _role(kind: str, name: str, place: str, rules: Sequence[AccessRule]) -> list[str]:
    head = f"apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}"
    lines = [
        f'- {{apiGroups: ["{rule.group}"], resources: [{", ".join(rule.resources)}], verbs: [{", ".join(rule.verbs)}]}}'
        for rule in rules
    ]
    return [
        "\n".join([head, f"metadata: {{name: {name}{place}}}", "rules:", *lines]),
        f"{head}Binding\nmetadata: {{name: {name}{place}}}\n"
        f"roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: {name}}}\n"
        "subjects: [{kind: User, name: NAME, apiGroup: rbac.authorization.k8s.io}]",
    ]


def _is_allowed(clients: KubeClients, rule: AccessRule, namespace: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    what = {"group": rule.group, "resource": name, "verb": verb}
    what |= ({"namespace": namespace} if namespace else {}) | ({"subresource": part} if part else {})
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": what},
    }
    answer = clients.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool(answer["status"].get("allowed"))


__all__ = ["BARE_PODS", "RUNTIMES", "TRAIN_JOBS", "AccessRule", "as_yaml", "require"]
