"""What a spec refuses, whoever makes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.api import Compute
from sky_jupyter.errors import SpecError
from sky_jupyter.magics.option_table import options_of
from sky_jupyter.providers import SSH, Local
from sky_jupyter.spec.pool_spec import DEFAULT_JOURNAL, PoolSpec


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"keep": 1}, "keep must be True or False, not 1"),
        ({"keep": "yes"}, "keep must be True or False, not 'yes'"),
        ({"idle_timeout": 0}, "idle_timeout must be a number of seconds from 10"),
        ({"idle_timeout": -1.0}, "idle_timeout must be"),
        ({"idle_timeout": float("nan")}, "idle_timeout must be"),
        ({"idle_timeout": float("inf")}, "to ten years, not inf"),
        ({"idle_timeout": True}, "idle_timeout must be"),
        ({"idle_timeout": [1]}, "idle_timeout must be"),
        ({"idle_timeout": 60.0}, "a local pool ends with its notebook"),
        ({"journal": 10**6 - 1}, "journal must be a whole number of bytes from 1000000 to 1000000000000"),
        ({"journal": 1 << 41}, "journal must be"),
        ({"journal": 2e6}, "journal must be"),
        ({"journal": None}, "journal must be"),
        ({"blob_limit": -1}, "blob_limit must be a whole number of bytes from 0"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        PoolSpec(provider=Local(), **fields)
    with pytest.raises(SpecError, match=told):
        Compute(**fields)


def test_the_library_takes_texts_and_numbers() -> None:
    assert Compute().spec == PoolSpec(provider=Local(), name="compute", journal=DEFAULT_JOURNAL)
    given = Compute(keep=True, idle_timeout="30m", journal="64MB", blob_limit="1GB").spec
    assert (given.keep, given.idle_timeout, given.journal, given.blob_limit) == (True, 1800.0, 64 * 10**6, 10**9)
    assert Compute(keep=True, idle_timeout=90).spec == Compute(keep=True, idle_timeout="90s").spec
    assert Compute(journal=1 << 20).spec == Compute(journal="1MiB").spec
    with pytest.raises(SpecError, match="'soon' is not a length of time, such as 90s, 30m or 12h"):
        Compute(idle_timeout="soon")
    with pytest.raises(SpecError, match="'lots' is not a size, such as 64MB or 1GB"):
        Compute(journal="lots")


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("provider", "keep", "hours"),
    [(SSH("gpu1"), True, 12), (SSH("gpu1"), False, 0.5), (Local(), True, 12), (Local(), False, None)],
)
def test_the_lease_is_what_the_documents_say(provider: Any, keep: bool, hours: float | None) -> None:
    assert PoolSpec(provider=provider, keep=keep).lease == (None if hours is None else hours * 3600)


def test_the_documents_say_what_the_lease_is() -> None:
    kept, left = (PoolSpec(provider=SSH("gpu1"), keep=keep).lease or 0 for keep in (True, False))
    told = {
        "README.md": r"for `--idle-timeout` \((?P<kept>\d+) hours\)",
        "docs/ssh.md": r"`--idle-timeout` \((?P<left>\d+) minutes; (?P<kept>\d+) hours with `--keep`\)",
        "docs/compute.md": r"\(`idle_timeout`, (?P<kept>\d+) hours[^|]*\|\n\|[^|]*\|[^|]*, (?P<left>\d+) minutes there",
    }
    for name, pattern in told.items():
        found = re.search(pattern, (ROOT / name).read_text())
        assert found is not None, f"{name} does not say what the lease is"
        said = found.groupdict()
        assert float(said["kept"]) * 3600 == kept, name
        assert "left" not in said or float(said["left"]) * 60 == left, name
    (option,) = [item for item in options_of("up") if item.flag == "--idle-timeout"]
    assert f"({kept / 3600:g}h with --keep; {left / 60:g}m on hosts without)" in option.help
