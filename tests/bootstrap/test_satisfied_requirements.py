"""Which requirements count as missing."""

from __future__ import annotations

import json
from pathlib import Path

import packaging
import pytest

from sky_jupyter.bootstrap.satisfied_requirements import frozen, installed, missing
from sky_jupyter.errors import SpecError
from tests.bootstrap.wheels import make_installed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions that this interpreter sees."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_is_installed_is_not_missing(site: Path) -> None:
    make_installed(site, "sky_have", "2.1")
    assert missing(["sky-have", "Sky.Have>=2", "sky_have<3,!=2.0", "sky-none"]) == ["sky-none"]


def test_a_version_that_does_not_fit_is_missing(site: Path) -> None:
    make_installed(site, "sky_have", "2.1")
    assert missing(["sky-have>=2.2", "sky-have==2.1"]) == ["sky-have>=2.2"]


def test_a_local_version_satisfies_its_public_one_and_a_prerelease_counts(site: Path) -> None:
    make_installed(site, "sky_local", "2.13.0+cpu")
    make_installed(site, "sky_pre", "1.0.dev3")
    assert missing(["sky-local==2.13.0", "sky-pre>=0.9"]) == []


def test_a_requirement_for_another_machine_is_not_missing() -> None:
    assert missing(["sky-none; python_version < '3'", "sky-none; python_version > '3'"]) == [
        "sky-none; python_version > '3'"
    ]


def test_extras_ask_for_what_they_name_through_other_extras_too(site: Path) -> None:
    make_installed(
        site,
        "sky_top",
        extra_lines=[
            "Provides-Extra: all",
            "Provides-Extra: plain",
            "Provides-Extra: deep",
            "Requires-Dist: sky-top[deep,all]; extra == 'all'",
            "Requires-Dist: sky-leaf>=2; extra == 'deep'",
            "Requires-Dist: sky-leaf; extra == 'plain'",
        ],
    )
    make_installed(site, "sky_leaf", "1.0")
    wanted = ["sky-top", "sky-top[plain]", "sky-top[deep]", "sky-top[all]"]
    assert missing(wanted) == ["sky-top[deep]", "sky-top[all]"]


def test_old_metadata_that_cannot_be_read_asks_for_nothing(site: Path) -> None:
    lines = ["Provides-Extra: more", "Requires-Dist: pytz (>dev)", "Requires-Dist: sky-leaf; extra == 'more'"]
    make_installed(site, "sky_old", extra_lines=lines)
    assert missing(["sky-old", "sky-old[more]"]) == ["sky-old[more]"]
    make_installed(site, "sky_leaf")
    assert missing(["sky-old[more]"]) == []


def test_a_url_is_satisfied_only_by_what_came_from_it(site: Path) -> None:
    url = "file:///wheels/sky_have-1.0-py3-none-any.whl"
    make_installed(site, "sky_have")
    assert missing([f"sky-have @ {url}"]) == [f"sky-have @ {url}"]
    recorded = {"url": url, "archive_info": {}}
    (site / "sky_have-1.0.dist-info" / "direct_url.json").write_text(json.dumps(recorded))
    assert missing([f"sky-have @ {url}"]) == []


@pytest.mark.parametrize("text", ["./folder", "-e .", "two words", "name>>1"])
def test_what_is_no_requirement_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        missing([text])
    assert repr(text) in str(caught.value)


def test_the_freeze_names_each_distribution_once_and_leaves_out_what_is_asked(site: Path) -> None:
    make_installed(site, "packaging", "1.2.3")
    make_installed(site, "sky_have")
    make_installed(site, "sky_odd", "not.a.version!")
    lines = frozen(leaving_out=["Sky.Have"])
    assert [line for line in lines if line.startswith("packaging==")] == ["packaging==1.2.3"]
    assert not [line for line in lines if line.startswith(("sky-have", "sky-odd"))]
    assert lines == sorted(lines)


def test_installed_compares_versions_and_not_text() -> None:
    assert installed("packaging", packaging.__version__)
    assert installed("packaging", f"{packaging.__version__}.0")
    assert not installed("packaging", "0.1")
    assert not installed("sky-none", "1.0")
