"""docs/from-skyward.md tells the truth: each name it gives is here, and none of Skyward's is left out."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.api import skyward_names
from tests.programs import ROOT

# All that Skyward's releases 0.10.0 and 0.12.1 export.
PUBLIC = """
AWS Accelerator AllocationStrategy App Application CallbackWriter Client ClusterDestroyed ClusterId
ClusterProvisioned ClusterReady ClusterRequested Compute ComputeAbandoned ComputeAdopted ComputeBound
ComputeCreated ComputeDegraded ComputeDeleted ComputeDeleting ComputeDeletionFailed ComputeProvisioning
ComputeReady ComputeState ComputeView Consistency ConsoleEvent Container CostEvent DEFAULT_IMAGE
DistributedRegistry DockerImage EmittedEvent Error Event EventCallback Executor Fact GCP GenerationApplied
GenerationCreated Group HealthChecker Hyperstack Image Info InstanceBootstrapped InstanceDestroyed InstanceId
InstanceInfo InstancePreempted InstanceProvisioned InstanceReplaced InstanceRequested InstanceType JarvisLabs
Lambda LambdaCloud LeaseClaimed LeaseReleased Log LogConfig Lost MassedCompute Metric MetricEvent MetricSpec
NoOffersError NodeEvent NodeId NodeInstance NodeState NodeView Nodes Novita Offer OfferRepository Options Pending
PendingFunction PendingFunctionGroup PhaseEvent PhaseView PipIndex Pool PoolSpec Port ProgressEvent Provider
ProviderName ProvisioningError Request RequestId Retry RunPod Salad Scaleway SelectionStrategy Session
ShutdownCompleted ShutdownRequested SkywardError Spec SpecKwargs Storage StraysTerminated Streaming TaskCompleted
TaskEvent TaskFailedError TaskIndeterminateError TaskStarted TaskState TaskView TensorDock VastAI Verda Volume
Vultr Worker WorkerExecutor accelerators app barrier containers counter dict emit function gather instance_info
is_head lock main metrics observability offers plugins queue redirect_output registry set shard silent sky stderr
stdout storage stream time
"""
NAME = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[list[str], str, list[str]]]:
    """Each row of the tables: Skyward's names, what is said of them, and what they are called here."""
    found = []
    for line in (ROOT / "docs" / "from-skyward.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and NAME.match(cells[1]):
            names, said = NAME.findall(cells[1]), cells[2]
            found.append((names, said.partition(" `")[0], NAME.findall(said) or names))
    return found


def find(name: str) -> Any:
    """What a name of the page means: ``Options(cluster=)`` an argument, ``counter().add`` of what a call gives."""
    thing: Any = sky
    for part in name.split("."):
        plain, _, given = part.partition("(")
        thing = _attribute(thing, plain)
        if given == ")" and thing is sky.function:
            thing = sky.function(len)
        elif given == ")":
            thing = typing.get_type_hints(thing).get("return", thing)
        elif given:
            thing = _parameter(thing, given.rstrip(")").rstrip("="))
    return thing


def _attribute(thing: Any, name: str) -> Any:
    if name in getattr(thing, "__dataclass_fields__", ()):
        return thing.__dataclass_fields__[name]
    return getattr(thing, name)


def _parameter(thing: Any, name: str) -> inspect.Parameter:
    overloads = getattr(typing, "get_overloads", lambda _: [])(thing)
    for signature in map(inspect.signature, [thing, *overloads]):
        if name in signature.parameters:
            return signature.parameters[name]
    raise AttributeError(f"{thing} takes no {name}")


def test_the_page_has_every_name_of_skyward() -> None:
    told = {name for names, _, _ in rows() for name in names}
    assert sorted(set(PUBLIC.split()) - told) == []


def test_the_page_says_one_of_three_things() -> None:
    assert {said for _, said, _ in rows()} == {"same", "renamed", "not there"}
    for names, said, _ in rows():
        if said == "not there":
            there = [name for name in names if name in sky.__all__]
            assert not there, f"said not to be there: {there}"


@pytest.mark.parametrize("name", [here for _, said, heres in rows() if said != "not there" for here in heres])
def test_what_the_page_names_is_there(name: str) -> None:
    find(name)


@pytest.mark.parametrize(
    ("name", "hint"), [("GCP", r"sky.SSH\(\["), ("SkywardError", "is sky.SkyError"), ("main", "python")]
)
def test_a_name_of_skyward_that_is_not_here_is_answered_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(sky, name)


def test_hints_tell_what_the_page_tells() -> None:
    for names, said, here in rows():
        for name in names:
            if said.startswith("renamed") and name.isidentifier() and not hasattr(sky, name):
                assert any(one.partition("(")[0] in skyward_names.hint(name) for one in here), name
