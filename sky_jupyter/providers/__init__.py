"""Providers: what makes and ends machines. A provider's SDK is imported when it is used."""

from .local import Local

__all__ = ["Local"]
