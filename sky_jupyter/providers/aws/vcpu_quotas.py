"""Quotas of EC2: how many vCPUs of a family may run in a region."""

from __future__ import annotations

import contextlib
import re

from .clients import clients

_LINK = "https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
# Family -> quota codes of on-demand and spot machines.
_CODES = {
    "Standard": ("L-1216C47A", "L-34B43A08"),
    "G and VT": ("L-DB2E81BA", "L-3819A6DF"),
    "P": ("L-417A185B", "L-7212CCBC"),
    "Trn": ("L-2C3B7624", "L-6B0D517C"),
    "Inf": ("L-1945791B", "L-B5D1601B"),
}
_STANDARD = frozenset("acdhimrtz")
_FAMILIES = {"g": "G and VT", "gr": "G and VT", "vt": "G and VT", "p": "P", "trn": "Trn", "inf": "Inf"}


def family(kind: str) -> str:
    """Return the quota family of an instance type; empty if unknown."""
    letters = re.match(r"[a-z]*", kind)
    start = letters[0] if letters else ""
    if start in _FAMILIES:
        return _FAMILIES[start]
    return "Standard" if start[:1] in _STANDARD and start not in ("dl", "hpc") else ""


def code(kind: str, market: str) -> str:
    """Return the quota code of an instance type; empty if unknown."""
    found = _CODES.get(family(kind))
    return "" if found is None else found[market == "spot"]


def explain(kind: str, market: str, region: str, need: float | None, told: str, profile: str | None) -> str:
    """Return the quota's name, the need, the limit, and where to raise it.

    Parameters
    ----------
    kind : str
        Instance type.
    market : str
        ``"spot"`` or ``"on-demand"``.
    region : str
        Region.
    need : float or None
        vCPUs of the order.
    told : str
        AWS's message, which may name the limit.
    profile : str or None
        Profile to ask Service Quotas with. If that is not allowed, the limit stays unknown.

    Returns
    -------
    str
        One line.
    """
    number = code(kind, market)
    name = f"{'Spot' if market == 'spot' else 'On-Demand'} {family(kind) or kind} instances"
    limit = re.search(r"limit of (\d+)", told)
    have = float(limit[1]) if limit else None
    if number:
        with contextlib.suppress(Exception):
            quota = clients(profile).quotas(region).get_service_quota(ServiceCode="ec2", QuotaCode=number)["Quota"]
            name, have = quota.get("QuotaName", name), quota.get("Value", have)
    parts = [
        "" if need is None else f"{need:g} vCPUs needed",
        "" if have is None else f"{have:g} allowed in all",
    ]
    said = ", ".join(part for part in parts if part) or told
    which = f"{name!r}{f' ({number})' if number else ''}"
    return f"{region}: quota {which} is used up: {said}; raise it: {link(number, region)}"


def link(number: str, region: str) -> str:
    """Return the page on which a quota is raised."""
    return f"{_LINK}{f'/{number}' if number else ''}?region={region}"


__all__ = ["code", "explain", "family", "link"]
