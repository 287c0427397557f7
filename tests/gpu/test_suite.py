"""What runs the checks of GPUs: the table, what is missing and what brings it, and that nothing ends the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gpu import runner, supplies, table
from tests.gpu.table import FAILED, ON_CPU, PASSED, ROOT, SKIPPED, Row

ROWS = [
    Row("one", PASSED, "1.003 x", 2.04),
    Row("two", FAILED, "Wrong: a | b\n\x1b[31mred\x1b[0m <x>"),
    Row("three", SKIPPED, "1 GPU"),
]
# What runs checks, as the runner sees it: it says a word for each, and does what the check's name is.
CHILD = """
import json, os, subprocess, sys, time
words, *keys = sys.argv[1:]
for key in keys:
    if key == "hangs":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)
    if key == "dies":
        os._exit(3)
    with open(words, "a") as told:
        told.write(json.dumps({"result": "passed", "figure": str(os.getpid())}) + "\\n")
"""


def run_dev(*arguments: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """``dev.py gpu`` with this Python."""
    env = {**os.environ, **({} if path is None else {"PATH": path})}
    command = [sys.executable, "dev.py", "gpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)


def wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """A wheel with a module of its name."""
    folder.mkdir(exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join([*lines, "", ""]))
        tags = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{stem}.dist-info/WHEEL", tags)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
        archive.writestr(f"{name.replace('-', '_')}.py", "")
    return path


def run_jobs(log: Path, keys: Sequence[str], seconds: float = 60.0, limit: float = 30.0) -> list[Row]:
    jobs = [runner.Job(key, key, 1.0 if key == "hangs" else limit) for key in keys]
    made = runner.Runner(lambda words, keys: [sys.executable, "-c", CHILD, str(words), *keys], os.environ, log, seconds)
    rows = made.run(jobs)
    assert runner.marked(made.mark) == []
    return rows


# The table.


def test_the_table_has_the_machine_and_each_check_in_a_line() -> None:
    text = table.text(ROWS, {"GPUs": "1 x NVIDIA H100", "torch": "2.11.0+cu130"})
    assert text.startswith("| | |\n|---|---|\n| GPUs | 1 x NVIDIA H100 |\n")
    assert "3 checks: 1 passed, 1 failed, 1 skipped." in text
    assert text.splitlines()[-3:] == [
        "| one | passed | 1.003 x | 2.0 |",
        "| two | failed | Wrong: a \\| b red &lt;x> | 0.0 |",
        "| three | skipped | 1 GPU | 0.0 |",
    ]


def test_the_page_keeps_its_words_around_a_new_table(tmp_path: Path) -> None:
    page = table.write(tmp_path / "out", ROWS, table.machine())
    before, after = table.PAGE.read_text(encoding="utf-8"), page.read_text(encoding="utf-8")
    assert after.partition(table.BEGIN)[0] == before.partition(table.BEGIN)[0]
    assert "| one | passed |" in after
    assert table.on_page(after, "x").count("x") < after.count("x")
    told = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    assert [one["result"] for one in told["checks"]] == [PASSED, FAILED, SKIPPED]
    assert told["machine"]["Python"]


# Checks that fail.


@pytest.mark.slow
def test_a_check_that_hangs_or_dies_ends_no_other_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    keys = ["a", "hangs", "b", "dies", "c", "d"]
    rows = run_jobs(tmp_path / "log", keys)
    assert [row.name for row in rows] == keys
    assert [row.result for row in rows] == [PASSED, FAILED, PASSED, FAILED, PASSED, PASSED]
    assert rows[1].figure == "it took longer than 1 s, and was killed"
    assert rows[3].figure.startswith("its process ended with status 3")
    # Those beside each other shared a process, and so what it has made.
    assert rows[4].figure == rows[5].figure != rows[2].figure


def test_what_no_time_is_left_for_is_said_to_be_left_out(tmp_path: Path) -> None:
    told = [(row.result, row.figure) for row in run_jobs(tmp_path / "log", ["a", "b"], seconds=1.0)]
    assert told == [(SKIPPED, "the time for all checks was over")] * 2


# What is missing.


def test_wheels_are_taken_for_what_this_python_lacks_and_for_nothing_else(tmp_path: Path) -> None:
    wheel(
        tmp_path, "Sky.Test-one", "2.0", "sky-test-two[more]>=1; python_version > '3'", "packaging", "x; extra == 'y'"
    )
    wheel(tmp_path, "sky_test_two", "1.5", "sky-test-three; extra == 'more'", "sky-test-four; python_version < '3'")
    wheel(tmp_path, "packaging", "0.1")
    wheels = supplies.wheels_of(tmp_path)
    missing, chosen = supplies.lacking(["sky-test-one>=1", "sky-test-two>=9", "pytest"], wheels)
    assert missing == ["sky-test-two>=9", "sky-test-three"]
    assert [one.name for one in chosen] == ["sky-test-one", "sky-test-two"]


def test_a_package_that_is_too_old_is_named_with_the_version_that_is_here() -> None:
    missing, chosen = supplies.lacking(["pytest>=99"])
    assert missing == [f"pytest>=99 (here: {pytest.__version__})"]
    assert chosen == []


def test_two_wheels_of_one_package_and_a_folder_without_any_are_refused(tmp_path: Path) -> None:
    wheel(tmp_path / "two", "sky-test-one", "1.0")
    wheel(tmp_path / "two", "sky-test-one", "2.0")
    (tmp_path / "none").mkdir()
    with pytest.raises(supplies.LacksError, match="has two wheels of sky-test-one"):
        supplies.wheels_of(tmp_path / "two")
    with pytest.raises(supplies.LacksError, match=r"has no wheels; .*dev\.py gpu --fetch"):
        supplies.wheels_of(tmp_path / "none")


def test_what_is_lacking_goes_into_a_folder_beside_this_python(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "sky-test-one", "1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supplies, "requirements", lambda: ["pytest", "sky-test-one"])
        with pytest.raises(
            supplies.LacksError, match=r"lacks sky-test-one, and what .*dev\.py gpu --fetch DIR --python"
        ):
            supplies.supply(None, tmp_path)
        variables = supplies.supply(tmp_path / "wheels", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import sky_test_one, sky_jupyter; print(sky_test_one.__file__, sky_jupyter.__file__)"],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [
        str(tmp_path / "site-packages" / "sky_test_one.py"),
        str(ROOT / "sky_jupyter" / "__init__.py"),
    ]


def test_the_packages_needs_are_read_from_its_pyproject() -> None:
    listed = supplies.requirements()
    assert {supplies.canonical(supplies._requirement(text).name) for text in listed} > {
        "distributed",
        "uv",
        "ipykernel",
    }
    assert supplies.lacking(listed) == ([], [])


# The command.


def test_without_a_gpu_it_says_in_a_line_how_to_run_it(tmp_path: Path) -> None:
    done = run_dev("--out", tmp_path / "out", path=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("dev.py gpu: there is no GPU that nvidia-smi shows; on a machine with one")
    assert "python3 dev.py gpu" in line


def test_on_a_cpu_what_can_be_runs_and_is_marked_as_no_result(tmp_path: Path) -> None:
    done = run_dev("--device", "cpu", "--out", tmp_path, "-k", "detected,asked_for,own_packages")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert f"3 checks: 2 {ON_CPU}, 1 skipped." in page
    assert "A100 is refused" in page
    assert "no GPU that the catalogue knows" in page
