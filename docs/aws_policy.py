#!/usr/bin/env python3
"""Write `aws-policy.json`: the IAM policy that the AWS provider needs, from the calls that its code makes.

Run it after a change of those calls. It stops at a call that no rule below covers. `tests/providers/test_aws_docs.py`
compares the file with the code.
"""

from __future__ import annotations

import ast
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.model import ServiceModel

ROOT = Path(__file__).resolve().parent.parent
PROVIDER = ROOT / "sky_jupyter" / "providers" / "aws"
POLICY = ROOT / "docs" / "aws-policy.json"
# Methods of the provider's `Clients`, with the service that each is a client of.
CLIENTS = {
    "ec2": "ec2",
    "launcher": "ec2",
    "ssm": "ssm",
    "sts": "sts",
    "quotas": "service-quotas",
    "pricing": "pricing",
}
# What a client has besides operations.
OTHERS = {"get_paginator", "can_paginate", "meta", "exceptions", "close"}
# Everybody may do this, without a policy.
FREE = {"sts:GetCallerIdentity"}
READS = ("Describe", "Get", "List", "Decode")
MAKES = ("Allocate", "Associate", "Create", "Run")
# These change what is there, and are allowed for what has our tag.
CHANGES = (
    *("Authorize", "Cancel", "CreateTags", "Delete", "DeleteTags", "Disassociate", "Modify", "Release", "Revoke"),
    *("Start", "Stop", "Terminate"),
)
LAUNCH_FROM = [
    *("arn:*:ec2:*::image/*", "arn:*:ec2:*::snapshot/*", "arn:*:ec2:*:*:image/*", "arn:*:ec2:*:*:subnet/*"),
    *("arn:*:ec2:*:*:security-group/*", "arn:*:ec2:*:*:placement-group/*", "arn:*:ec2:*:*:capacity-reservation/*"),
]
LAUNCHED = [
    *("arn:*:ec2:*:*:instance/*", "arn:*:ec2:*:*:volume/*", "arn:*:ec2:*:*:network-interface/*"),
    "arn:*:ec2:*:*:spot-instances-request/*",
]
SPOT_ROLE = "arn:*:iam::*:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot*"


@functools.cache
def models() -> dict[str, ServiceModel]:
    """Return botocore's models of the services that are used."""
    session = botocore.session.get_session()
    return {name: session.get_service_model(name) for name in sorted({*CLIENTS.values()})}


def called(folder: Path = PROVIDER) -> Iterator[tuple[str, str]]:
    """Yield file and line, and the name, of each attribute of a client that the code uses."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute) and _is_client(node.value):
                yield place, node.attr
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get_paginator":
                yield place, str(ast.literal_eval(node.args[0]))


def _is_client(node: ast.expr) -> bool:
    """Return True for ``clients.ec2(region)``, and for the variables that the code keeps clients in."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in CLIENTS
    return isinstance(node, ast.Name) and node.id in CLIENTS


def actions(folder: Path = PROVIDER) -> set[str]:
    """Return the IAM actions of the operations that the code names, with a client of any name."""
    known = {
        xform_name(operation): f"{model.signing_name}:{operation}"
        for model in models().values()
        for operation in model.operation_names
    }
    names = {name for _, name in called(folder)}
    for path in folder.glob("*.py"):
        names |= {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
    return {known[name] for name in names & known.keys()} - FREE


def policy(folder: Path = PROVIDER) -> dict[str, Any]:
    """Return the policy of all calls of the code."""
    reads, makes, changes = [], [], []
    for action in sorted(actions(folder)):
        service, _, operation = action.partition(":")
        if operation.startswith(READS):
            reads.append(action)
        elif service == "ec2" and operation.startswith(CHANGES):
            changes.append(action)
        elif service == "ec2" and operation.startswith(MAKES):
            makes.append(action)
        else:
            raise SystemExit(f"docs/aws_policy.py: no rule says how far {action} is allowed")
    statements = [_statement("See", reads)]
    if "ec2:RunInstances" in makes:
        makes.remove("ec2:RunInstances")
        tagged = {"Null": {"aws:RequestTag/sky-jupyter": "false"}}
        statements.append(_statement("LaunchFrom", "ec2:RunInstances", LAUNCH_FROM))
        statements.append(_statement("LaunchOnlyTagged", "ec2:RunInstances", LAUNCHED, tagged))
    if born := _tagged_at_birth(folder):
        statements.append(_statement("TagAtBirth", "ec2:CreateTags", "*", {"StringEquals": {"ec2:CreateAction": born}}))
    if makes:
        statements.append(_statement("Make", makes))
    ours = {"Null": {"ec2:ResourceTag/sky-jupyter": "false"}}
    statements.append(_statement("ChangeOnlyOurs", changes, "*", ours))
    role = {"StringLike": {"iam:AWSServiceName": "spot.amazonaws.com"}}
    statements.append(_statement("SpotOnce", "iam:CreateServiceLinkedRole", SPOT_ROLE, role))
    return {"Version": "2012-10-17", "Statement": statements}


def _tagged_at_birth(folder: Path) -> list[str]:
    """Return the operations of the code that tag what they make."""
    ec2 = models()["ec2"]
    made = [action.partition(":")[2] for action in sorted(actions(folder)) if action.startswith("ec2:")]
    takers = [name for name in made if "TagSpecifications" in ec2.operation_model(name).input_shape.members]
    return [name for name in takers if name.startswith(MAKES)]


def _statement(
    sid: str, action: str | list[str], resource: str | list[str] = "*", condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    made = {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": resource}
    return {**made, "Condition": condition} if condition else made


def text() -> str:
    """Return the file's content."""
    return json.dumps(policy(), indent=2) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    POLICY.write_text(text(), encoding="utf-8")
