"""Launch of instances: one `run_instances` call, all or nothing, in one zone.

The request depends only on the spec, the order, the pool's keys and the account's network. So a request that is sent
again with its token is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError
from ...machines.ssh import pool_keys
from . import instance_type_catalog, instances, machine_images, user_data, vpc_network
from .api_errors import NotAuthorized, code_of, translated

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from ..provisioning_types import Order
    from .clients import Clients
    from .context import AWSContext
    from .instance_type_catalog import InstanceType
    from .vpc_network import Subnet

# Name of the note beside a pool's keys that has the region of its placement group.
PLACEMENT = "placement_group_region"
_MOST_TAG = 255
# Every fourth EFA card of these types has an IP address too.
_EFA_BY_FOUR = ("p5.", "p5e.")
# Errors about a group that was just created and is not known everywhere yet.
_NOT_YET = ("InvalidGroup.NotFound", "InvalidPlacementGroup.Unknown")


def run(aws: AWSContext, clients: Clients, spec: PoolSpec, count: int, order: Order) -> list[str]:
    """Launch an order's instances; return their ids.

    Raises NoCapacity if another place may have machines, OrderSpent if the token cannot be used again, and
    ProvisionError in all other cases, with ``passing`` set if the same call may succeed later.
    """
    offer = order.offer
    if offer is None:
        raise ProvisionError("an order of AWS names an offer")
    region, market = offer.region, offer.market
    with translated("prepare the launch", region, order.zone, market, aws.profile, kind=offer.name):
        wanted = request(aws, clients, spec, count, order)
    try:
        answer = _sent(aws, clients, order, count, wanted)
    except ProvisionError as error:
        error.passing = error.passing or code_of(error) in _NOT_YET
        raise
    ids = [str(one["InstanceId"]) for one in answer["Instances"]]
    instances.remember(ids, region)
    return ids


def _sent(aws: AWSContext, clients: Clients, order: Order, count: int, wanted: dict[str, Any]) -> Any:
    """Send the request; if tags of volumes are not allowed, again without them."""
    offer = order.offer
    assert offer is not None
    vcpus = None if offer.vcpus is None else offer.vcpus * count

    def send(tagged: list[dict[str, Any]]) -> Any:
        where = (offer.region, order.zone, offer.market, aws.profile)
        with translated("launch instances", *where, kind=offer.name, vcpus=vcpus):
            return clients.launcher(offer.region).run_instances(**{**wanted, "TagSpecifications": tagged})

    kinds = wanted["TagSpecifications"]
    try:
        return send(kinds)
    except NotAuthorized as error:
        if not error.action.endswith(":CreateTags") or ":volume/" not in error.resource:
            raise
    return send([one for one in kinds if one["ResourceType"] != "volume"])


def request(aws: AWSContext, clients: Clients, spec: PoolSpec, count: int, order: Order) -> dict[str, Any]:
    """Return the arguments of `run_instances`; botocore's errors are not translated."""
    assert order.offer is not None
    region = order.offer.region
    type = instance_type_catalog.named(clients, region, order.offer.name)
    place = vpc_network.subnet(aws, clients, region, order.zone)
    image = machine_images.find(aws, clients, region, spec, type)
    together = spec.nodes > 1 and type.efa > 0 and bool(type.accelerator)
    group = vpc_network.group(aws, clients, region, place, efa=together)
    keys = pool_keys.make(order.pool)
    made: dict[str, Any] = {
        "ImageId": image.id,
        "InstanceType": type.name,
        "MinCount": count,
        "MaxCount": count,
        "ClientToken": order.token,
        "BlockDeviceMappings": image.volumes,
        "NetworkInterfaces": _interfaces(place, group, type if together else None),
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": user_data.text(order, keys),
        "TagSpecifications": _tags(order, image.disk_gb),
    }
    if together and not aws.reservation:
        keys.note(PLACEMENT, region)
        made["Placement"] = {"GroupName": vpc_network.placement_group(clients, region, order.pool)}
    if aws.iam_instance_profile:
        by = "Arn" if aws.iam_instance_profile.startswith("arn:") else "Name"
        made["IamInstanceProfile"] = {by: aws.iam_instance_profile}
    if order.offer.market == "spot":
        # No maximum price: with a lower one, machines would be interrupted more often.
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        made["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    if aws.reservation:
        target = {"CapacityReservationTarget": {"CapacityReservationId": aws.reservation}}
        made["CapacityReservationSpecification"] = target
        facts = _reservation(clients, region, aws.reservation)
        if facts.get("ReservationType") == "capacity-block":
            made["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        if arn := facts.get("PlacementGroupArn"):
            made["Placement"] = {"GroupName": arn.rpartition("/")[2]}
    return made


def _interfaces(place: Subnet, group: str, efa: InstanceType | None) -> list[dict[str, Any]]:
    """Return the network interfaces of each instance.

    EC2 gives no public address to an instance with several interfaces: in a public subnet, only the first EFA card is
    used.
    """
    common = {"SubnetId": place.id, "Groups": [group], "DeleteOnTermination": True}
    cards: list[dict[str, Any]] = [{"DeviceIndex": 0}]
    if efa is not None:
        cards = [_efa_card(efa, card) for card in range(1 if place.public else efa.efa)]
    if len(cards) == 1:
        cards[0]["AssociatePublicIpAddress"] = place.public
    return [{**common, **card} for card in cards]


def _efa_card(type: InstanceType, card: int) -> dict[str, Any]:
    if card == 0:
        return {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "efa"}
    both = card % 4 == 0 and type.name.startswith(_EFA_BY_FOUR)
    return {"NetworkCardIndex": card, "DeviceIndex": 1, "InterfaceType": "efa" if both else "efa-only"}


def _tags(order: Order, disk_gb: int) -> list[dict[str, Any]]:
    name = f"{instances.NAME}{order.name or order.pool}"
    values = {"Name": name[:_MOST_TAG], instances.POOL: order.pool, instances.OWNER: order.owner[:_MOST_TAG]}
    if order.until is not None:
        values[instances.UNTIL] = f"{order.until:.0f}"
    kinds = ["instance", "volume", "network-interface"]
    if order.offer is not None and order.offer.market == "spot":
        kinds.append("spot-instances-request")
    tags = [{"Key": name, "Value": text} for name, text in values.items()]
    made = [{"ResourceType": kind, "Tags": tags} for kind in kinds]
    made[0] = {"ResourceType": kinds[0], "Tags": [*tags, {"Key": instances.DISK, "Value": str(disk_gb)}]}
    return made


def _reservation(clients: Clients, region: str, id: str) -> dict[str, Any]:
    """Return EC2's description of a reservation; empty if there is none.

    A capacity block is a market of its own. A reservation's machines are always in the placement group in which it was
    made, never in one that was made later.
    """
    found = clients.ec2(region).describe_capacity_reservations(CapacityReservationIds=[id])["CapacityReservations"]
    return dict(found[0]) if found else {}
