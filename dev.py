#!/usr/bin/env python3
"""Set-up and commands of this project: all that a fresh machine needs.

It needs Python 3.10 or later and nothing else. It makes `.venv` beside this file, installs what the command needs at
the versions of constraints.txt, and then runs the command; later calls only run it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMP = VENV / "dev-stamp.json"
CONSTRAINTS = ROOT / "constraints.txt"
QUICKSTART = "notebooks/quickstart.ipynb"
FRONT_END = "labextension/build.py"

# Their extensions for JupyterLab's page, and for its server.
PEERS = {"jupyter-distributed": "jupyter_distributed", "ipyparallel-labextension": "ipyparallel"}

JOB = {"jax", "keras", "notebook"}
EVERYTHING = {*JOB, "torch", "ssh", "aws", "kubernetes", "mcp", "dev", "docs"}

# `lock` takes these versions instead of the newest; torch is large, and moves only when someone means it to.
HELD = ("torch==2.13.0",)
# Removed after each installation: jsonschema does without this parser of addresses, and imports it where it is there,
# which takes each Jupyter server, and each program that reads a notebook, 2 s.
UNWANTED = ("rfc3987-syntax", "lark")
# Pinned by torch itself, for each of its versions.
NOT_LOCKED = re.compile(rf"(nvidia|cuda|triton|{'|'.join(UNWANTED)})\b")
LOCK_HEADER = """\
# The versions that the tests ran with, for Python 3.10 and later. Made by: python3 dev.py lock
# (`python3 dev.py lock --upgrade` takes the newest). What torch pins by itself is left out, and what dev.py removes.
"""
# What pip has been told, as uv calls it, so that uv finds packages where pip would.
FROM_PIP = {"index-url": "UV_DEFAULT_INDEX", "find-links": "UV_FIND_LINKS", "cert": "SSL_CERT_FILE"}


# pydoclint's rule that an argument's type reads in its docstring as in its annotation, and which others are not ours:
# of attributes, of the types that functions return and yield, and of what they raise. ruff has everything else.
TYPE_DIFFERS = "DOC105"
NOT_COMPARED = ("check-class-attributes", "check-return-types", "check-yield-types")
PYDOCLINT = [*(part for name in NOT_COMPARED for part in (f"--{name}", "False")), "--skip-checking-raises", "True"]

# pytest's statuses: tests failed; somebody interrupted it, or a file could not be read; no test was selected.
FAILED, INTERRUPTED, NOTHING_RAN = 1, 2, 5

# Where each tier writes down what failed, for `test --again`, and the commands of the tiers.
RECORDS = ROOT / "artifacts" / "failed"
TIERS = {"daily": "python3 dev.py test", "slow": "python3 dev.py test --slow"}
# More failures than this are no flaky tests, and would take long.
MOST_AGAIN = 20
# How a test is named that failed among others and passed alone.
FLAKY = "flaky"


class SetUpError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, set up, run the verb; returns its exit status."""
    if sys.version_info < (3, 10):  # noqa: UP036 - this is what says so to an older one
        print(f"dev.py needs Python 3.10 or later; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(prog="dev.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = "\n".join(f"{name:<11} {verb.__doc__}" for name, (_, verb) in VERBS.items())
    parser.add_argument("verb", choices=VERBS, metavar="verb", help=verbs)
    parser.add_argument("args", nargs=argparse.REMAINDER, help="handed on to what the verb runs")
    options = parser.parse_args(arguments)
    extras, verb = VERBS[options.verb]
    os.chdir(ROOT)
    try:
        if extras is not None:
            set_up(extras)
        return verb(options.args)
    except SetUpError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


# The verbs


def quickstart(args: Sequence[str]) -> int:
    """Execute the quickstart notebook and print what its nodes said."""
    status = python("notebooks/execute.py", QUICKSTART, *args)
    if status == 0:
        print("\nThe same notebook in JupyterLab: python3 dev.py lab")
    return status


def lab(args: Sequence[str]) -> int:
    """Open a copy of the quickstart notebook in JupyterLab."""
    copy = ROOT / "artifacts" / Path(QUICKSTART).name
    if not copy.exists():
        # What is run and saved there changes nothing in the repository.
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(QUICKSTART, copy)
    # Containers run as root, which the server refuses without this option.
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    env = environment()
    env["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [lab_settings(), env.get("JUPYTER_CONFIG_PATH")]))
    return run([BIN / "python", "-m", "jupyterlab", copy.relative_to(ROOT), *root, *args], env)


def lab_settings() -> str:
    """Write Jupyter settings that disable the benchmarks' peers; return the folder."""
    folder = VENV / "dev-lab"
    servers = {"ServerApp": {"jpserver_extensions": dict.fromkeys(PEERS.values(), False)}}
    pages = {"disabledExtensions": dict.fromkeys(PEERS, True)}
    files = {"jupyter_server_config.json": servers, "labconfig/page_config.json": pages}
    for name, settings in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


def test(args: Sequence[str]) -> int:
    """Run the checks and the daily tests; with arguments, pytest alone with these.

    With --slow, the slow tests; with --all, the daily ones and then the slow ones; with --long, the
    tests that take minutes each and a soak of an hour. With --again, what failed when these were run
    last, each test alone: one that passes then is named as flaky, and the status is 0 if nothing else
    had failed (no check, no worker that crashed, no run that was broken off).
    """
    tiers = {"--slow": slow, "--all": daily_and_slow, "--long": long}
    chosen = [arg for arg in args if arg in tiers]
    rest = [arg for arg in args if arg not in tiers]
    if "--again" in rest:
        if rest != ["--again"] or chosen[-1:] == ["--long"]:
            raise SetUpError("test takes --again alone, or with --slow or --all")
        return again(*({"--slow": ["slow"], "--all": ["daily", "slow"]}[chosen[-1]] if chosen else ["daily"]))
    if chosen:
        return tiers[chosen[-1]](rest)
    return pytest(args) if args else daily()


def daily() -> int:
    """Run the checks, then the daily tests."""
    record = Record("daily")
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        # Fetching waits for the network while the checks compute.
        aside = subprocess.Popen([BIN / "python", FRONT_END, "check"], env=environment(), stdout=said, stderr=said)
        rewriting = rewrite_assertions()
        try:
            failed = check_python(())
        finally:
            failed_front = aside.wait()
            rewriting.wait()
        said.seek(0)
        print(said.read(), flush=True)
    for verb in [*(["check"] if failed else []), *(["front"] if failed_front else [])]:
        record.note(f"python3 dev.py {verb}")
    status = tier("not slow and not long", record=record)
    record.write()
    for verb in [*(["check"] if failed else []), *(["front"] if failed_front else [])]:
        print(f"The tests are above; what was before them failed too: python3 dev.py {verb}", file=sys.stderr)
    return status or failed or failed_front


def rewrite_assertions() -> subprocess.Popen[bytes]:
    """Begin to compile the tests as pytest does, for its workers: each of them would do all of it by itself."""
    command = [str(BIN / "python"), "-m", "pytest", "--collect-only", "-q"]
    # What is wrong with a file, the workers tell.
    return subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def slow(args: Sequence[str]) -> int:
    """Run the slow tests."""
    record = Record("slow")
    if args:
        record.note(f"{TIERS['slow']} ran in part")
    status = tier("slow and not long", args, record=record)
    record.write()
    return status


def daily_and_slow(args: Sequence[str]) -> int:
    """Run the daily tests, then the slow ones; return the worse status."""
    if args:
        return pytest(["-m", "not long", *args])
    status = daily()
    return status if status == INTERRUPTED else max(status, slow(()))


def long(args: Sequence[str]) -> int:
    """Run what takes minutes, and a soak of an hour, with seeds drawn at random."""
    os.environ.setdefault("SKY_SOAK_SECONDS", "3600")
    os.environ.setdefault("SKY_SOAK_SEED", str(random.randrange(1 << 30)))
    os.environ.setdefault("HYPOTHESIS_PROFILE", "random")
    return pytest(["-m", "long or soak", *args])


def tier(which: str, args: Sequence[str] = (), *, record: Record) -> int:
    """Run the tests of a marker expression: in parallel, then those of timings alone."""
    status = record.run(lambda more: pytest([*more, "-m", f"{which} and not timing", *args]))
    if status == INTERRUPTED:
        return status
    # Other tests would disturb its measurements; nor is anything else read, on which the other cores would wait.
    files = args or timing_files()
    alone = record.run(
        lambda more: python("-m", "pytest", *more, "-m", f"{which} and timing", *files), may_be_empty=True
    )
    return max(status, 0 if alone == NOTHING_RAN else alone)


def timing_files() -> list[str]:
    """Return the files of tests that mark one as `timing`; from the working folder, as pytest names them."""
    files = sorted(Path("tests").rglob("*.py"))
    return [str(path) for path in files if "mark.timing" in path.read_text(encoding="utf-8")]


def pytest(args: Sequence[str]) -> int:
    # More than there are cores: tests of cuts, leases and silence mostly wait. With four on two cores a fifth was idle.
    workers = min(6, (os.cpu_count() or 2) + 4)
    # Tests of one file share its fixtures, and so its pools.
    options = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    # The whole has a limit of time: what takes most of it is told.
    return python("-m", "pytest", *options, "--durations=40", "--durations-min=5", *args)


class Record:
    """What failed in the run of a tier; the record of the run before is removed when this is made.

    Without a record, which `write` leaves at the end, the run was broken off.
    """

    def __init__(self, name: str) -> None:
        self.file = RECORDS / f"{name}.json"
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
        # Tests, and files at whose end something was wrong, in their order; and what no other attempt excuses.
        self.failed: list[str] = []
        self.rest: list[str] = []

    def note(self, what: str) -> None:
        """Note what failed besides tests."""
        self.rest.append(what)

    def run(self, run: Callable[[list[str]], int], *, may_be_empty: bool = False) -> int:
        """Run pytest with the given arguments besides its own, and note what failed; return its status."""
        status, told = outcomes(run)
        self.failed += told["failed"]
        self.rest += told["crashes"]
        if status == FAILED and not (told["failed"] or told["crashes"]):
            self.note("pytest ended with status 1, though no test failed")
        elif status not in (0, FAILED) and not (may_be_empty and status == NOTHING_RAN):
            self.note(f"pytest ended with status {status}")
        return status

    def write(self) -> None:
        """Write the record: the run is over."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps({"failed": self.failed, "rest": self.rest}), encoding="utf-8")
        except OSError as error:
            # Only `test --again` needs it, and forgives nothing without it.
            print(f"dev.py: what failed is not written down: {error}", file=sys.stderr)


def outcomes(run: Callable[[list[str]], int]) -> tuple[int, dict[str, list[str]]]:
    """Return the status of a run of pytest and what `tests/outcomes.py` told of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes.json")
        os.environ["SKY_OUTCOMES"] = str(file)
        try:
            status = run(["-p", "tests.outcomes"])
        finally:
            del os.environ["SKY_OUTCOMES"]
        try:
            told: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # It did not come to its end.
            told = {"failed": [], "passed": [], "crashes": [f"pytest told nothing of its tests (status {status})"]}
    return status, told


def again(*tiers: str) -> int:
    """Run the tests that failed in tiers once more, each alone, and name those that pass as flaky."""
    failed, rest = [], []
    for name in tiers:
        try:
            record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            rest.append(f"{TIERS[name]} was not run to its end")
        else:
            failed += record["failed"]
            rest += record["rest"]
    if rest or len(failed) > MOST_AGAIN:
        # It has failed whatever comes of the tests.
        rest += [*failed[:MOST_AGAIN], *(["and more"] if len(failed) > MOST_AGAIN else [])]
        print("\n".join(["not tried again:", *(f"  {line}" for line in rest)]), flush=True)
        return FAILED
    lines = [_try_again(name) for name in dict.fromkeys(failed)]
    print("\n".join(lines or ["nothing had failed"]), flush=True)
    return FAILED if any(not line.startswith(FLAKY) for line in lines) else 0


def _try_again(name: str) -> str:
    """Run a test alone, or a file's daily and slow tests; return and print what became of it."""
    which = "" if "::" in name else "not long"
    status, told = outcomes(lambda more: python("-m", "pytest", *more, "-m", which, name))
    passed = not status and told["passed"] and not told["failed"] and not told["crashes"]
    line = f"{FLAKY if passed else 'failed twice'}: {name}"
    print(line, flush=True)
    return line


def check(args: Sequence[str]) -> int:
    """Run ruff, mypy, import-linter, pydoclint, Sphinx and the front end's lint.

    With --fix, ruff repairs what it can.
    """
    return max(check_python(args), python(FRONT_END, "lint"))


def check_python(args: Sequence[str]) -> int:
    """Run the checks of Python code and documentation, without the front end's."""
    if unknown := set(args) - {"--fix"}:
        raise SetUpError(f"check takes --fix alone, not {' '.join(sorted(unknown))}")
    lint, style = (["--fix"], []) if args else ([], ["--check"])
    commands = (["ruff", "check", *lint], ["ruff", "format", *style], ["mypy"])
    status = max([python("-m", *command) for command in commands])
    status = max(status, pydoclint())
    # Which way imports run.
    status = max(status, run([BIN / "lint-imports", "--no-cache"], environment()))
    with tempfile.TemporaryDirectory() as folder:
        # Reads all pages and writes none.
        return max(status, sphinx("dummy", folder))


def pydoclint(folder: str = "sky_jupyter") -> int:
    """Compare the docstrings of a folder with what they describe, but for types, which are written for people there.

    By its own command: as a plugin of flake8 it takes three times as long, as flake8 looks for what ruff has found.
    """
    options = [*PYDOCLINT, "--quiet", "--show-filenames-in-every-violation-message", "True"]
    command = [str(BIN / "python"), "-m", "pydoclint.main", *options, folder]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # It has no option that leaves a rule out. Empty lines stand between files.
    said = [line for line in done.stdout.splitlines() if line.strip()]
    found = [line for line in said if f": {TYPE_DIFFERS}: " not in line]
    if found:
        print("\n".join(found), flush=True)
    # What that rule alone had found is forgiven, and no other end.
    return int(bool(found) or done.returncode not in (0, 1) or (done.returncode == 1 and not said))


def docs(args: Sequence[str]) -> int:
    """Build the documentation in artifacts/docs; arguments are sphinx-build's."""
    folder = ROOT / "artifacts" / "docs"
    shutil.rmtree(folder, ignore_errors=True)  # pages that have been renamed
    if status := sphinx("html", str(folder), *args):
        return status
    print(f"The first page: {folder / 'docs' / 'index.html'}")
    return 0


def sphinx(builder: str, folder: str, *args: str) -> int:
    """Read all pages and docstrings with Sphinx; a warning is an error."""
    strict = ["-q", "-W", "--keep-going", "-E", "-a"]
    return python("-m", "sphinx", "-b", builder, "-c", "docs", *strict, *args, ".", folder)


def front(args: Sequence[str]) -> int:
    """Build, type-check and test the front end; arguments are for vitest alone."""
    if args:
        return python(FRONT_END, "test", *args)
    if status := python(FRONT_END):
        return status
    STAMP.unlink(missing_ok=True)
    set_up(EVERYTHING)  # what was built goes into .venv
    return python(FRONT_END, "check")


def screenshots(args: Sequence[str]) -> int:
    """Take the screenshots of docs/images; others go to artifacts/."""
    folder = ROOT / "artifacts"
    os.environ["SKY_SCREENSHOTS"] = str(folder)
    if status := python("-m", "pytest", "tests/browser/test_pages.py", "-m", "slow", "-k", "glance", *args):
        return status
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        shutil.copy(folder / picture.name, picture)
    return 0


def bench(args: Sequence[str]) -> int:
    """Run the benchmarks."""
    return python("-m", "benchmarks", *args)


def kubernetes(args: Sequence[str]) -> int:
    """Build the Kubernetes of the tests, once: minutes."""
    status = python("-m", "tests.kubernetes.binaries", *args)
    return status or python("-m", "tests.kubernetes.containers")


def gpu(args: Sequence[str]) -> int:
    """Run all GPU tests with this Python, and write docs/gpu.md; see --help."""
    env = dict(os.environ)
    if "--fetch" in args:
        set_up(set())  # for uv
        env = environment()
    return run([sys.executable, "tests/gpu", *args], env)


def lock(args: Sequence[str]) -> int:
    """Write constraints.txt anew."""
    with tempfile.TemporaryDirectory() as folder:
        held, out = Path(folder, "held.txt"), Path(folder, "constraints.txt")
        held.write_text("\n".join([*HELD, ""]), encoding="utf-8")
        if CONSTRAINTS.exists():
            shutil.copy(CONSTRAINTS, out)  # uv keeps the versions that it finds there
        command = ["pip", "compile", "--quiet", "--universal", "--python-version", "3.10", "--all-extras"]
        command += ["--no-header", "--no-annotate", "--constraints", str(held), "--output-file", str(out)]
        env = environment()
        # A folder of local builds would give versions that only this machine has.
        env.pop("UV_FIND_LINKS", None)
        if status := run([str(BIN / "uv"), *command, *args, "pyproject.toml"], env):
            return status
        lines = [line for line in out.read_text(encoding="utf-8").splitlines() if not NOT_LOCKED.match(line)]
    CONSTRAINTS.write_text(LOCK_HEADER + "\n".join([*lines, ""]), encoding="utf-8")
    return 0


# The extras that each verb needs; None where it leaves `.venv` alone.
VERBS: dict[str, tuple[set[str] | None, Callable[[Sequence[str]], int]]] = {
    "quickstart": (JOB, quickstart),
    "lab": ({*JOB, "lab"}, lab),
    "test": (EVERYTHING, test),
    "check": (EVERYTHING, check),
    "front": (EVERYTHING, front),
    "docs": (EVERYTHING, docs),
    "screenshots": (EVERYTHING, screenshots),
    "bench": (EVERYTHING, bench),
    "gpu": (None, gpu),
    "kubernetes": (EVERYTHING, kubernetes),
    "lock": (set(), lock),
}


# Setting up


def set_up(extras: set[str]) -> None:
    """Bring `.venv` to what the extras need; does nothing when it is there already."""
    now, stamp = facts(), read_stamp()
    have = set(stamp["extras"]) if stamp else set()
    if stamp and stamp["facts"] == now and extras <= have and (BIN / "python").exists():
        return
    if VENV.exists() and (reason := unusable(stamp, now)):
        print(f"dev.py: making .venv anew: {reason}", flush=True)
        shutil.rmtree(VENV)
        have = set()
    STAMP.unlink(missing_ok=True)
    if not VENV.exists():
        make_venv()
    settings = pip_settings()
    env = {**settings, **environment()}
    install_uv(env)
    extras = extras | have
    target = f".[{','.join(sorted(extras))}]" if extras else "."
    print(f"dev.py: installing {target}", flush=True)
    # No bytecode is made ahead: for all of these packages that takes longer than the first imports, which make it too.
    command = [BIN / "uv", "pip", "install", "--python", BIN / "python", "--constraints", CONSTRAINTS]
    if run([*command, "--reinstall-package", "sky-jupyter", "-e", target], env):
        raise SetUpError("the installation failed; uv's own words are above")
    if run([BIN / "uv", "pip", "uninstall", "--quiet", "--python", BIN / "python", *UNWANTED], env):
        raise SetUpError(f"{' and '.join(UNWANTED)} could not be removed; uv's own words are above")
    if not (ROOT / "sky_jupyter" / "labextension").exists():
        print(
            "dev.py: there is no front end, as its tools could not be fetched; again: python3 dev.py front", flush=True
        )
    STAMP.touch(mode=0o600)  # an index's address may hold a password
    STAMP.write_text(json.dumps({"facts": now, "extras": sorted(extras), "settings": settings}), encoding="utf-8")


def facts() -> dict[str, str]:
    """Return the versions and inputs that an installed `.venv` depends on."""
    inputs = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, *front_end_sources()):
        inputs.update(path.read_bytes() if path.exists() else b"")
    version = ".".join(map(str, sys.version_info[:2]))
    return {"inputs": inputs.hexdigest(), "python": version, "root": str(ROOT)}


def front_end_sources() -> list[Path]:
    """Return the source files of the front end, which is rebuilt when they change."""
    spec = importlib.util.spec_from_file_location("front_end", ROOT / FRONT_END)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sources: list[Path] = module.sources()
    return sources


def read_stamp() -> dict[str, Any]:
    try:
        stamp: dict[str, Any] = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp


def unusable(stamp: dict[str, Any], now: dict[str, str]) -> str:
    """Return why the existing `.venv` cannot be used; empty if it can."""
    if not (BIN / "python").exists():
        return "its Python is gone"
    if stamp and stamp["facts"]["root"] != now["root"]:
        return "this folder has moved"
    config = (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    version = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", config, re.MULTILINE)
    if version is None or version[1] != now["python"]:
        return f"it is not of Python {now['python']}, which runs this"
    return ""


def make_venv() -> None:
    """Make `.venv`, with pip in it where this Python can do that."""
    print("dev.py: making .venv", flush=True)
    command = [sys.executable, "-m", "venv", str(VENV)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode == 0:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    # Debian packs the part of venv that installs pip separately; a pip or uv outside of it will do as well.
    if not (importlib.util.find_spec("pip") or shutil.which("uv")):
        raise SetUpError(
            f"this Python cannot make a virtual environment:\n{done.stdout}{done.stderr}"
            "on Debian and Ubuntu: apt-get install python3-venv"
        )
    if status := run([*command, "--without-pip"], environment()):
        raise SetUpError(f"python -m venv ended with status {status}")


def pip() -> list[str]:
    """Return the pip that installs into `.venv`: its own, else this Python's, if any."""
    if any(VENV.glob("lib/python*/site-packages/pip")):
        return [str(BIN / "python"), "-m", "pip"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", str(BIN / "python")]
    return []


def pip_settings() -> dict[str, str]:
    """Return pip's package indexes as environment variables of uv."""
    if not pip():
        return {}
    listing = subprocess.run([*pip(), "config", "list"], env=environment(), capture_output=True, text=True).stdout
    settings = {}
    for section in ("global", "install", ":env:"):  # the later one wins, as it does for pip
        for name, variable in FROM_PIP.items():
            if line := re.search(rf"^{section}\.{name}=(.+)$", listing, re.MULTILINE):
                # pip separates several by white space, uv by commas.
                settings[variable] = ",".join(ast.literal_eval(line[1]).split())
    return settings


def install_uv(env: dict[str, str]) -> None:
    if (BIN / "uv").exists():
        return
    print("dev.py: fetching uv", flush=True)
    if installer := pip():
        command = [*installer, "install"]
    else:
        command = [shutil.which("uv") or "uv", "pip", "install", "--python", str(BIN / "python")]
    if run([*command, "--constraint", str(CONSTRAINTS), "uv"], env):
        raise SetUpError("uv could not be installed; the reason is above")


# Running


def environment() -> dict[str, str]:
    """Return the environment of all commands: `.venv` first in PATH, uv's indexes."""
    settings = {name: value for name, value in read_stamp().get("settings", {}).items() if name.startswith("UV_")}
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    env = {**settings, **os.environ, "VIRTUAL_ENV": str(VENV), "PATH": path}
    # Without bytecode, each start of a rank would compile all of its imports.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME"):
        env.pop(name, None)
    return env


def python(*args: str) -> int:
    return run([BIN / "python", *args], environment())


def run(command: Sequence[object], env: dict[str, str]) -> int:
    """Run a command to its end and return its exit status, as a shell would give it."""
    with subprocess.Popen([str(part) for part in command], env=env) as process:
        while True:
            try:
                status = process.wait()
                return status if status >= 0 else 128 - status
            except KeyboardInterrupt:
                continue  # the terminal told the command as well: let it end in its own way


if __name__ == "__main__":
    sys.exit(main())
