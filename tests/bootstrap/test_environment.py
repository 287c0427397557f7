"""Environments are really built here, by uv, from wheels made on the spot and with no network."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import packaging
import pytest
import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sky_jupyter.bootstrap import local_environment
from sky_jupyter.bootstrap.local_environment import ensure
from sky_jupyter.bootstrap.wheels import TargetPlatform, resolve
from sky_jupyter.errors import BootstrapError, SpecError
from sky_jupyter.spec.pool_spec import Image
from sky_jupyter.util.redaction import without_secrets
from tests.bootstrap.wheels import make_sdist, make_wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where uv finds packages."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "environments"


def said_by(python: Path, code: str) -> Any:
    """What code prints in another interpreter, read as JSON."""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout)


def test_the_notebooks_own_environment_serves_when_it_has_everything(cache: Path) -> None:
    own = ".".join(platform.python_version_tuple()[:2])
    found = ensure(Image(python=own, pip=("packaging", "psutil>=1")), cache=cache)
    assert (found.python, found.reused, found.path) == (Path(sys.executable), True, None)
    assert not cache.exists()


def test_a_missing_package_is_added_before_the_notebooks_own(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added", requires=["packaging", "sky_below"])
    make_wheel(wheels, "sky_below", "3.0")
    lines: list[str] = []
    found = ensure(Image(pip=("packaging", "sky_added")), cache=cache, on_line=lines.append)
    assert found.path is not None
    assert found.path.parent == cache
    assert not found.reused
    assert any("sky-added==1.0" in line for line in lines)
    seen = said_by(
        found.python,
        "import json, packaging, sky_added, sky_below; "
        "print(json.dumps([packaging.__file__, sky_added.VERSION, sky_below.__file__]))",
    )
    assert seen[:2] == [packaging.__file__, "1.0"]
    assert seen[2].startswith(str(found.path))
    assert list(found.path.rglob("sky_added/__pycache__/*.pyc")), "bytecode is compiled once, when it is made"


def test_the_same_image_finds_its_environment_again(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")
    first = ensure(Image(pip=("sky_added",)), cache=cache)
    second = ensure(Image(pip=("sky_added",), env={"COLOUR": "red"}), cache=cache)
    assert (first.reused, second.reused) == (False, True)
    assert (second.path, second.python) == (first.path, first.python)
    assert [path.name for path in cache.iterdir()] == [first.path and first.path.name]


def test_another_version_than_the_notebooks_wins_in_the_overlay_only(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "iniconfig", "99.0")
    found = ensure(Image(pip=("iniconfig>=99",)), cache=cache)
    assert said_by(found.python, "import iniconfig, json; print(json.dumps(iniconfig.VERSION))") == "99.0"
    assert metadata.version("iniconfig") != "99.0"


def test_a_dangling_environment_is_made_anew(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")
    first = ensure(Image(pip=("sky_added",)), cache=cache)
    first.python.unlink()
    again = ensure(Image(pip=("sky_added",)), cache=cache)
    assert (again.reused, again.python) == (False, first.python)
    assert said_by(again.python, "import json, sky_added; print(json.dumps(sky_added.VERSION))") == "1.0"


def test_a_package_that_does_not_exist_is_named_before_uvs_words_and_leaves_nothing(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    with pytest.raises(BootstrapError) as caught:
        ensure(Image(pip=("sky-no-such-package",)), cache=cache)
    assert caught.value.phase == "environment"
    assert caught.value.command.startswith("uv pip install")
    assert any("sky-no-such-package" in line for line in caught.value.lines)
    assert "failed: there is no package sky-no-such-package (is it spelled right?); uv ended" in str(caught.value)
    assert "No solution found" in str(caught.value)
    assert list(cache.iterdir()) == []


def test_an_index_that_cannot_be_reached_is_told_before_uvs_lines(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    monkeypatch.delenv("UV_NO_INDEX", raising=False)
    monkeypatch.setenv("UV_INDEX_URL", "http://nowhere.invalid/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(BootstrapError, match=r"packages are needed, and the internet .* cannot be reached from here"):
        ensure(Image(pip=("sky-no-such-package",)), cache=cache)


def test_a_package_that_would_change_the_notebooks_own_is_refused(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_old", requires=["packaging<1"])
    with pytest.raises(BootstrapError, match="packaging"):
        ensure(Image(pip=("sky_old",)), cache=cache)
    assert list(cache.iterdir()) == []


def test_secrets_in_urls_are_not_shown(wheels: Path, cache: Path) -> None:
    lines: list[str] = []
    with pytest.raises(BootstrapError) as caught:
        ensure(
            Image(pip=("sky-x @ https://me:t0ken@127.0.0.1:9/sky_x-1.0-py3-none-any.whl",)),
            cache=cache,
            on_line=lines.append,
        )
    assert "127.0.0.1" in str(caught.value)
    assert "t0ken" not in "\n".join([str(caught.value), *lines])
    text = "see 'https://u:p@h/a' and git+ssh://git@h/b@v1, mail a@b"
    assert without_secrets(text) == "see 'https://h/a' and git+ssh://h/b@v1, mail a@b"
    assert without_secrets("https://u:p/w@h/a https://h:80/a@v1") == "https://h/a https://h:80/a@v1"
    text = "https://h/a?x=1&access_token=t0ken&y=2#sha256=4 https://h/?X-Amz-Signature=t0ken"
    assert without_secrets(text) == "https://h/a?x=1&access_token=…&y=2#sha256=4 https://h/?X-Amz-Signature=…"


@pytest.mark.parametrize("end", ["", " ; python_version > '3'"])
@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_a_package_given_by_its_url_is_installed(wheels: Path, cache: Path, kind: str, end: str) -> None:
    make_wheel(wheels, "sky_below", "3.0")
    path = make_wheel(cache.parent / "given", "sky_given", "2.0", requires=["sky_below"])
    if kind == "source":
        path = make_sdist(cache.parent / "given", "sky_given", "2.0")
    found = ensure(Image(pip=(f"sky-given @ {path.as_uri()}{end}",)), cache=cache)
    assert said_by(found.python, "import sky_given, json; print(json.dumps(sky_given.VERSION))") == "2.0"
    assert ensure(Image(pip=(f"sky-given @ {path.as_uri()}{end}",)), cache=cache).reused


@pytest.mark.parametrize(
    "line",
    [
        " + sky-given==2.0 (from file:///x/sky_given-2.0-py3-none-any.whl)",
        " + sky-given @ file:///x/sky_given-2.0-py3-none-any.whl",
        "one that uv never said",
    ],
)
def test_what_is_wanted_by_its_url_is_added_however_uv_prints_it(line: str) -> None:
    wanted = ["sky_given @ file:///mine/sky_given-2.0-py3-none-any.whl"]
    plan = [line, " + sky-more==3.0", " ~ sky-dep @ file:///dep.whl"]
    expected = ["sky_given @ file:///mine/sky_given-2.0-py3-none-any.whl", "sky-more==3.0", "sky-dep @ file:///dep.whl"]
    assert local_environment._additions(plan, wanted) == expected


def test_an_environment_that_lacks_what_was_wanted_is_not_kept(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels, "sky_added")
    # As where uv prints its plan in a form that nobody knows.
    monkeypatch.setattr(local_environment, "PLANNED", re.compile("never"))
    with pytest.raises(BootstrapError, match="sky_added was asked for, and the environment lacks it, although uv"):
        ensure(Image(pip=("sky_added",)), cache=cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("pkg @ https://me:t0ken@h/x y.whl", "pkg @ https://…"),
        ("pkg @@ https://me:t0ken@h/x.whl", "pkg @@ https://…"),
        ("pkg @ https://me:t0ken/x@h/y.whl", "'pkg' has no port"),
        ("https://h/x.whl?token=t0ken", "https://…"),
    ],
)
def test_a_requirement_that_cannot_be_read_is_named_without_its_url(cache: Path, given: str, shown: str) -> None:
    with pytest.raises(SpecError) as caught:
        ensure(Image(pip=(given,)), cache=cache)
    assert shown in str(caught.value)
    assert "t0ken" not in str(caught.value)


def test_an_interrupt_ends_uv_and_leaves_nothing(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(Image(pip=("sky_added",)), cache=cache, on_line=interrupt)
    assert list(cache.iterdir()) == []


def test_a_build_can_be_stopped_from_another_thread(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")
    stop = threading.Event()
    with pytest.raises(BootstrapError, match="stopped"):
        ensure(Image(pip=("sky_added",)), cache=cache, on_line=lambda line: stop.set(), stop=stop)
    assert list(cache.iterdir()) == []


def test_what_a_killed_builder_left_is_removed(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")
    path = ensure(Image(pip=("sky_added",)), cache=cache).path
    assert path is not None
    path.rename(path.with_name(f"{path.name}.tmp-1"))
    assert ensure(Image(pip=("sky_added",)), cache=cache).reused is False
    assert list(cache.iterdir()) == [path]


def test_builders_at_the_same_time_make_one_environment(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(ensure, Image(pip=("sky_added",)), cache=cache) for _ in range(2)]
        built = [future.result(60) for future in futures]
    assert sorted(item.reused for item in built) == [False, True]
    assert list(cache.iterdir()) == [built[0].path] == [built[1].path]


def test_builders_in_two_threads_make_one_environment(wheels: Path, cache: Path) -> None:
    make_wheel(wheels, "sky_added")
    built: list[local_environment.Environment] = []

    def build() -> None:
        built.append(ensure(Image(pip=("sky_added",)), cache=cache))

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.reused for item in built) == [False, True, True]
    assert list(cache.iterdir()) == [built[0].path]


def other_python() -> str | None:
    """A version of Python that is on this machine and is not this one."""
    command = [uv.find_uv_bin(), "python", "list", "--offline", "--only-installed", "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = json.loads(done.stdout) if done.returncode == 0 else []
    versions = {f"3.{row['version_parts']['minor']}" for row in rows if row["implementation"] == "cpython"}
    supported = {f"3.{minor}" for minor in range(10, 15)} - {f"3.{sys.version_info.minor}"}
    return max(versions & supported, default=None)


def test_another_python_gets_a_whole_environment(wheels: Path, cache: Path) -> None:
    version = other_python()
    if version is None:
        pytest.skip("there is no second Python on this machine")
    for name in ("cloudpickle", "dask", "distributed"):
        make_wheel(wheels, name, metadata.version(name))
    for name in ("cryptography", "exceptiongroup", "ipykernel", "jupyter_client", "orjson", "psutil"):
        make_wheel(wheels, name, "99.0")
    make_wheel(wheels, "sky_added")
    found = ensure(Image(python=version, pip=("sky_added",)), cache=cache)
    seen = said_by(
        found.python,
        "import json, sys, dask, distributed, ipykernel, sky_added; "
        "print(json.dumps(['%d.%d' % sys.version_info[:2], dask.VERSION, distributed.VERSION, ipykernel.VERSION]))",
    )
    assert seen == [version, metadata.version("dask"), metadata.version("distributed"), "99.0"]
    assert ensure(Image(python=version, pip=("sky_added",)), cache=cache).reused


def test_a_python_that_cannot_be_had_fails_in_uvs_words(
    wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_PYTHON_PREFERENCE", "only-managed")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    other = "3.10" if sys.version_info >= (3, 11) else "3.13"
    with pytest.raises(BootstrapError, match=f"Python {other}") as caught:
        ensure(Image(python=other), cache=cache)
    assert caught.value.command.startswith("uv venv")
    assert list(cache.iterdir()) == []


def test_what_chooses_builds_reaches_uv(tmp_path: Path) -> None:
    image = Image(pip=("no-such-distribution",), env={"UV_TORCH_BACKEND": "cu999"})
    with pytest.raises(BootstrapError, match="invalid value 'cu999'"):
        ensure(image, cache=tmp_path)
    with pytest.raises(BootstrapError, match="invalid value 'cu999'"):
        resolve(image.pip, TargetPlatform("3.12", "x86_64-manylinux_2_28"), image=image)


def needed(names: Iterable[str]) -> set[str]:
    """Distributions, and all that they require here."""
    found: set[str] = set()
    todo = [Requirement(name) for name in names]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            todo += map(Requirement, metadata.requires(name) or ())
            found.add(name)
    return found


def test_an_environment_without_what_nodes_need_now_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = local_environment._key(Image(), [])
    assert local_environment._key(Image(), []) == before
    monkeypatch.setattr(local_environment, "NODE_NEEDS", (*local_environment.NODE_NEEDS, "more"))
    assert local_environment._key(Image(), []) != before


def test_what_the_notebook_imports_of_sky_jupyter_can_be_imported_on_nodes() -> None:
    # A module of the user's project, which goes along, may have `@sky.function` at its top.
    own = needed(metadata.requires("sky_jupyter") or ())
    there = needed([*local_environment.NODE_NEEDS, "cloudpickle", "dask", "distributed"])
    absent = {name.replace("-", "_") for name in own - there}
    assert {"uv", "xxhash"} <= absent
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import sky_jupyter as sky
for name in sky.__all__:
    getattr(sky, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
