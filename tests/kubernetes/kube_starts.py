"""Starts of pools on Kubernetes, each with faults at random points; see `tests.providers.starts`.

A start has its own kubeconfig, whose way to the API server is `faulty_api`. Its pods find no node, so that a start
costs objects only: it makes them, mostly more of them, and ends them or leaves them.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes import containers, faulty_api
from tests.providers import starts

ADDRESS = "SKY_TEST_FAULTY_API"
ACTS = ("live", "live", "leave")
_DEATHS = ("kill", "kill-after", "interrupt", "interrupt-after")
# Faults of each request: how, and details.
FAULTS: dict[str, list[dict[str, Any]]] = {
    "POST trainjobs": [
        *({"how": how} for how in ("cut", "lost", "lost", "late", *_DEATHS)),
        *({"code": code} for code in (409, 429, 500, 503, 403, 401)),
        {"code": 500, "times": 4},
        {"how": "lost", "times": 3},
    ],
    "GET trainjobs": [
        *({"how": how} for how in ("cut", "late", "kill", "interrupt")),
        *({"code": code} for code in (429, 500, 404)),
        {"code": 503, "times": 4},
    ],
    "GET pods": [*({"how": how} for how in ("cut", "interrupt")), {"code": 500}, {"code": 401, "times": 2}],
    "DELETE trainjobs": [
        *({"how": how} for how in ("cut", "lost", "kill", "kill-after", "interrupt-after")),
        *({"code": code} for code in (404, 409, 500)),
        {"code": 503, "times": 5},
    ],
    "POST selfsubjectaccessreviews": [{"how": "cut"}, {"how": "kill"}, {"code": 500}],
    "GET clustertrainingruntimes": [{"how": "interrupt"}, {"code": 403}, {"code": 500}],
}


@dataclass(frozen=True)
class Start:
    """One start: what it does, and each fault with its request."""

    number: int
    act: str
    nodes: int
    # Whether its pods are those of TrainJobs, or bare ones.
    jobs: bool
    faults: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]

    @classmethod
    def of(cls, seed: int, number: int) -> Start:
        """What start this is."""
        chance = random.Random(f"kubernetes/{seed}/{number}")
        faults, jobs = [], chance.random() < 0.7
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            action = chance.choice(["POST trainjobs", "POST trainjobs", *FAULTS])
            details = {**chance.choice(FAULTS[action]), "skip": chance.randrange(2) if "trainjobs" in action else 0}
            name = action if jobs else action.replace("trainjobs", "pods")
            faults.append((name, tuple(sorted(details.items()))))
        return cls(number, chance.choice(ACTS), chance.randint(1, 3), jobs, tuple(faults))

    @property
    def name(self) -> str:
        """The pool's name, and the caller's."""
        return f"start{self.number}"


def carry_out(start: Start, folder: Path) -> None:
    """Be the notebook."""
    from sky_jupyter.pool.pool import Pool
    from sky_jupyter.providers.kubeflow import Kubeflow, Kubernetes
    from sky_jupyter.spec.options import Options
    from sky_jupyter.spec.pool_spec import PoolSpec

    for action, details in start.faults:
        faulty_api.plan(os.environ[ADDRESS], start.name, action, dict(details))
    where = {"kubeconfig": str(folder / f"{start.name}.conf"), "node_selector": {"sky-tests/none": "1"}}
    provider = Kubeflow(**where) if start.jobs else Kubernetes(image=containers.BARE, **where)
    options = Options(provision_retry_delay=0.01, console=False, shutdown_timeout=10.0)
    spec = PoolSpec(provider, nodes=start.nodes, name=start.name, options=options)
    pool = Pool(spec)
    pool.lifecycle.provisioning.plan(spec)
    pool.registry.intend(pool.id, start.name, provider.kind, start.nodes, keep=False)
    pool.lifecycle.provisioning.begin()
    try:
        ids = starts.acquire(pool, start.nodes)
        assert len(set(ids)) == start.nodes
        if start.act == "leave":
            return
        # One more TrainJob.
        more = starts.acquire(pool, start.nodes + 1, ids)
        assert len(set(more)) == start.nodes + 1
    except BaseException:
        pool.down()
        raise
    pool.down()


if __name__ == "__main__":
    # Forked, they need not be imported again.
    import kubeflow.trainer  # noqa: F401
    import kubernetes.config  # noqa: F401

    import sky_jupyter.providers.kubeflow  # noqa: F401

    starts.serve(Start.of, carry_out)
