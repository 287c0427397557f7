"""`dev.py test --again`: failed tests are tried once more, alone, and nothing else is forgiven."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dev

ROOT = Path(__file__).resolve().parents[1]
FLAKY = """
from pathlib import Path

def test_NAME():
    mark = Path("NAME")
    if not mark.exists():
        mark.touch()
        raise AssertionError("busy")

def test_passes():
    pass
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, which is the working folder and whose tests `dev.py` runs."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow' -p no:cacheprovider\nmarkers =\n  slow\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dev, "BIN", Path(sys.prefix) / "bin")
    monkeypatch.setattr(dev, "RECORDS", tmp_path / "failed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(tier: str, *args: str) -> int:
    """Run the project's tests as a tier does."""
    record = dev.Record(tier)
    status = record.run(lambda more: dev.python("-m", "pytest", *more, *args))
    record.write()
    return status


def said(capfd: pytest.CaptureFixture[str], lines: int) -> list[str]:
    return capfd.readouterr().out.splitlines()[-lines:]


def test_what_passes_alone_is_named_as_flaky_and_forgiven(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_daily.py").write_text(FLAKY.replace("NAME", "one"))
    (project / "test_slow.py").write_text(
        f"import pytest\npytestmark = pytest.mark.slow\n{FLAKY.replace('NAME', 'two')}"
    )
    assert run("daily") == 1
    # The record of one tier is not that of the other.
    assert run("slow", "-m", "slow") == 1
    assert dev.test(["--again", "--all"]) == 0
    assert said(capfd, 2) == ["flaky: test_daily.py::test_one", "flaky: test_slow.py::test_two"]


def test_what_fails_twice_is_not_forgiven(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_it.py").write_text(f"{FLAKY.replace('NAME', 'one')}\ndef test_two():\n    raise AssertionError\n")
    assert run("daily") == 1
    assert dev.test(["--again"]) == 1
    assert said(capfd, 2) == ["flaky: test_it.py::test_one", "failed twice: test_it.py::test_two"]


LEAKS = """
import pytest

@pytest.fixture(autouse=True, scope="module")
def nothing_is_left():
    yield
    assert not left

left = []

def test_leaks():
    left.append(1)

def test_passes():
    pass
"""


def test_what_a_test_leaves_behind_is_not_forgiven_to_the_last_one(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_it.py").write_text(LEAKS)
    assert run("daily") == 1
    assert dev.test(["--again"]) == 1
    assert said(capfd, 1) == ["failed twice: test_it.py"]


def test_a_run_without_tests_is_not_forgiven(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("daily") == dev.NOTHING_RAN
    assert dev.test(["--again"]) == 1
    assert said(capfd, 1) == [f"  pytest ended with status {dev.NOTHING_RAN}"]


def test_a_test_that_passes_in_a_run_that_fails_all_the_same_is_not_forgiven(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_it.py").write_text(FLAKY.replace("NAME", "one"))
    assert run("daily") == 1
    (project / "conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish(session):\n"
        "    session.exitstatus = 3\n"
    )
    assert dev.test(["--again"]) == 1
    assert said(capfd, 1) == ["failed twice: test_it.py::test_one"]


def test_a_worker_that_crashed_is_not_forgiven(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_it.py").write_text(
        FLAKY.replace("NAME", "one").replace('raise AssertionError("busy")', "__import__('os')._exit(1)")
    )
    assert run("daily", "-n", "1") == 1
    assert dev.test(["--again"]) == 1
    assert "crashed while running" in "".join(said(capfd, 3))
    # Nor is pytest itself.
    assert (project / "one").exists()
    (project / "one").unlink()
    assert run("slow") != 0
    assert dev.test(["--again", "--slow"]) == 1


def test_a_run_that_was_broken_off_is_not_forgiven(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dev.test(["--again", "--all"]) == 1
    assert said(capfd, 2) == [f"  {command} was not run to its end" for command in dev.TIERS.values()]
    (project / "test_it.py").write_text("def test_it():\n    raise KeyboardInterrupt\n")
    assert run("daily") == dev.INTERRUPTED
    assert dev.test(["--again"]) == 1
    # What an earlier run has left does not count.
    dev.Record("daily")
    assert dev.test(["--again"]) == 1


def test_a_failed_check_is_not_forgiven(capfd: pytest.CaptureFixture[str]) -> None:
    record = dev.Record("daily")
    record.note("python3 dev.py check")
    record.write()
    assert dev.test(["--again"]) == 1
    assert said(capfd, 2) == ["not tried again:", "  python3 dev.py check"]


def test_again_takes_no_arguments_of_pytest() -> None:
    with pytest.raises(dev.SetUpError, match="alone"):
        dev.test(["--again", "tests/api"])
