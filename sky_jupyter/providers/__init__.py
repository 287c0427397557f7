"""Providers of machines; a provider's SDK is imported when it is used."""

from .aws import AWS
from .kubeflow import Kubeflow, Kubernetes
from .local import Local
from .slurm import Slurm
from .ssh import SSH

__all__ = ["AWS", "SSH", "Kubeflow", "Kubernetes", "Local", "Slurm"]
