"""Options of ``%%sky`` that provider classes declare in ``line_options``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LineOption:
    """Option that is a provider's argument: ``--node-selector`` is ``node_selector``.

    Attributes
    ----------
    metavar : str
        What stands for its value in the help; empty for an option without one, which is True where it is given.
    form : str
        Words for its form, for a message; empty for an option without a value.
    help : str
        What it says.
    finds : bool
        True if it says where the provider's machines are: ``%sky offers`` and ``%sky sweep`` take it too.
    """

    metavar: str
    form: str
    help: str
    finds: bool = False


def declared(providers: Mapping[str, Any]) -> dict[str, tuple[LineOption, tuple[str, ...]]]:
    """Return provider classes' declared options, each with the kinds that have it.

    Parameters
    ----------
    providers : mapping of str to provider class
        The classes by their kinds.

    Returns
    -------
    dict
        By the argument's name.
    """
    found: dict[str, tuple[LineOption, tuple[str, ...]]] = {}
    for kind, made in providers.items():
        for name, option in getattr(made, "line_options", {}).items():
            found[name] = found.get(name, (option, ()))[0], (*found.get(name, (option, ()))[1], kind)
    return found


__all__ = ["LineOption", "declared"]
