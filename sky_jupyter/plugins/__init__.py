"""What frameworks need of a pool: the plugins `jax`, `keras` and `torch`, and the type they share.

Nothing here imports a framework: in the notebook a plugin is a description, and its hooks do their
work in the ranks' processes.
"""

from __future__ import annotations

from .base import Plugin
from .jax import jax
from .keras import keras
from .parse import parse_plugins, validate_order
from .torch import torch

__all__ = ["Plugin", "jax", "keras", "parse_plugins", "torch", "validate_order"]
