"""What the API says of pods, as machines."""

from __future__ import annotations

import sky_jupyter as sky
from sky_jupyter.pool.lifecycle.zone_choice import nearest
from sky_jupyter.providers.kubeflow import Kubeflow
from sky_jupyter.providers.kubeflow.pod_records import INDEX, PodGroup, facts, records
from sky_jupyter.providers.provisioning_types import RUNNING, Offer
from sky_jupyter.spec.pool_spec import PoolSpec

POD = {
    "metadata": {"name": "sky-a-b-node-0-0-x", "uid": "7", "annotations": {INDEX: "0"}},
    "spec": {"nodeName": "gpu-17"},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "containerStatuses": [{"name": "node", "restartCount": 0, "state": {"running": {}}}],
    },
}


def test_a_pool_whose_ranks_wait_for_each_other_grows_by_pods_of_any_node() -> None:
    (pod,) = records(PodGroup("people", "sky-a-b", 1, "a", facts({"namespace": "people"}, "jax-distributed")), [POD])
    assert (pod.state, pod.incarnation, pod.addresses) == (RUNNING, "7", ("10.0.0.7",))
    spec = PoolSpec(provider=Kubeflow(), nodes=2, plugins=(sky.plugins.jax(),))
    place = (Offer("jax-distributed", None, region="people"), "")
    assert nearest([place], [pod], spec) == [place]
