"""EC2 instances: found by tag or id, described, terminated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...errors import Unanswered
from ...util.background_tasks import map_all
from ..provisioning_types import ENDED, ENDING, PENDING, RUNNING, STOPPED, MachineRecord
from .api_errors import code_of, translated
from .clients import FIRST_REGION

if TYPE_CHECKING:
    from .clients import Clients

POOL, OWNER, UNTIL = "sky-jupyter", "sky-jupyter-owner", "sky-jupyter-until"
DISK = "sky-jupyter-disk-gb"
# The tag "Name" is this prefix and the pool's name.
NAME = "sky-jupyter "
_STATES = {
    "pending": PENDING,
    "running": RUNNING,
    "shutting-down": ENDING,
    "terminated": ENDED,
    "stopping": STOPPED,
    "stopped": STOPPED,
}
_SEEN = ("pending", "running", "shutting-down", "stopping", "stopped")
_UNKNOWN = ("InvalidInstanceID.NotFound", "InvalidSpotInstanceRequestID.NotFound")
# Maximum number of values of one filter.
_MOST_VALUES = 200
Found = tuple[str, dict[str, Any]]
"""Region of an instance, and its description."""
# Id -> region of the instances that this process has seen: EC2's calls need both.
_regions: dict[str, str] = {}


def tagged(pool: str | None) -> list[dict[str, Any]]:
    """Return filters for instances of a pool, or of any pool, that have not ended."""
    tag = {"Name": "tag-key", "Values": [POOL]} if pool is None else {"Name": f"tag:{POOL}", "Values": [pool]}
    return [tag, {"Name": "instance-state-name", "Values": list(_SEEN)}]


def records(clients: Clients, filters: Sequence[Mapping[str, Any]], regions: Sequence[str]) -> list[MachineRecord]:
    """Return the instances that match the filters, by region."""
    return [
        record_of(instance, region)
        for region, found in zip(regions, _all(clients, filters, regions), strict=True)
        for instance in found
    ]


def record_of(instance: Mapping[str, Any], region: str) -> MachineRecord:
    """Return the record of an instance as EC2 describes it."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    until: float | None = None
    with contextlib.suppress(KeyError, ValueError):
        until = float(tags[UNTIL])
    disk: float | None = None
    with contextlib.suppress(KeyError, ValueError):
        disk = float(tags[DISK])
    launched: datetime | None = instance.get("LaunchTime")
    addresses = (instance.get("PublicIpAddress"), instance.get("PrivateIpAddress"))
    _regions[instance["InstanceId"]] = region
    return MachineRecord(
        instance["InstanceId"],
        _STATES.get(instance["State"]["Name"], instance["State"]["Name"]),
        pool=tags.get(POOL, ""),
        addresses=tuple(address for address in addresses if address),
        region=region,
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        kind=instance.get("InstanceType", ""),
        market=instance.get("InstanceLifecycle", "on-demand"),
        launched=launched.timestamp() if launched else None,
        until=until,
        owner=tags.get(OWNER, ""),
        name=tags.get("Name", "").removeprefix(NAME),
        reason=str(instance.get("StateReason", {}).get("Message") or instance.get("StateTransitionReason") or ""),
        disk_gb=disk,
        public=bool(instance.get("PublicIpAddress")),
    )


def remember(ids: Iterable[str], region: str) -> None:
    """Note the region of new instances, which are not listed yet."""
    _regions.update(dict.fromkeys(ids, region))


def enabled_regions(clients: Clients) -> list[str]:
    """Return the regions that the account may use."""
    region = clients.default_region() or FIRST_REGION
    with translated("list the regions", region, profile=clients.profile):
        return sorted(found["RegionName"] for found in clients.ec2(region).describe_regions()["Regions"])


