"""Prices of EC2's instances: list prices, and those of the spot market.

AWS's answers are kept in the user's cache: list prices for a day, spot prices for a quarter of an hour. A list price
that cannot be fetched comes from the packaged catalogue, in the catalogue's region only. An unknown price is None, and
blocks nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ...errors import SkyError
from .. import answer_cache
from .api_errors import translated
from .instance_type_catalog import catalogue, identity

if TYPE_CHECKING:
    from .clients import Clients

_DAY, _QUARTER = 86_400.0, 15 * 60.0
# Maximum seconds to wait for list prices, and seconds after a failure until they are fetched again.
_PATIENCE, _PAUSE = 8.0, 600.0
_AT_ONCE = 8
_LINUX = "Linux/UNIX"
_TERMS = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "tenancy": "Shared",
}
_refused: dict[tuple[str | None, str, str], float] = {}


def hourly(clients: Clients | None, name: str, region: str, zone: str = "", market: str = "on-demand") -> float | None:
    """Return the price of a machine in dollars an hour; None if it is not known.

    Parameters
    ----------
    clients : Clients or None
        Clients to ask AWS with; with None, only the catalogue is read.
    name : str
        Instance type.
    region : str
        Region.
    zone : str
        Zone. Without one, the price on the spot market is that of the cheapest zone.
    market : str
        ``"on-demand"`` or ``"spot"``.

    Returns
    -------
    float or None
        Dollars an hour.
    """
    if market != "spot":
        return listed(clients, [name], region).get(name, (None, ""))[0]
    zones = {} if clients is None else spot(clients, [name], region).get(name, {})
    return zones.get(zone) if zone else min(zones.values(), default=None)


def listed(clients: Clients | None, names: Sequence[str], region: str) -> dict[str, tuple[float, str]]:
    """Return known on-demand prices, each with a text that says where it comes from."""
    found = _packaged(names) if region == catalogue()["region"] else {}
    if clients is not None:
        subject = ("aws", "prices", region, str(clients.pricing().meta.endpoint_url))
        asked = answer_cache.lookup(subject, names, _DAY, lambda missing: _ask_list(clients, missing, region))
        for name, (at, price) in asked.items():
            if price is not None:
                day = time.strftime("%Y-%m-%d", time.gmtime(at))
                found[name] = float(price), f"list price of {day}"
    return found


def spot(clients: Clients, names: Sequence[str], region: str) -> dict[str, dict[str, float]]:
    """Return current spot prices by type and zone; empty if AWS gives none."""

    def fetch(missing: Sequence[str]) -> dict[str, dict[str, float]]:
        rows = sorted(_history(clients, missing, region, time.time()), key=lambda row: row["Timestamp"])
        found: dict[str, dict[str, float]] = {name: {} for name in missing}
        for row in rows:
            found.setdefault(row["InstanceType"], {})[row["AvailabilityZone"]] = float(row["SpotPrice"])
        return found

    with contextlib.suppress(SkyError):
        asked = answer_cache.lookup(("aws", "spot", *identity(clients, region), region), names, _QUARTER, fetch)
        return {name: zones for name, (at, zones) in asked.items() if time.time() - at < _QUARTER and zones}
    return {}


def spot_history(
    clients: Clients, name: str, region: str, zone: str, since: float, until: float
) -> list[tuple[float, float]]:
    """Return the spot prices of a period, in order: start time, and dollars an hour.

    Parameters
    ----------
    clients : Clients
        Clients to ask AWS with.
    name : str
        Instance type.
    region : str
        Region.
    zone : str
        Zone.
    since : float
        Start of the period, in seconds since 1970.
    until : float
        End of the period.

    Returns
    -------
    list of tuple
        The first price is the one that was valid at ``since``. Empty if AWS gives none.
    """
    rows = _history(clients, [name], region, since, until, AvailabilityZone=zone)
    found = sorted((row["Timestamp"].timestamp(), float(row["SpotPrice"])) for row in rows)
    before = max((at for at, _ in found if at <= since), default=0.0)
    return [(at, price) for at, price in found if at >= before]


def _history(
    clients: Clients, names: Sequence[str], region: str, since: float, until: float | None = None, **more: Any
) -> list[Any]:
    ends = {"StartTime": since, **({} if until is None else {"EndTime": until})}
    times = {key: datetime.fromtimestamp(at, timezone.utc) for key, at in ends.items()}
    with translated("ask for spot prices", region, profile=clients.profile):
        pages = (
            clients.ec2(region)
            .get_paginator("describe_spot_price_history")
            .paginate(InstanceTypes=list(names), ProductDescriptions=[_LINUX], **times, **more)
        )
        return [row for page in pages for row in page["SpotPriceHistory"]]


def _packaged(names: Iterable[str]) -> dict[str, tuple[float, str]]:
    said = f"list price of {catalogue()['priced']}, {catalogue()['region']}"
    found = {}
    for name in names:
        family, _, size = name.partition(".")
        price = catalogue()["families"].get(family, {}).get("sizes", {}).get(size, [None])[-1]
        if price is not None:
            found[name] = price, said
    return found


def _ask_list(clients: Clients, names: Sequence[str], region: str) -> dict[str, float | None]:
    """Return the list prices that arrive in time; empty for a while after a failure."""
    key = (clients.profile, clients.pricing().meta.endpoint_url, str(answer_cache.folder()))
    if time.monotonic() - _refused.get(key, -_PAUSE) < _PAUSE:
        return {}
    workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sky-prices")
    calls = {workers.submit(_ask_one, clients.pricing(), name, region): name for name in names}
    done, _ = wait(calls, timeout=_PATIENCE)
    workers.shutdown(wait=False, cancel_futures=True)
    if len(done) < len(calls) or any(call.exception() for call in done):
        _refused[key] = time.monotonic()
    return {calls[call]: call.result() for call in done if not call.exception()}


def _ask_one(pricing: Any, name: str, region: str) -> float | None:
    """Return the list price of a type; None if it is not sold on demand."""
    terms = {**_TERMS, "instanceType": name, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
    answer = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)
    found = [price for text in answer["PriceList"] for price in _dollars(json.loads(text))]
    return min(found, default=None)


def _dollars(product: Mapping[str, Any]) -> Iterable[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs" and (price := float(dimension["pricePerUnit"].get("USD", 0))):
                yield price


__all__ = ["hourly", "listed", "spot", "spot_history"]
