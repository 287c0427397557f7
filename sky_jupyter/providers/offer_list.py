"""``sky.offers``: machines that providers could make, with prices, as a table."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import SpecError
from ..plugins.core import entry_points
from ..spec.accelerators import Accelerator
from ..spec.pool_spec import PoolSpec
from . import AWS, Kubeflow, Kubernetes, Local, Slurm
from .base import Provider, provider_of
from .provisioning_types import Offer

_HEADS = ("type", "accelerators", "vCPU", "memory", "region", "zone", "on demand", "spot")
_RIGHT = (2, 3, 6, 7)
_PROVIDERS = {"aws": AWS, "kubeflow": Kubeflow, "kubernetes": Kubernetes, "local": Local, "slurm": Slurm}
_UNKNOWN = "?"
_SPOT = "spot"


class OfferList(list[Offer]):
    """Offers, shown as a table with a row per type and region; made by `offers`.

    Parameters
    ----------
    found : iterable of Offer
        The offers, the best first.
    note : str
        Text that says what is missing; empty if nothing is.

    Attributes
    ----------
    note : str
        Text that says what is missing; empty if nothing is.
    """

    def __init__(self, found: Iterable[Offer], note: str = "") -> None:
        super().__init__(found)
        self.note = note

    def __repr__(self) -> str:
        rows = _shown(self)
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        right = {column for column, head in enumerate(rows[0]) if head in [_HEADS[index] for index in _RIGHT]}
        lines = (
            "  ".join(
                text.rjust(width) if column in right else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        head, *rows = [[html.escape(text) for text in row] for row in _shown(self)]
        heads = "".join(f'<th style="text-align:left">{text}</th>' for text in head)
        body = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{text}</td>' for text in row) + "</tr>" for row in rows
        )
        notes = "".join(f'<div style="font-size:85%">{html.escape(note)}</div>' for note in self._notes())
        return (
            '<div style="max-height:32em;overflow:auto"><table style="font-size:85%;margin:4px 0">'
            f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        )

    def _notes(self) -> list[str]:
        origins = sorted({one.priced for one in self if one.priced and one.market != _SPOT})
        priced = f"dollars an hour; on demand: {' or '.join(origins)}" if origins else ""
        return [note for note in (priced, self.note) if note]


def offers(
    provider: Provider | str = "aws",
    *,
    accelerator: Accelerator | str | None = None,
    region: str | None = None,
    spot: bool | None = None,
    vcpus: float | None = None,
    memory_gb: float | None = None,
    max_hourly_cost: float | None = None,
) -> OfferList:
    """Return the machines that a provider could make, sorted by price.

    Without credentials, AWS's offers come from a catalogue in the package.

    Parameters
    ----------
    provider : Provider or str
        Provider, or its name.
    accelerator : Accelerator or str, optional
        Accelerators of each machine, such as ``"A100:8"``; without wishes, all machines are listed.
    region : str, optional
        Region; the provider's default one unless given.
    spot : bool, optional
        True for spot machines only, False for those on demand.
    vcpus : float, optional
        Minimum number of processors.
    memory_gb : float, optional
        Minimum memory in GB.
    max_hourly_cost : float, optional
        Maximum price in dollars an hour; machines of unknown price are listed too.

    Returns
    -------
    OfferList
        List of `Offer`; its text is a table.

    Raises
    ------
    ProvisionError
        When the provider has no such machine.

    Examples
    --------
    >>> offers(accelerator="T4")[0].name
    'g4dn.xlarge'
    """
    if isinstance(provider, str):
        provider = entry_points.find(entry_points.PROVIDERS, provider, _PROVIDERS)()
    markets = {None: None, True: "spot", False: "on-demand"}
    if spot not in markets:
        raise SpecError(f"spot must be True, False or None, not {spot!r}")
    kind = Accelerator.parse(accelerator) if isinstance(accelerator, str) else accelerator
    wishes = {"region": region, "vcpus": vcpus, "memory_gb": memory_gb, "max_hourly_cost": max_hourly_cost}
    return listed(PoolSpec(provider=provider, accelerator=kind, allocation=markets[spot], **wishes))  # type: ignore[arg-type]


def listed(spec: PoolSpec) -> OfferList:
    """Return the offers that fit a spec, sorted by price whatever the market."""
    spec = replace(spec, allocation=spec.allocation or "cheapest")
    provider = provider_of(spec)
    ask: Any = getattr(provider, "price_list", None)
    return OfferList(*ask(spec)) if ask is not None else OfferList(provider.offers(spec))


def _shown(found: Sequence[Offer]) -> list[list[str]]:
    """Return the table's header and rows, without empty columns."""
    groups: dict[tuple[str, str], list[Offer]] = {}
    for one in found:
        groups.setdefault((one.name, one.region), []).append(one)
    rows = [list(_HEADS), *(_row(group) for group in groups.values())]
    kept = [column for column in range(len(_HEADS)) if any(row[column] not in ("", _UNKNOWN) for row in rows[1:])]
    return [[row[column] for column in kept] for row in rows]


def _row(group: Sequence[Offer]) -> list[str]:
    """Return the row of a type in a region, from its offers, the best first."""
    one = group[0]
    zones = dict.fromkeys(zone.removeprefix(one.region) for offer in group for zone in offer.zones)
    count = f"{one.count} × " if one.count > 1 else ""
    return [
        one.name,
        f"{count}{one.accelerator}" if one.accelerator else "",
        "" if one.vcpus is None else f"{one.vcpus:g}",
        "" if one.memory_gb is None else f"{one.memory_gb:g} GB",
        one.region,
        " ".join(zones),
        _price([offer for offer in group if offer.market != _SPOT]),
        _price([offer for offer in group if offer.market == _SPOT]),
    ]


def _price(several: Sequence[Offer]) -> str:
    """Return the lowest price as text; "?" if unknown, empty without an offer."""
    known = [one.hourly for one in several if one.hourly is not None]
    if not known:
        return _UNKNOWN if several else ""
    least = min(known)
    return f"${least:.{4 if least < 1 else 3 if least < 10 else 2}f}"


__all__ = ["OfferList", "listed", "offers"]
