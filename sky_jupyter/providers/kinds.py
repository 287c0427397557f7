"""Which class a provider's kind stands for, so that it can be made again from what the registry holds of it."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ..errors import SpecError

if TYPE_CHECKING:
    from .base import Provisioner

# Other distributions name their providers here: ``kind = "package.module:Class"``.
GROUP = "sky_jupyter.providers"
_known: dict[str, Any] = {}


def register(cls: Any) -> Any:
    """Make a provider class known in this process by its ``kind``; usable as a decorator."""
    _known[cls.kind] = cls
    return cls


def restore(kind: str, recipe: str) -> Provisioner:
    """Make a provider again.

    Parameters
    ----------
    recipe : str
        What its `Provisioner.recipe` gave, as JSON.

    Raises
    ------
    SpecError
        When there is no such kind here, or it cannot be made from that.
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
