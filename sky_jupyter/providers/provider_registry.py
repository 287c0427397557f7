"""Registry of provider classes by kind, for restoring recorded providers."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ..errors import SpecError

if TYPE_CHECKING:
    from .base import Provisioner

# Entry point group of other distributions: ``kind = "package.module:Class"``.
GROUP = "sky_jupyter.providers"
_known: dict[str, Any] = {}


def register(cls: Any) -> Any:
    """Register a provider class in this process by its ``kind``; usable as decorator."""
    _known[cls.kind] = cls
    return cls


def restore(kind: str, recipe: str) -> Provisioner:
    """Return a provider made from its recipe.

    ``recipe`` is the JSON of `Provisioner.recipe`. Raise SpecError if the kind is unknown here or the recipe is
    invalid.
    """
    found = _known.get(kind)
    if found is None:
        points = [point for point in metadata.entry_points(group=GROUP) if point.name == kind]
        if not points:
            raise SpecError(f"no provider {kind!r} is installed here: install what brings it")
        found = points[0].load()
    try:
        made: Provisioner = found.restore(json.loads(recipe))
        return made
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"provider {kind!r} cannot be made from what is recorded of it: {error}") from error


__all__ = ["GROUP", "register", "restore"]