def find(clients: Clients, ids: Sequence[str], home: Callable[[], Sequence[str]]) -> dict[str, Found]:
    """Return region and description of the instances with these ids.

    Parameters
    ----------
    clients : Clients
        The API's clients.
    ids : sequence of str
        Ids, which may be unknown.
    home : callable
        Returns the regions to search first for instances that this process has not seen. If some are still missing,
        all regions are searched.

    Returns
    -------
    dict
        By id. EC2 lists an instance from a moment after its launch until an hour after its end.
    """
    found: dict[str, Found] = {}
    asked: set[str] = set()
    seen = {_regions[id] for id in ids if id in _regions}
    for places in (lambda: seen, home, lambda: enabled_regions(clients)):
        names = [region for region in places() if region not in asked]
        asked.update(names)
        wanted = [id for id in ids if id not in found]
        for region, several in zip(names, _by_id(clients, wanted, names), strict=True):
            found.update({one["InstanceId"]: (region, one) for one in several})
        _regions.update({id: region for id, (region, _) in found.items()})
        # An instance that was seen is in no other region.
        if all(id in _regions for id in ids):
            break
    return found


def console(clients: Clients, record: MachineRecord) -> str:
    """Return what an instance has written to its console, as far as EC2 has it."""
    return str(clients.ec2(record.region).get_console_output(InstanceId=record.id).get("Output", ""))


def terminate(clients: Clients, ids: Sequence[str], home: Callable[[], Sequence[str]]) -> None:
    """Terminate instances and their spot requests; ignore those that have ended.

    Parameters
    ----------
    clients : Clients
        The API's clients.
    ids : sequence of str
        Ids, which may be unknown.
    home : callable
        As for `find`.
    """
    found = find(clients, ids, home)
    unlisted = [id for id in ids if id not in found and id in _regions]
    for region in dict.fromkeys([*(place for place, _ in found.values()), *(_regions[id] for id in unlisted)]):
        ours = {id: one for id, (place, one) in found.items() if place == region}
        alive = [id for id, one in ours.items() if one["State"]["Name"] not in ("shutting-down", "terminated")]
        requests = [one["SpotInstanceRequestId"] for one in ours.values() if one.get("SpotInstanceRequestId")]

        def cancel(region: str = region, requests: Sequence[str] = requests) -> None:
            # An open request counts against the quota until EC2 notices that its instance has ended.
            with translated("cancel spot requests", region, profile=clients.profile):
                _each(clients.ec2(region).cancel_spot_instance_requests, "SpotInstanceRequestIds", requests)

        again = False
        try:
            cancel()
        except Unanswered:
            again = True
        finally:
            with translated("terminate instances", region, profile=clients.profile):
                end = clients.ec2(region).terminate_instances
                _each(end, "InstanceIds", alive)
                for id in (id for id in unlisted if _regions[id] == region):
                    _each(end, "InstanceIds", [id])
        if again:
            cancel()


def _each(call: Callable[..., Any], name: str, ids: Sequence[str]) -> None:
    """Call for all ids at once; if EC2 refuses an unknown id, call for each id."""
    from botocore.exceptions import ClientError

    if not ids:
        return
    try:
        call(**{name: list(ids)})
    except ClientError as error:
        if code_of(error) not in _UNKNOWN:
            raise
        for id in ids if len(ids) > 1 else ():
            _each(call, name, [id])


def _all(clients: Clients, filters: Sequence[Mapping[str, Any]], regions: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the matching instances of each region."""

    def ask(region: str) -> list[dict[str, Any]]:
        with translated("list instances", region, profile=clients.profile):
            pages = clients.ec2(region).get_paginator("describe_instances").paginate(Filters=list(filters))
            return [one for page in pages for group in page["Reservations"] for one in group["Instances"]]

    return map_all(ask, regions, "sky-aws") if len(regions) > 1 else [ask(region) for region in regions]


def _by_id(clients: Clients, ids: Sequence[str], regions: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the instances of each region with these ids; unknown ids are no error."""
    parts = [ids[start : start + _MOST_VALUES] for start in range(0, len(ids), _MOST_VALUES)]
    answers = [_all(clients, [{"Name": "instance-id", "Values": list(part)}], regions) for part in parts]
    return [[one for answer in answers for one in answer[number]] for number in range(len(regions))]


__all__ = [
    "DISK",
    "NAME",
    "OWNER",
    "POOL",
    "UNTIL",
    "console",
    "enabled_regions",
    "find",
    "record_of",
    "records",
    "remember",
    "tagged",
    "terminate",
]
