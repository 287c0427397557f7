"""No password or token that a pool is given is where other users, or later readers, find it: here and on a host.

A new secret is a line of `PLANTED`, and a place in `_give` where it is given.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pytest

from sky_jupyter.bootstrap import local_environment, remote_environment, wheels
from sky_jupyter.bootstrap.offline_bundle import own_cache
from sky_jupyter.bootstrap.satisfied_requirements import frozen
from tests.attacks.secrets import Hit, Server, Watcher, files_with, for_others, look, processes
from tests.bootstrap.wheels import make_wheel
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.magics.notebook import Notebook, notebook


@dataclass(frozen=True)
class Planted:
    """A secret that a pool is given.

    Parameters
    ----------
    without : frozenset of str
        Kinds of processes that must not have it in their environment; see `tests.attacks.secrets.Hit`.
    files : frozenset of str
        Parts of paths of files that may hold it, for their user only.
    """

    name: str
    without: frozenset[str] = frozenset({"node", "link", "notebook", "uv", "other"})
    files: frozenset[str] = frozenset()


# The spec is kept with the pool, for a notebook that attaches to it or restarts it.
RECORD = frozenset({"/pool.record"})
PLANTED = [
    Planted("login", files=RECORD),
    # What uv fetched is in its cache by the whole URL.
    Planted("token", files=RECORD | {"/uv-cache/", "/sky_jupyter/uv/"}),
    Planted("git", files=RECORD),
    # (On a host uv has the image's variables: a proxy, or an index, may be among them.)
    Planted("variable", frozenset({"link", "notebook"}), RECORD),
    Planted("index", frozenset({"node", "link", "notebook"}), RECORD),
    # The person's own, which all that they start has.
    Planted("proxy", frozenset()),
    # (uv and the link are the person's own processes, with the notebook's variables.)
    Planted("HF_TOKEN", frozenset({"node"})),
]
NAMES = [planted.name for planted in PLANTED]


@dataclass
class Report:
    """What was seen while pools started, ran a cell and ended."""

    values: dict[str, str] = field(default_factory=dict)
    hits: set[Hit] = field(default_factory=set)
    turns: int = 0
    looks: int = 0
    open: set[tuple[str, str]] = field(default_factory=set)
    during: set[tuple[str, str]] = field(default_factory=set)
    after: set[tuple[str, str]] = field(default_factory=set)
    said: str = ""

    def argv(self, name: str) -> list[str]:
        return [hit.command for hit in self.hits if (hit.secret, hit.where) == (name, "argv")]

    def environ(self, planted: Planted) -> set[tuple[str, str]]:
        # (One without a command line is just becoming a program, or ends.)
        hits = {hit for hit in self.hits if (hit.secret, hit.where) == (planted.name, "environ") and hit.command}
        return {(hit.kind, hit.command) for hit in hits if hit.kind in planted.without}

    def files(self, planted: Planted, found: set[tuple[str, str]], allowed: frozenset[str]) -> list[str]:
        paths = [path for name, path in found if name == planted.name]
        return [path for path in paths if not any(part in path for part in allowed)]


@dataclass
class Scene:
    """A folder for all that is written, a server of packages, and a notebook with the person's variables."""

    values: dict[str, str]
    folder: Path
    server: Server
    page: Notebook
    report: Report
    more: Sequence[Path] = ()
    host: str = "127.0.0.1"

    def run(self, source: str, *, timeout: float = 200) -> str:
        """Run a cell; all that it shows."""
        cell = self.page.run(source, timeout=timeout)
        text = "\n".join(str(output) for output in cell.outputs)
        self.report.said += f"{cell.status}: {text}\n"
        return cell.status

    def look(self) -> set[tuple[str, str]]:
        """The files that hold a secret now."""
        return files_with(self.values, self.roots, [self.folder / "own"])

    @property
    def roots(self) -> list[Path]:
        """Where the product may write."""
        return [self.folder, *Path("/dev/shm").glob("sky-*"), *self.more]

    @property
    def requirements(self) -> str:
        """Packages by URLs with a login and a token."""
        place = f"{self.host}:{self.server.port}"
        login = f"skylogin @ http://me:{self.values['login']}@{place}/skylogin-1.0-py3-none-any.whl"
        return f"{login},skytoken @ http://{place}/skytoken-1.0-py3-none-any.whl?token={self.values['token']}"


