"""The providers of pods keep the contract on a real API server, and tell in words what it refuses."""

from __future__ import annotations

import time
import uuid

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import NoCapacity, OrderSpent, ProvisionError, SkyError, Unanswered
from sky_jupyter.providers import Kubeflow, Kubernetes
from sky_jupyter.providers.kubeflow.pod_provider import PodProvider
from sky_jupyter.providers.provisioning_types import Offer, Order
from sky_jupyter.spec.accelerators import Accelerator
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.kubernetes import containers
from tests.kubernetes.space import Space
from tests.providers.conformance import ProvisionerConformance

pytestmark = [pytest.mark.root, pytest.mark.slow]
SMALL = {"cpu": "20m", "memory": "64Mi"}


def options(space: Space, user: str = "ada") -> dict[str, object]:
    return {"kubeconfig": str(space.kubeconfig(user)), "image": containers.BARE, "resources": SMALL}


class RunningPods(ProvisionerConformance):
    """A single pod is ended over exec: it must run."""

    def test_one_machine_ends_and_the_others_stay(self, provider: PodProvider, spec: PoolSpec, placed: Order) -> None:
        ids = list(provider.create(spec, self.count, placed))  # type: ignore[attr-defined]
        limit = time.monotonic() + 60.0
        while {one.state for one in provider.describe(ids)} != {"running"} and time.monotonic() < limit:  # type: ignore[attr-defined]
            time.sleep(0.2)
        super().test_one_machine_ends_and_the_others_stay(provider, spec, placed)  # type: ignore[arg-type]


class TestTrainJobs(RunningPods):
    @pytest.fixture
    def provider(self, space: Space) -> Kubeflow:
        return Kubeflow(**options(space))  # type: ignore[arg-type]


class TestBarePods(RunningPods):
    @pytest.fixture
    def provider(self, space: Space) -> Kubernetes:
        space.allow("ada", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}])
        return Kubernetes(**options(space))  # type: ignore[arg-type]


def order(offer: str = "jax-distributed") -> Order:
    return Order(uuid.uuid4().hex[:8], uuid.uuid4().hex, Offer(offer, None), until=time.time() + 600)


def make(provider: Kubeflow | Kubernetes, nodes: int = 1, **wishes: object) -> list[str]:
    spec = PoolSpec(provider=provider, nodes=nodes, **wishes)  # type: ignore[arg-type]
    return list(provider.create(spec, nodes, order()))


def test_the_runtime_is_that_of_the_plugins_or_the_named_one(space: Space) -> None:
    provider = Kubeflow(**options(space))  # type: ignore[arg-type]
    for plugins, runtime in (((sky.plugins.jax(),), "jax-distributed"), ((sky.plugins.torch(),), "torch-distributed")):
        (offer,) = provider.offers(PoolSpec(provider=provider, plugins=plugins))
        assert (offer.name, offer.region, offer.hourly) == (runtime, space.name, None)
    with pytest.raises(ProvisionError, match="no training runtime 'jax-distribute'; did you mean 'jax-distributed'"):
        make(Kubeflow(runtime="jax-distribute", **options(space)))  # type: ignore[arg-type]
    table = sky.offers(Kubeflow(**options(space, "admin")))  # type: ignore[arg-type]
    assert {one.name for one in table} >= {"jax-distributed", "torch-distributed"}
    assert "packages of the image" in repr(table)
    assert "$" not in repr(table)


def test_rights_that_are_missing_are_told_as_a_role(space: Space) -> None:
    space.allow("bob", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    with pytest.raises(ProvisionError) as caught:
        make(Kubeflow(**options(space, "bob")))  # type: ignore[arg-type]
    told = str(caught.value)
    assert "may not: get clustertrainingruntimes" in told
    assert "create trainjobs" in told
    assert "kind: Role\n" in told
    assert "kind: ClusterRoleBinding" in told
    assert "resources: [pods]" not in told
    assert space.all("trainjobs") == []
    # What is told makes it work.
    text = told[told.index("apiVersion") :].replace("NAME", "bob").replace("sky-jupyter-runtimes", f"{space.name}-bob")
    made = space.folder / "role.yaml"
    made.write_text(text)
    space.kubectl("apply", "-f", str(made))
    provider = Kubeflow(**options(space, "bob"))  # type: ignore[arg-type]
    space.wait("the rights are known", lambda: _made(provider))


def _made(provider: Kubeflow) -> bool:
    try:
        provider.destroy(make(provider))
    except ProvisionError:
        return False
    return True


def test_what_the_cluster_refuses_is_told_in_words(space: Space) -> None:
    admin = options(space, "admin")
    with pytest.raises(ProvisionError, match="there is no namespace 'nowhere'; --namespace"):
        make(Kubernetes(namespace="nowhere", **admin))  # type: ignore[arg-type]
    space.kubectl("create", "quota", "full", "--hard=pods=1")
    with pytest.raises(NoCapacity, match="exceeded quota: full"):
        make(Kubernetes(**admin), 2)  # type: ignore[arg-type]
    space.wait("none is left", lambda: not space.pods())
    two = Kubeflow(**{**admin, "resources": {"gpu": 2}})  # type: ignore[arg-type]
    with pytest.raises(ProvisionError, match=r"resources say nvidia\.com/gpu: 2"):
        make(two, accelerator=Accelerator("A100"))
    assert space.all("trainjobs") == []


def test_expired_credentials_and_an_api_that_is_away_are_told(space: Space) -> None:
    provider = Kubeflow(**options(space))  # type: ignore[arg-type]
    assert provider.list(None) == []
    space.expire()
    with pytest.raises(ProvisionError, match="credentials have expired or are not known there; renew those of context"):
        provider.list(None)
    space.renew()
    space.kubeconfig()
    assert provider.list(None) == []
    space.own_api()
    away = Kubeflow(**options(space))  # type: ignore[arg-type]
    space.stop_api()
    with pytest.raises(Unanswered, match="its API cannot be reached"):
        away.list(None)


def test_an_order_whose_job_was_deleted_is_not_made_again(space: Space) -> None:
    provider, asked = Kubeflow(**options(space)), order()  # type: ignore[arg-type]
    spec = PoolSpec(provider=provider)
    provider.destroy(provider.create(spec, 1, asked))
    with pytest.raises(OrderSpent):
        provider.create(spec, 1, asked)
    assert isinstance(OrderSpent("x"), SkyError)
