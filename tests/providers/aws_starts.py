"""Starts of pools on AWS's light world, each with faults at random points; see `tests.providers.starts`.

A start is a caller of its own, so that its faults are its own. Nobody can connect to these machines, so a start makes
them and ends them, or leaves them.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sky_jupyter.providers.aws import AWS
from tests.providers import starts
from tests.providers.aws_world import AwsWorld

ACTS = ("live", "leave")
_DEATHS = ("kill", "kill-after", "interrupt", "interrupt-after")
_REFUSED = {"code": "InsufficientInstanceCapacity", "status": 500}
# Faults of each action: how, and details.
FAULTS: dict[str, list[dict[str, Any]]] = {
    "RunInstances": [
        *({"how": how} for how in ("cut", "lost", "lost", "late", *_DEATHS)),
        _REFUSED,
        {**_REFUSED, "times": 3},
        *({"code": code} for code in ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "Unsupported")),
        *({"code": code, "status": 503} for code in ("RequestLimitExceeded", "InternalError", "Unavailable")),
        {"code": "UnauthorizedOperation", "status": 403},
        {"code": "IdempotentParameterMismatch"},
    ],
    "DescribeInstances": [
        *({"how": how} for how in ("cut", "kill", "interrupt")),
        {"code": "InternalError", "status": 500},
        {"code": "RequestLimitExceeded", "status": 503, "times": 5},
    ],
    "TerminateInstances": [
        *({"how": how} for how in ("cut", "lost", "kill", "kill-after", "interrupt-after")),
        {"code": "InvalidInstanceID.NotFound"},
        {"code": "InternalError", "status": 500, "times": 5},
    ],
    "CancelSpotInstanceRequests": [*({"how": how} for how in ("lost", "kill-after")), {"code": "InternalError"}],
    "CreateSecurityGroup": [*({"how": how} for how in ("lost", "kill-after")), {"code": "UnauthorizedOperation"}],
    "AuthorizeSecurityGroupIngress": [{"how": "lost"}, {"code": "InvalidPermission.Duplicate"}],
    "GetCallerIdentity": [{"code": "ExpiredToken", "status": 403}],
}


@dataclass(frozen=True)
class Start:
    """One start: what it does, and each fault with its action."""

    number: int
    act: str
    nodes: int
    market: str
    faults: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]

    @classmethod
    def of(cls, seed: int, number: int) -> Start:
        """What start this is."""
        chance = random.Random(f"aws/{seed}/{number}")
        faults = []
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            action = chance.choice(["RunInstances", "RunInstances", *FAULTS])
            details = {**chance.choice(FAULTS[action]), "skip": chance.randrange(2) if action[0] in "DT" else 0}
            faults.append((action, tuple(sorted(details.items()))))
        market = chance.choice(("spot", "on-demand", "spot-if-available"))
        return cls(number, chance.choice(ACTS), chance.randint(1, 4), market, tuple(faults))

    @property
    def caller(self) -> str:
        """Its access key."""
        return f"start{self.number}"


def carry_out(start: Start, folder: Path) -> None:
    """Be the notebook."""
    from sky_jupyter.pool.pool import Pool
    from sky_jupyter.spec.options import Options
    from sky_jupyter.spec.pool_spec import PoolSpec

    world = AwsWorld(os.environ["AWS_ENDPOINT_URL"])
    os.environ["AWS_ACCESS_KEY_ID"] = start.caller
    for action, details in start.faults:
        world.plan(action, caller=start.caller, **dict(details))
    provider = AWS(region="us-east-1", instance_type="t3.medium", ssh_from="any", visible_within=0.1)
    options = Options(provision_retry_delay=0.01, console=False, shutdown_timeout=10.0)
    spec = PoolSpec(provider, nodes=start.nodes, name=start.caller, allocation=start.market, options=options)
    pool = Pool(spec)
    pool.lifecycle.provisioning.plan(spec)
    pool.registry.intend(pool.id, start.caller, provider.kind, start.nodes, keep=False)
    pool.lifecycle.provisioning.begin()
    try:
        ids = starts.acquire(pool, start.nodes)
        _check(world, pool, ids, start)
        if start.act == "leave":
            return
        world.interrupt(ids[0])
        _check(world, pool, starts.acquire(pool, start.nodes, ids), start)
    except BaseException:
        pool.down()
        raise
    pool.down()


def _check(world: AwsWorld, pool: Any, ids: list[str], start: Start) -> None:
    assert len(set(ids)) == start.nodes
    there = world.alive(pool.id)
    assert len(there) <= start.nodes, f"bought twice: {there}, of which {ids} are nodes"


if __name__ == "__main__":
    starts.serve(Start.of, carry_out)
