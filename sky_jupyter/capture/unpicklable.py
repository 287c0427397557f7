"""Why a value of the notebook cannot be sent: the path from its name to the part that is to blame."""

from __future__ import annotations

from typing import Any

from ..node.serialization import diagnose
from .blobs import LastPickler


def explain(name: str, value: Any, namespace: dict[str, Any], error: Exception) -> str:
    """One line that leads from `name` to the part of `value` whose pickling raised `error`.

    Examples
    --------
    ``loader.db: sqlite3.Connection cannot be pickled (cannot pickle 'sqlite3.Connection' object)``
    """
    return diagnose.explain(name, value, namespace, error, LastPickler)
