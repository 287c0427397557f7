"""Diagnosis of values that cannot be pickled."""

from __future__ import annotations

from typing import Any

from ..node.serialization import diagnose_pickling
from .blobs import LastPickler


def explain(name: str, value: Any, namespace: dict[str, Any], error: Exception) -> str:
    """Return one line that leads from a name to its value's unpicklable part.

    For instance: ``loader.db: sqlite3.Connection cannot be pickled (cannot pickle 'sqlite3.Connection' object)``.
    """
    return diagnose_pickling.explain(name, value, namespace, error, LastPickler)