@contextlib.contextmanager
def scene(
    report: Report,
    address: str = "127.0.0.1",
    places: Sequence[Path] = (),
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Scene]:
    """All that is needed to start pools with secrets, watched from its begin to its end."""
    report.values = values = {name: f"{name.lower().replace('_', '')}{secrets.token_hex(8)}" for name in NAMES}
    # Short, as sockets lie in it.
    folder = Path(tempfile.mkdtemp(prefix="sky-planted-"))
    (folder / "own").mkdir()
    for name in ("skylogin", "skytoken", "skyindex"):
        make_wheel(folder / "own" / "served", name)
    for name in ("transformers", "datasets", "tokenizers"):
        make_wheel(folder / "own" / "usual", name)
        make_wheel(folder / "own" / "served", name)
    (folder / "XDG_RUNTIME_DIR").mkdir(mode=0o700)
    (folder / "t").mkdir()
    (folder / "own" / "n").mkdir()
    scanned = {name: value.encode() for name, value in values.items()}

    def allows(login: str, proxy: str, query: str) -> bool:
        known = {f"me:{values[name]}" for name in ("login", "index", "git")}
        return login in known or query == f"token={values['token']}"

    def on_request(path: str) -> None:
        # Who asks is just at work: what it holds now is there to be seen.
        report.looks += 1
        report.hits.update(look(scanned, processes()))
        found = files_with(values, [folder], [folder / "own"])
        report.open |= {(name, path) for name, path in found if os.path.exists(path) and for_others(path, folder)}

    watcher = Watcher(values)
    server = Server(folder / "own" / "served", allows, on_request, address)
    variables = {
        **{f"XDG_{name}": str(folder / f"XDG_{name}") for name in ("CACHE_HOME", "STATE_HOME", "RUNTIME_DIR")},
        "TMPDIR": str(folder / "t"),
        "IPYTHONDIR": str(folder / "own" / "ipython"),
        "SKY_REGISTRY": str(folder / "registry.sqlite"),
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_DEFAULT_INDEX": (folder / "own" / "usual").as_uri(),
        "UV_FIND_LINKS": str(folder / "own" / "usual"),
        "http_proxy": f"http://me:{values['proxy']}@127.0.0.1:{server.port}",
        "no_proxy": "",
    }
    try:
        with notebook(folder / "own" / "n", **variables, **more) as page:
            yield Scene(values, folder, server, page, report, places)
        seen, report.turns = watcher.end()
        report.hits |= seen
    finally:
        watcher.close()
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def here() -> Report:
    """Pools of local nodes: by the magic, by the API, and some that fail."""
    report = Report()
    with scene(report) as one:
        values, port = one.values, one.server.port
        assert one.run("%load_ext sky_jupyter") == "ok"
        options = f'--name one --pip "{one.requirements}" --env "SKY_PLANTED={values["variable"]}"'
        cell = "import skylogin, skytoken, os; len(os.environ['SKY_PLANTED'])"
        assert one.run(f"%%sky {options}\n{cell}") == "ok", report.said
        index = f"http://me:{values['index']}@127.0.0.1:{port}/simple"
        assert (
            one.run(
                "import os, sky_jupyter as sky\n"
                f"os.environ['HF_TOKEN'] = {values['HF_TOKEN']!r}\n"
                f"image = sky.Image(pip=['skyindex'], pip_indexes=[sky.PipIndex({index!r}, packages=['skyindex'])])\n"
                "two = sky.Compute(name='two', image=image, plugins=[sky.plugins.huggingface()]).start()"
            )
            == "ok"
        ), report.said
        known = "import os, skyindex; assert len(os.environ['HF_TOKEN']) > 20"
        assert one.run(f"%%sky --name two\n{known}") == "ok", report.said
        for wrong in (
            f'--pip "bad @ http://me:{values["login"]}@127.0.0.1:{port}/not there.whl"',
            f'--pip "bad @ http://me:{values["login"]}/x@127.0.0.1:{port}/bad.whl"',
            f'--pip "bad @ http://me:{values["login"]}@127.0.0.1:{port}/bad-1.0-py3-none-any.whl"',
            f'--pip "bad @ http://127.0.0.1:{port}/bad-1.0-py3-none-any.whl?token={values["token"]}"',
            f'--pip "bad @ git+http://me:{values["git"]}@127.0.0.1:{port}/bad.git"',
            f"--env {values['variable']}",
            f"--env A=1 --env A={values['variable']}",
        ):
            assert one.run(f"%sky up --name wrong {wrong}") == "error", wrong
        one.run("%sky status")
        one.run("%sky runs")
        report.during = one.look()
        assert one.run("%sky down --all") == "ok"
        report.after = one.look()
    return report


