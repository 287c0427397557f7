"""Pods of a Kubernetes cluster as machines; clients are imported on first use."""

from .bare_pods import Kubernetes
from .kubeflow_provider import Kubeflow

__all__ = ["Kubeflow", "Kubernetes"]
