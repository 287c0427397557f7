"""`sky.Kubeflow` is a value that is valid once it exists, and imports nothing of Kubernetes."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import SpecError
from sky_jupyter.providers import Kubeflow, provider_registry

FULL = Kubeflow(
    namespace="people",
    context="lab",
    kubeconfig="~/.kube/config",  # type: ignore[arg-type]
    runtime="torch-distributed",
    image="pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    resources={"cpu": 4, "memory": "16Gi", "gpu": 1},  # type: ignore[arg-type]
    queue="team",
    service_account="runner",
    node_selector={"pool": "gpu"},  # type: ignore[arg-type]
    tolerations=["nvidia.com/gpu:NoSchedule", {"operator": "Exists", "tolerationSeconds": 5}],  # type: ignore[arg-type]
    env={"NCCL_DEBUG": "INFO"},  # type: ignore[arg-type]
    volumes={"/data": "claim", "/scratch": {"hostPath": {"path": "/mnt"}}},  # type: ignore[arg-type]
    shm="8Gi",
)


@pytest.mark.parametrize("provider", [Kubeflow(), FULL, Kubeflow(resources="cpu=2,memory=4Gi")])  # type: ignore[arg-type]
def test_it_is_the_same_after_a_pickle_and_from_its_recipe(provider: Kubeflow) -> None:
    again = pickle.loads(pickle.dumps(provider))
    recorded = provider_registry.restore("kubeflow", json.dumps(provider.recipe()))
    for other in (again, recorded):
        assert (other, hash(other), str(other)) == (provider, hash(provider), str(provider))


def test_resources_have_their_full_names() -> None:
    assert FULL.resources == (("cpu", "4"), ("memory", "16Gi"), ("nvidia.com/gpu", "1"))


def test_numbers_keep_all_of_their_digits() -> None:
    given: Any = {"SEED": 20261129, "RATE": 0.123456789, "MOST": 10**21, "SHARE": 0.5, "TURNS": 3.0, "SMALL": 1e-7}
    kept = dict(Kubeflow(env=given).env)
    assert {name: float(text) for name, text in kept.items()} == given
    assert (kept["SEED"], kept["MOST"], kept["TURNS"]) == ("20261129", "1" + 21 * "0", "3")
    most: Any = {"memory": 17179869184, "cpu": 1 / 3}
    assert Kubeflow(resources=most).resources == (("cpu", "0.3333333333333333"), ("memory", "17179869184"))


def test_variables_are_not_shown() -> None:
    assert "NCCL" not in repr(FULL)
    with pytest.raises(SpecError) as caught:
        Kubeflow(env={"A B": "secret"})  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"namespace": "Mine"}, "namespace must be a namespace's name"),
        ({"context": 5}, "context must be a context's name"),
        ({"kubeconfig": 5}, "kubeconfig must be the path of a file"),
        ({"image": "two words"}, "image must be an image"),
        ({"resources": {"cpu": "many"}}, "not 'cpu': 'many'"),
        ({"resources": ["cpu"]}, "resources must be resources such as"),
        ({"resources": {"gpu": 1, "nvidia.com/gpu": 1}}, "names one thing twice"),
        ({"node_selector": "gpu"}, "node_selector must be labels such as"),
        ({"tolerations": 5}, "tolerations must be texts such as 'nvidia.com/gpu:NoSchedule'"),
        ({"tolerations": ["a b"]}, "tolerations must be texts"),
        ({"volumes": {"data": "claim"}}, "volumes must be claims by their paths"),
        ({"env": "A"}, "env must be variables"),
        ({"shm": "much"}, "shm must be a size such as '8Gi'"),
        ({"run_as": 0}, "run_as must be a whole number from 1"),
        ({"runtime": "JAX!"}, "runtime must be a runtime's name"),
        ({"queue": 5}, "queue must be a local queue's name"),
        ({"offline": 1}, "offline must be True or False"),
    ],
)
def test_a_wrong_option_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        Kubeflow(**fields)


CONFIG = """
apiVersion: v1
kind: Config
current-context: lab
contexts:
- {name: lab, context: {cluster: c, user: u, namespace: people}}
- {name: home, context: {cluster: c, user: u}}
"""


def test_the_cluster_is_found_as_kubectl_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(CONFIG)
    second.write_text("current-context: home\ncontexts:\n- {name: lab, context: {namespace: other}}\n")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [first, second, tmp_path / "nowhere"])))
    found = Kubeflow().access
    assert (found.kubeconfig, found.context, found.namespace) == ((str(first), str(second)), "lab", "people")
    assert Kubeflow(context="home").access.namespace == "default"
    assert Kubeflow(context="home", namespace="mine").access.namespace == "mine"
    with pytest.raises(SpecError, match="no context 'hone'; did you mean 'home'"):
        _ = Kubeflow(context="hone").access
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match=r"there is no .*nowhere, which says how to reach a cluster"):
        _ = Kubeflow().access
    first.write_text("contexts: 5")
    with pytest.raises(SpecError, match="is no configuration of a cluster"):
        _ = Kubeflow(kubeconfig=str(first)).access  # type: ignore[arg-type]


def test_another_process_and_another_day_mean_the_same_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml")
    config = tmp_path / "config"
    config.write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", str(config))
    provider = Kubeflow()
    stored, recorded = pickle.dumps(provider), json.dumps(provider.recipe())
    config.write_text(CONFIG.replace("current-context: lab", "current-context: home"))
    monkeypatch.delenv("KUBECONFIG")
    for other in (provider, pickle.loads(stored), provider_registry.restore("kubeflow", recorded)):
        assert (other, other.access) == (provider, provider.access)
        assert (other.access.context, other.access.namespace) == ("lab", "people")


def test_it_imports_nothing_of_kubernetes() -> None:
    code = "import sky_jupyter as sky, sys; sky.Kubeflow(namespace='a', resources={'cpu': 1}).recipe(); "
    code += "print(*[name for name in ('kubernetes', 'kubeflow', 'yaml', 'pydantic') if name in sys.modules])"
    env = {**os.environ, "KUBECONFIG": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.stdout.split(), done.stderr) == ([], "")
