"""Providers of machines. A provider's SDK is imported when it is used."""

from .local import Local
from .ssh import SSH

__all__ = ["SSH", "Local"]
