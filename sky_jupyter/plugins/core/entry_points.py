"""Plugins and providers of other distributions, by entry points.

A distribution's ``pyproject.toml`` has::

    [project.entry-points."sky_jupyter.plugins"]
    mine = "my_package:mine"

A registered name is looked up, and its code imported, only when it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

from ...errors import SpecError
from ...util.text import nearest

PLUGINS, PROVIDERS = "sky_jupyter.plugins", "sky_jupyter.providers"
_WHAT = {PLUGINS: "plugin", PROVIDERS: "provider"}
_looking = threading.Lock()


def names(group: str, own: Iterable[str]) -> list[str]:
    """Return all names of a group, our own first."""
    first = list(own)
    return list(dict.fromkeys([*first, *sorted(entry.name for entry in metadata.entry_points(group=group))]))


def find(group: str, name: str, own: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the factory of a plugin or provider.

    Raise SpecError if the name is unknown, if several distributions register it, or if its code cannot be imported.
    """
    what = _WHAT[group]
    # A distribution may be in two folders of the path: the first one counts, as for imports.
    found = {_distribution(entry): entry for entry in reversed([*metadata.entry_points(group=group, name=name)])}
    if name in own:
        if found:
            raise SpecError(
                f"{what} {name} is Sky Jupyter's own, and {_listed(found)} registers one of that name too; uninstall "
                f"that, or give sky.Compute a value instead of the name"
            )
        return own[name]
    if not found:
        known = names(group, own)
        raise SpecError(f"unknown {what} {name!r}{nearest(name, known)}; {what}s are {', '.join(known)}")
    if len(found) > 1:
        raise SpecError(f"{what} {name} is registered by {_listed(found)}; uninstall all of them but one")
    ((distribution, entry),) = found.items()
    try:
        with _looking:
            made = entry.load()
    except Exception as error:
        raise SpecError(
            f"{what} {name}: {entry.value} of the distribution {distribution} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(made):
        raise SpecError(
            f"{what} {name}: {entry.value} of the distribution {distribution} is not a function but {made!r}"
        )
    return made


def origin(group: str, name: str) -> str:
    """Return the distribution that registers a name; empty for our own names."""
    return next((_distribution(entry) for entry in metadata.entry_points(group=group, name=name)), "")


def _distribution(entry: metadata.EntryPoint) -> str:
    return str(entry.dist.name) if entry.dist is not None else "an unknown distribution"


def _listed(found: Mapping[str, Any]) -> str:
    return " and ".join(sorted(found))
