"""The cluster and namespace to use, as `kubectl` finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import SpecError
from ...util.text import nearest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NEEDED = "Kubernetes needs its clients: pip install 'sky-jupyter[kubeflow]'"


@dataclass(frozen=True)
class ClusterPlace:
    """A cluster, and how to reach it. Made by `resolve`.

    Attributes
    ----------
    kubeconfig : tuple of str
        Configuration files; empty for the service account of the pod that this process runs in.
    context : str or None
        Context of the configuration.
    namespace : str
        Namespace of the pods.
    """

    kubeconfig: tuple[str, ...]
    context: str | None
    namespace: str

    def __str__(self) -> str:
        return f"namespace {self.namespace} ({f'context {self.context}' if self.context else 'this cluster'})"


def resolve(kubeconfig: Sequence[str], context: str | None, namespace: str | None) -> ClusterPlace:
    """Return the cluster and namespace to use, as `kubectl` finds them.

    Without a configuration, a process in a pod uses the pod's service account. Raises SpecError if there is neither, or
    no such context.
    """
    named = list(kubeconfig) or [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    paths = named or [str(Path("~/.kube/config").expanduser())]
    files = tuple(os.path.abspath(path) for path in paths if os.path.isfile(path))
    if not files:
        if not named and context is None and (SERVICE_ACCOUNT / "token").is_file():
            return ClusterPlace((), None, namespace or (SERVICE_ACCOUNT / "namespace").read_text().strip())
        raise SpecError(
            f"there is no {' or '.join(paths)}, which says how to reach a cluster: give --kubeconfig FILE "
            "(kubeconfig=), set KUBECONFIG, or copy the file there that your cluster's administrator gives"
        )
    contexts, current = _contexts(files)
    chosen = context or current
    if chosen is None:
        raise SpecError(f"{', '.join(files)} has no current context: give --context, one of {', '.join(contexts)}")
    if chosen not in contexts:
        told = nearest(chosen, contexts) or f"; contexts are {', '.join(contexts) or 'none'}"
        raise SpecError(f"{', '.join(files)} has no context {chosen!r}{told}")
    return ClusterPlace(files, chosen, namespace or contexts[chosen] or "default")


def _contexts(files: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Return contexts' namespaces and the current context; the first file wins."""
    try:
        import yaml
    except ImportError as error:
        raise SpecError(f"{_NEEDED} ({error})") from None
    contexts: dict[str, str] = {}
    current: str | None = None
    for path in files:
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
            for one in content.get("contexts") or ():
                contexts.setdefault(str(one["name"]), str((one.get("context") or {}).get("namespace") or ""))
            current = current or content.get("current-context") or None
        except (OSError, ValueError, KeyError, AttributeError, TypeError, yaml.YAMLError) as error:
            raise SpecError(f"{path} is no configuration of a cluster: {error}") from None
    return contexts, current


__all__ = ["ClusterPlace", "resolve"]
