"""``%sky offers``: a table of machines and prices, also for who has no account."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.error import UsageError

import sky_jupyter as sky
from sky_jupyter.magics.option_completion import candidates
from sky_jupyter.magics.parsing import parse
from tests.magics.notebook import notebook

# What makes botocore, and us, find no account.
NOBODY = {
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def test_wishes_are_given_as_for_a_pool() -> None:
    given = parse("offers --accelerator A100:8 --max-hourly-cost 30 --vcpus 16 --memory-gb 64", cell=False).spec()
    assert given.provider == sky.AWS()
    assert str(given.accelerator) == "A100:8"
    assert (given.max_hourly_cost, given.vcpus, given.memory_gb) == (30, 16, 64)
    pool = parse("up --vcpus 16 --memory-gb 64 --disk-gb 200 --max-hourly-cost 3.5", cell=False).spec()
    assert (pool.vcpus, pool.memory_gb, pool.disk_gb, pool.max_hourly_cost) == (16, 64, 200, 3.5)
    assert candidates("%sky off") == ["offers"]
    assert "--accelerator" in (candidates("%sky offers --a") or [])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("offers --nodes 2", "unknown option --nodes"),
        ("offers --accelerator A1000", "unknown accelerator 'A1000'"),
        ("offers --vcpus none", "--vcpus takes a number above 0, not 'none'"),
        ("offers A100", "'A100' is not an option"),
        ("offers --provider azure", "unknown provider 'azure'"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(line: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line, cell=False)
    assert told in str(caught.value)


def test_a_notebook_shows_the_catalogue_to_who_has_no_account(tmp_path: Path) -> None:
    with notebook(tmp_path, **NOBODY) as book:
        assert book.run("%load_ext sky_jupyter").status == "ok"
        cell = book.run("%sky offers --accelerator H100")
        (shown,) = cell.displays
        lines = shown.data["text/plain"].splitlines()
        assert lines[0].split() == ["type", "accelerators", "vCPU", "memory", "region", "on", "demand"]
        assert lines[1].split() == ["p5.4xlarge", "H100-80GB", "16", "256", "GB", "us-east-1", "$6.880"]
        assert "list price of July 2026, us-east-1" in lines[2]
        assert "no AWS credentials were found" in lines[3]
        assert "<td" in shown.data["text/html"]
        assert "p5.4xlarge" in shown.data["text/html"]
        wrong = book.run("%sky offers --accelerator H100:16")
        assert wrong.status == "error"
        assert "EC2 has no instance type with H100:16 here; it has H100-80GB:1 (p5.4xlarge), H100-80GB:8" in wrong.error
        value = book.run("import sky_jupyter as sky\nsky.offers(accelerator='H100')")
        assert value.outputs[-1].data["text/plain"] == shown.data["text/plain"]
