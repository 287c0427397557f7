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
        Placeholder for its value in the help. Empty for an option without a value, which is True if it is given.
    form : str
        Description of its value's form, for messages; empty for an option without a value.
    help : str
        Its help text.
    finds : bool
        True if it says where the provider's machines are: ``%sky offers`` and ``%sky sweep`` accept it too.
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