@pytest.fixture(scope="module")
def far() -> Report:
    """A pool on a host that fetches its packages itself."""
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    skip_unless_hosts_run(minor)
    target = wheels.TargetPlatform(minor, "x86_64-manylinux_2_36")
    made = wheels.gather(
        wheels.resolve([*local_environment.pinned(), *remote_environment._NEEDS], target, frozen()),
        target,
        own_cache() / "wheels",
    )
    report = Report()
    with hosts(1, python=True, open_laptop=True) as world, tempfile.TemporaryDirectory() as config:
        there = Path(f"/proc/{world[0].pid}/root")
        places = [there / name for name in ("home", "root", "tmp", "var/tmp", "dev/shm", "run")]
        ssh = {"SKY_SSH_CONFIG": str(world.ssh_config(Path(config, "config"))), "SSH_AUTH_SOCK": ""}
        with scene(report, "0.0.0.0", places, ssh) as one:
            for wheel in made:
                for folder in ("served", "usual"):
                    (one.folder / "own" / folder / wheel.path.name).symlink_to(wheel.path)
            one.host, values = world.address, one.values
            index = f"http://me:{values['index']}@{one.host}:{one.server.port}/simple"
            asked = [text.strip() for text in one.requirements.split(",")]
            assert one.run("%load_ext sky_jupyter") == "ok"
            started = one.run(
                "import os, sky_jupyter as sky\n"
                f"os.environ['HF_TOKEN'] = {values['HF_TOKEN']!r}\n"
                f"image = sky.Image(pip={asked!r}, pip_indexes=[sky.PipIndex({index!r})],\n"
                f"    env={{'SKY_PLANTED': {values['variable']!r}}})\n"
                "far = sky.Compute(name='far', provider=sky.SSH(['host0']), image=image,\n"
                "    plugins=[sky.plugins.huggingface()]).start()"
            )
            assert started == "ok", report.said
            cell = "import skylogin, skytoken, os; assert len(os.environ['HF_TOKEN']) > 20"
            assert one.run(f'%%sky --name far --env "SKY_PLANTED={values["variable"]}"\n{cell}') == "ok", report.said
            one.run("%sky status")
            report.during = one.look()
            assert one.run("%sky down") == "ok"
            report.after = one.look()
    return report


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Report:
    """What was seen in a place, which is another fixture's name."""
    report: Report = request.getfixturevalue(request.param)
    return report


PLACES = ["here", pytest.param("far", marks=[pytest.mark.root, pytest.mark.slow])]


@pytest.mark.parametrize("planted", PLANTED, ids=NAMES)
@pytest.mark.parametrize("seen", PLACES, indirect=True)
class TestSecrets:
    """Of one table of secrets, each in each place."""

    def test_no_command_line_has_it(self, seen: Report, planted: Planted) -> None:
        assert seen.turns > 100
        assert seen.looks > 5
        assert not seen.argv(planted.name)

    def test_no_other_process_has_it_in_its_environment(self, seen: Report, planted: Planted) -> None:
        assert not seen.environ(planted)

    def test_no_message_has_it(self, seen: Report, planted: Planted) -> None:
        assert seen.values[planted.name] not in seen.said

    def test_no_file_has_it_but_its_users_own(self, seen: Report, planted: Planted) -> None:
        assert not seen.files(planted, seen.open, frozenset())
        assert not seen.files(planted, seen.during, planted.files)

    def test_no_file_has_it_afterwards(self, seen: Report, planted: Planted) -> None:
        assert not seen.files(planted, seen.after, planted.files - RECORD)
