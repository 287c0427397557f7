"""Stop and start of EC2 instances: stopped ones cost their disks only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import instances
from .api_errors import code_of, translated

if TYPE_CHECKING:
    from .clients import Clients

# An instance that is still stopping cannot be started, for a minute or so.
_STOPPING = "IncorrectInstanceState"
_PATIENCE, _PAUSE = 180.0, 2.0


def stop(clients: Clients, ids: Sequence[str], regions: Callable[[], Sequence[str]]) -> None:
    """Stop instances; ignore those that are stopped."""
    for region, several in _by_region(clients, ids, regions).items():
        with translated("stop instances", region, profile=clients.profile):
            clients.ec2(region).stop_instances(InstanceIds=several)


def start(clients: Clients, ids: Sequence[str], regions: Callable[[], Sequence[str]]) -> None:
    """Start stopped instances; ignore those that run."""
    from botocore.exceptions import ClientError

    end = time.monotonic() + _PATIENCE
    for region, several in _by_region(clients, ids, regions).items():
        with translated("start instances", region, profile=clients.profile):
            while True:
                try:
                    clients.launcher(region).start_instances(InstanceIds=several)
                    break
                except ClientError as error:
                    if code_of(error) != _STOPPING or time.monotonic() > end:
                        raise
                time.sleep(_PAUSE)


def _by_region(clients: Clients, ids: Sequence[str], regions: Callable[[], Sequence[str]]) -> dict[str, list[str]]:
    """Return the instances that are there, by region."""
    found = instances.find(clients, ids, regions)
    places: dict[str, list[str]] = {}
    for id in ids:
        if id in found:
            places.setdefault(found[id][0], []).append(id)
    return places


__all__ = ["start", "stop"]
