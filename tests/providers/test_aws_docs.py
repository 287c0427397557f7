"""docs/aws.md tells the truth: its IAM policy allows what the code calls, and its commands and options are there."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.providers.aws import vcpu_quotas

pytest.importorskip("botocore", reason="needs the Python package boto3")
ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")
# Options of the AWS command line itself.
COMMON = {"region", "profile", "query", "output"}


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


def test_the_page_has_every_field_of_the_provider() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert {field.name for field in dataclasses.fields(sky.AWS)} - {"visible_within"} <= named


def test_the_commands_of_the_page_are_those_of_aws() -> None:
    import botocore.session
    from botocore import xform_name

    session, seen = botocore.session.get_session(), set()
    text = PAGE.replace("\\\n", " ")
    for service, verb, rest in re.findall(r"aws (ec2|iam|service-quotas) ([a-z-]+)([^\n]*)", text):
        model = session.get_service_model(service)
        operations = {xform_name(name, "-"): name for name in model.operation_names}
        shape = model.operation_model(operations[verb]).input_shape
        taken = {xform_name(name, "-") for name in shape.members} | COMMON
        assert {*re.findall(r"--([a-z-]+)", rest)} <= taken, verb
        seen.add(verb)
    assert {"describe-instances", "terminate-instances", "describe-volumes", "get-service-quota"} <= seen


def test_the_quotas_of_the_page_are_those_of_the_code() -> None:
    types = {"G and VT": "g6.xlarge", "P": "p5.48xlarge", "Trn": "trn1.2xlarge", "Inf": "inf2.xlarge"}
    types["Standard"] = "m7i.large"
    rows = re.findall(r"^\| ([\w ]+?) \([^|]*\) \| `(L-\w+)` \| `(L-\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(types)
    for name, *codes in rows:
        assert codes == [vcpu_quotas.code(types[name], market) for market in ("on-demand", "spot")]
