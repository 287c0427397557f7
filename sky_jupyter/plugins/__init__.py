"""Plugins for frameworks: Sky Jupyter's own, and those of other distributions.

Importing this package imports no framework. In the notebook a plugin is a description; most of its hooks run in the
ranks' processes.
"""

from __future__ import annotations

from typing import Any

from .accelerate import accelerate
from .core import entry_points
from .core.plugin import Plugin, Step
from .core.secrets import Secret
from .huggingface import huggingface
from .jax import jax
from .joblib import joblib, sklearn
from .keras import keras
from .parse import FACTORIES, parse_plugins, validate_order
from .torch import torch

__all__ = [
    "Plugin",
    "Secret",
    "Step",
    "accelerate",
    "huggingface",
    "jax",
    "joblib",
    "keras",
    "parse_plugins",
    "sklearn",
    "torch",
    "validate_order",
]


def __getattr__(name: str) -> Any:
    """Return another distribution's plugin factory, as in ``sky.plugins.mine()``."""
    if name.startswith("_") or name not in entry_points.names(entry_points.PLUGINS, ()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return entry_points.find(entry_points.PLUGINS, name, FACTORIES)
