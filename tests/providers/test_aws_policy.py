"""The IAM policy of the documentation allows what the AWS provider's code calls, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("botocore", reason="needs the Python package boto3")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def policy() -> ModuleType:
    """The script that writes the policy."""
    spec = importlib.util.spec_from_file_location("aws_policy", ROOT / "docs" / "aws_policy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def statements_of(action: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["Statement"] if action in (one["Action"], *one["Action"])]


def test_the_policy_is_that_of_the_calls_in_the_code(policy: ModuleType) -> None:
    written = (ROOT / "docs" / "aws-policy.json").read_text(encoding="utf-8")
    assert written == policy.text(), "write it anew: .venv/bin/python docs/aws_policy.py"


def test_each_call_of_the_code_is_an_operation_of_aws(policy: ModuleType) -> None:
    known = {policy.xform_name(name) for model in policy.models().values() for name in model.operation_names}
    found = list(policy.called())
    assert {name for _, name in found} >= {"run_instances", "describe_instances", "terminate_instances"}
    assert [(place, name) for place, name in found if name not in known | policy.OTHERS] == []


def test_what_is_launched_must_have_our_tag_and_only_what_has_it_is_changed(policy: ModuleType) -> None:
    document = json.loads(policy.text())
    tagged = [one for one in statements_of("ec2:RunInstances", document) if "Condition" in one]
    assert {"arn:*:ec2:*:*:instance/*", "arn:*:ec2:*:*:volume/*"} <= {*tagged[0]["Resource"]}
    assert tagged[0]["Condition"] == {"Null": {"aws:RequestTag/sky-jupyter": "false"}}
    (ends,) = statements_of("ec2:TerminateInstances", document)
    assert ends["Condition"] == {"Null": {"ec2:ResourceTag/sky-jupyter": "false"}}


def test_a_call_that_is_new_is_found_under_any_name(policy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f(clients, given):\n    clients.ec2('x').stop_instances(InstanceIds=[])\n")
    (tmp_path / "two.py").write_text("def g(given):\n    return given.get_paginator('describe_volumes')\n")
    (tmp_path / "three.py").write_text("def h(given):\n    given.describe_tags()\n")
    assert policy.actions(tmp_path) == {"ec2:StopInstances", "ec2:DescribeVolumes", "ec2:DescribeTags"}
    (tmp_path / "one.py").write_text("def f(ec2):\n    ec2.create_key_pear()\n")
    assert ("one.py:2", "create_key_pear") in set(policy.called(tmp_path))


def test_a_call_that_no_rule_covers_is_told(policy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f(clients):\n    clients.ssm('x').put_parameter()\n")
    with pytest.raises(SystemExit, match="how far ssm:PutParameter is allowed"):
        policy.policy(tmp_path)
