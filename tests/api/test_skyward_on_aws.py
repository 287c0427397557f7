"""The programs of docs/from-skyward.md that buy machines, run as they stand on instances of the tests' AWS."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("boto3")
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.pool.remote import MARKS, wait_until
from tests.programs import ROOT, run_program
from tests.providers import aws_world
from tests.providers.aws_hosts import HostedAws

pytestmark = [*MARKS, pytest.mark.long]  # `test_aws_programs` runs another program, as `slow`
PAGE = (ROOT / "docs" / "from-skyward.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def aws() -> Iterator[HostedAws]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(0) as world, aws_world.hosts(world) as made:
        yield made


def test_the_pages_programs_run_on_instances_and_leave_none(aws: HostedAws, tmp_path: Path) -> None:
    bought = [block for block in BLOCKS if "sky.AWS(" in block]
    assert bought
    program = tmp_path / "program.py"
    program.write_text("import sky_jupyter as sky\n\n" + "\n".join(bought))
    said = run_program(program, folder=tmp_path)
    assert "[2.0, 3.0]" in said
    assert re.search(r"\$0\.\d+ an hour", said)
    assert [one["market"] for one in aws.instances()] == ["spot"] * 2
    wait_until(lambda: not aws.alive())
    assert {name: number for name, number in aws.left().items() if number} == {"groups": 1}
