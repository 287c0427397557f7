"""Which files of a folder go to the nodes: as git sees them, without what belongs to this machine only."""

from __future__ import annotations

import gc
import subprocess
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sky_jupyter.capture import file_selection
from sky_jupyter.errors import CaptureError

NAMES = ["a", "b.py", "c.log", "d[1].txt", "ab", "build", "b_py", "clog", "c++", "(a)"]
PARTS = ["a", "b.py", "*.log", "*.py", "**", "a*", "?b", "build", "[ab]", "[!a]b", "d\\[1\\].txt", "*"]
PARTS += ["c++", "(a)", "a.b$"]


@pytest.fixture(autouse=True)
def no_garbage_of_others() -> None:
    """Collect what earlier tests of this process left, of which a collection amid a test would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def names(folder: Path) -> list[str]:
    return [name for name, _ in file_selection.files_in(folder)]


def fill(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")


def git(folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    deep = [f"{one}-/{two}" for one in NAMES for two in NAMES]
    fill(folder, *NAMES, *deep, *(f"build-/a-/{name}" for name in NAMES), *(f"x/{name}/{name}" for name in NAMES))
    return folder


LINES = st.builds(
    lambda again, slash, parts, end: f"{again}{slash}{'/'.join(parts)}{end}",
    st.sampled_from(["", "", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(st.sampled_from([*PARTS, *(f"{part}-" for part in ("a", "build", "*")), "x"]), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "  "]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINES, max_size=5), deeper=st.lists(LINES, max_size=2))
@example(lines=[], deeper=["/**", "!**/"])
@example(lines=["[z-a]", "[[a]", "c.log"], deeper=["!a-", "**/*/**"])
@pytest.mark.filterwarnings("error")
def test_gitignore_is_read_as_git_reads_it(repository: Path, lines: list[str], deeper: list[str]) -> None:
    (repository / ".gitignore").write_text("\n".join(["# comment", "", *lines, "!.gitignore"]))
    (repository / "build-" / ".gitignore").write_text("\n".join(deeper))
    expected = git(repository, "ls-files", "-z", "--others", "--exclude-standard")
    assert [name for name in names(repository) if ".gitignore" not in name] == sorted(
        (name for name in expected if ".gitignore" not in name), key=lambda name: name.split("/")
    )


# (git's answer is read as text, in which a carriage return is a line break.)
ASCII = [chr(code) for code in range(1, 128) if chr(code) not in "./\r\n"]
SETS = [f"[:{name}:]" for name in ("alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct")]
SETS += ["[:space:]", "[:upper:]", "[:xdigit:]", "a-f", "z-a", "!--", "\\]", "\\-", "]", "[", "-", "^", "!", "a", "/"]
SETS += ["[:none:]", "[:", "[:x]", "#-&", "\\"]


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("characters")
    git(folder, "init", "-q")
    fill(folder, *(f"x{one}y" for one in ASCII), "x/y")
    return folder


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(negated=st.sampled_from(["", "", "!", "^"]), parts=st.lists(st.sampled_from(SETS), min_size=1, max_size=4))
@example(negated="", parts=["[:alpha:]"])
@example(negated="!", parts=["[:alnum:]", "_"])
@example(negated="!", parts=["a"])
@pytest.mark.filterwarnings("error")
def test_bracket_expressions_are_read_as_git_reads_them(characters: Path, negated: str, parts: list[str]) -> None:
    (characters / ".gitignore").write_text(f"/x[{negated}{''.join(parts)}]y\n")
    expected = git(characters, "ls-files", "-z", "--others", "--exclude-standard")
    assert sorted(names(characters)) == sorted(expected)


def test_names_with_line_breaks_are_read_as_git_reads_them(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, "a", "a\n", "b\nc/a", "b\nc/d.log", "b\nc/e", "f\ng")
    (tmp_path / ".gitignore").write_text("a\n*.log\nf*g\n")
    assert names(tmp_path) == sorted(git(tmp_path, "ls-files", "-z", "--others", "--exclude-standard"))
    assert names(tmp_path) == [".gitignore", "a\n", "b\nc/e"]


def test_what_belongs_to_this_machine_stays_here(tmp_path: Path) -> None:
    fill(tmp_path, "keep.py", ".hidden/keep", "env/pyvenv.cfg", "env/lib/x.py", "x.pyc", "deep/__pycache__/x.py")
    for name in (".git", ".venv", "node_modules", ".ipynb_checkpoints", ".mypy_cache"):
        fill(tmp_path, f"{name}/x.py", f"deep/{name}/y.py")
    (tmp_path / "deep" / "around").symlink_to(tmp_path)
    (tmp_path / "link.py").symlink_to("keep.py")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "sealed").symlink_to("env")
    # A link is one, wherever it leads.
    assert names(tmp_path) == [".hidden/keep", "deep/around", "keep.py", "link.py", "nowhere"]


def test_a_folder_that_git_ignores_goes_when_it_is_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, "data/a.csv", "data/b.tmp", "other/c.csv", "other/d.py")
    (tmp_path / ".gitignore").write_text("data/\n*.csv\n")
    (tmp_path / "data" / ".gitignore").write_text("*.tmp\n")
    assert names(tmp_path / "data") == [".gitignore", "a.csv"]
    assert names(tmp_path / "other") == ["d.py"]


def test_a_folder_that_is_too_large_names_what_makes_it_so() -> None:
    file_selection.refuse_large("data", [("a", file_selection.LIMIT)], "go")
    few = [("raw/a.bin", 80_000_000), ("b.bin", 30_000_000), *((f"c/{n}", 1000) for n in range(20))]
    with pytest.raises(CaptureError, match=r"data is 110 MB in 22 files.*largest in it: raw/a\.bin 80\.0 MB, b\.bin"):
        file_selection.refuse_large("data", few, "go")
    many = [(f"frames/{n}", 1_000_000) for n in range(120)]
    with pytest.raises(CaptureError, match=r"the largest in it: frames/ 120\.0 MB; go"):
        file_selection.refuse_large("data", many, "go")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"absent cannot be sent: No such file"):
        names(tmp_path / "absent")


def test_files_with_passwords_and_private_keys_stay_here_and_are_named(tmp_path: Path) -> None:
    secret = [".env", ".env.local", ".netrc", ".pypirc", "credentials.json", "id_ed25519", "in/.env"]
    sent = [".env.example", "env", "credentials.py", "id_rsa.pub", "roots.pem", "words.key"]
    fill(tmp_path, *secret, *sent)
    (tmp_path / "own.pem").write_text("Bag\n-----BEGIN RSA PRIVATE KEY-----\n")
    named: list[str] = []
    found = [name for name, _ in file_selection.files_in(tmp_path, on_secret=named.append)]
    assert sorted(found) == sorted(sent)
    assert sorted(named) == sorted([*secret, "own.pem"])
