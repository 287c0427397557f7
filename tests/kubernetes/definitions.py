"""Trainer's and JobSet's kinds as CustomResourceDefinitions, made of the models in the package kubeflow_trainer_api.

The models are generated from the projects' own schemas: of TrainJobs types are checked and unknown fields are
dropped, as on a cluster that has them installed. A 1.20 API server knows no validation rules (CEL); `admission` has
those. What users do not write, runtimes and JobSets, may say anything: the API server is ready seconds earlier so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

TRAINER, TRAINER_VERSION = "trainer.kubeflow.org", "v1alpha1"
JOBSET, JOBSET_VERSION = "jobset.x-k8s.io", "v1alpha2"
RUNTIME_IMAGE = "docker.io/library/sky-node:1"
ANYTHING: Json = {"x-kubernetes-preserve-unknown-fields": True}
INT_OR_STRING: Json = {"x-kubernetes-int-or-string": True}


@dataclass(frozen=True)
class Kind:
    """One kind; `model` is its class in `kubeflow_trainer_api.models`."""

    name: str
    plural: str
    group: str
    version: str
    model: str
    scope: str = "Namespaced"


KINDS = (
    Kind("TrainJob", "trainjobs", TRAINER, TRAINER_VERSION, "TrainerV1alpha1TrainJob"),
    Kind("TrainingRuntime", "trainingruntimes", TRAINER, TRAINER_VERSION, "TrainerV1alpha1TrainingRuntime"),
    Kind(
        "ClusterTrainingRuntime",
        "clustertrainingruntimes",
        TRAINER,
        TRAINER_VERSION,
        "TrainerV1alpha1ClusterTrainingRuntime",
        scope="Cluster",
    ),
    Kind("JobSet", "jobsets", JOBSET, JOBSET_VERSION, "JobsetV1alpha2JobSet"),
)


def definitions() -> list[Json]:
    """All kinds' definitions, for the API server."""
    return [_definition(kind) for kind in KINDS]


def runtimes() -> list[Json]:
    """The two runtimes that Trainer installs, with an image that is here."""
    return [_runtime("jax-distributed", "jax"), _runtime("torch-distributed", "torch")]


def _definition(kind: Kind) -> Json:
    from kubeflow_trainer_api import models

    written = getattr(models, kind.model).model_json_schema(by_alias=True)
    schema = _structural(written, written.get("$defs", {}))
    fields = schema["properties"]
    fields.update(metadata={"type": "object"}, apiVersion={"type": "string"}, kind={"type": "string"})
    if kind.name == "TrainJob":
        _set_defaults(fields["spec"]["properties"])
    else:
        fields["spec"] = {"type": "object", **ANYTHING}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # The API server wants it of groups that end like JobSet's.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements"},
        },
        "spec": {
            "group": kind.group,
            "scope": kind.scope,
            "names": {
                "kind": kind.name,
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "listKind": f"{kind.name}List",
            },
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _set_defaults(spec: Json) -> None:
    """The defaults of a TrainJob, which the models do not carry."""
    spec["suspend"] = {"type": "boolean", "default": False}
    spec["managedBy"] = {"type": "string", "default": "trainer.kubeflow.org/trainjob-controller"}
    reference = spec["runtimeRef"]["properties"]
    reference["kind"]["default"] = "ClusterTrainingRuntime"
    reference["apiGroup"]["default"] = TRAINER


def _structural(node: Mapping[str, Any], known: Mapping[str, Any], within: tuple[str, ...] = ()) -> Json:
    """A model's JSON schema as Kubernetes wants it: no references, no alternatives, no nulls."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name.endswith(("Quantity", "IntOrString")):
            return dict(INT_OR_STRING)
        if name in within:
            return {"type": "object", **ANYTHING}
        return _structural(known[name], known, (*within, name))
    for key in ("anyOf", "oneOf", "allOf"):
        if key in node:
            return _one_of(node[key], known, within)
    found: Json = {}
    kind = node.get("type")
    if kind == "object":
        found = _object(node, known, within)
    elif kind == "array":
        found = {"type": "array", "items": _structural(node.get("items") or {}, known, within)}
    elif kind:
        found["type"] = kind
    else:
        found.update(ANYTHING)
    limits = ("minimum", "maximum", "minLength", "maxLength", "enum")
    return found | {key: node[key] for key in limits if key in node}


def _one_of(choices: list[Json], known: Mapping[str, Any], within: tuple[str, ...]) -> Json:
    some = [choice for choice in choices if choice.get("type") != "null"]
    if len(some) == 1:
        return _structural(some[0], known, within)
    numbers = {choice.get("type") for choice in some} <= {"integer", "string", "number"}
    return dict(INT_OR_STRING if numbers else ANYTHING)


def _object(node: Mapping[str, Any], known: Mapping[str, Any], within: tuple[str, ...]) -> Json:
    found: Json = {"type": "object"}
    more = node.get("additionalProperties")
    if fields := node.get("properties"):
        found["properties"] = {name: _structural(field, known, within) for name, field in fields.items()}
    elif isinstance(more, dict) and more:
        found["additionalProperties"] = _structural(more, known, within)
    else:
        found.update(ANYTHING)
    if node.get("required"):
        found["required"] = node["required"]
    return found


def _runtime(name: str, framework: str) -> Json:
    container = {"name": "node", "image": RUNTIME_IMAGE}
    job = {
        "name": "node",
        "template": {
            "metadata": {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": {"spec": {"containers": [container]}}},
        },
    }
    return {
        "apiVersion": f"{TRAINER}/{TRAINER_VERSION}",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {f"{TRAINER}/framework": framework}},
        "spec": {"mlPolicy": {"numNodes": 1, framework: {}}, "template": {"spec": {"replicatedJobs": [job]}}},
    }
