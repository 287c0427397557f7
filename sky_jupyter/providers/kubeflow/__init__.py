"""Pods of a Kubernetes cluster as machines. The clients are imported when a cluster is first asked."""

from .bare_pods import Kubernetes
from .kubeflow_provider import Kubeflow

__all__ = ["Kubeflow", "Kubernetes"]
