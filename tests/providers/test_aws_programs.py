"""Programs of the documentation on instances of AWS: each instance is a host."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="needs the Python package boto3")
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.pool.remote import MARKS
from tests.programs import ROOT, run_program
from tests.providers import aws_world
from tests.providers.aws_hosts import HostedAws

pytestmark = [*MARKS, pytest.mark.slow]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def aws() -> Iterator[HostedAws]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(0) as world, aws_world.hosts(world) as made:
        yield made


def policy() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "docs" / "aws-policy.json").read_text(encoding="utf-8"))[
        "Statement"
    ]
    return found


def allowed() -> set[str]:
    """The operations that the documentation's policy allows."""
    listed = (one["Action"] for one in policy())
    return {name.partition(":")[2] for one in listed for name in ([one] if isinstance(one, str) else one)}


def statement(sid: str) -> dict[str, Any]:
    return next(one for one in policy() if one["Sid"] == sid)


def has_tag(sent: dict[str, str], kind: str) -> bool:
    """Whether a request gives our tag to what it makes of a kind."""
    numbers = [key.split(".")[1] for key, value in sent.items() if key.endswith(".ResourceType") and value == kind]
    return any(f"TagSpecification.{n}.Tag." in key and sent[key] == "sky-jupyter" for n in numbers for key in sent)


def test_the_program_for_those_who_come_from_skyward_runs_on_instances_and_leaves_none(
    aws: HostedAws, tmp_path: Path
) -> None:
    program = BLOCK.findall((ROOT / "docs" / "from-skyward.md").read_text(encoding="utf-8"))[0]
    path = tmp_path / "program.py"
    path.write_text(program.replace("sky.Local()", 'sky.AWS(region="us-east-1")'))
    assert "sky.AWS(" in path.read_text()
    assert run_program(path, folder=tmp_path) == "5\n"
    assert len(aws.instances()) == 2
    assert not aws.alive()
    # The security group is kept for the next pool.
    assert {kind for kind, count in aws.left().items() if count} == {"groups"}
    assert {call["action"] for call in aws.calls()} - {"GetCallerIdentity"} <= allowed()
    # What the policy lets nobody launch without our tag.
    sent = aws.calls("RunInstances")[0]["sent"]
    kinds = {one.rpartition("/")[0].rpartition(":")[2] for one in statement("LaunchOnlyTagged")["Resource"]}
    assert {kind for kind in kinds if has_tag(sent, kind)} == kinds
