"""Packages that the notebook has and the nodes lack: told before a cell runs, installed where that is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from sky_jupyter.bootstrap import package_sync
from sky_jupyter.errors import BootstrapError, NodeLost
from sky_jupyter.node.protocol import rpc
from sky_jupyter.node.protocol.rpc import AgentCall
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.transfer.packages import PoolPackages
from sky_jupyter.spec.pool_spec import Image
from tests.bootstrap.wheels import make_wheel
from tests.pool.pools import local_pool, run

LOOK = "import importlib.metadata as m, sky_lacking, sky_needed, sky_there\n"
LOOK += "[sky_lacking.VERSION, sky_needed.VERSION, sky_there.VERSION, m.version('sky-lacking')]"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two nodes in an environment of their own, with an older package; this process has a newer one, and one more."""
    folder = tmp_path_factory.mktemp("packages")
    own = folder / "site-packages"
    make_wheel(folder / "index", "sky_there", "1.0")
    with pytest.MonkeyPatch.context() as patch:
        for wheel in (
            make_wheel(folder / "index", "sky_there", "2.0"),
            make_wheel(
                folder / "index", "sky_lacking", "2.0+cpu", ["sky_needed>=1.5", "packaging", "absent; extra == 'x'"]
            ),
            make_wheel(folder / "index", "sky_needed", "1.6"),
        ):
            zipfile.ZipFile(wheel).extractall(own)
        make_wheel(folder / "index", "sky_needed", "1.7")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("UV_NO_INDEX", "1")
        patch.setenv("UV_FIND_LINKS", str(folder / "index"))
        patch.syspath_prepend(own)
        with local_pool(nodes=2, image=Image(pip=("sky_there==1.0",))) as made:
            yield made


def told(pool: Pool, code: str, **options: Any) -> tuple[list[Any], list[str]]:
    """The values of a cell's last line, and what the person was told before."""
    events: list[Event] = []
    values = run(pool, code, {}, listener=events.append, **options).values
    return values, [event.text for event in events if isinstance(event, NoticeEvent)]


def test_what_differs_is_told_and_then_put_right(pool: Pool) -> None:
    assert told(pool, "import json, numpy\n1") == ([1, 1], [])
    asked = f"def f():\n    {LOOK.splitlines()[0]}\n1"
    missing = "sky-lacking 2.0+cpu here, missing on the nodes"
    both = f"{missing}; sky-needed 1.6 here, missing on the nodes; sky-there 2.0 here, 1.0 on the nodes"
    advice = ". `%%sky --sync` installs on the nodes what the notebook has"
    assert told(pool, asked) == ([1, 1], [both + advice])
    # A version is told of once, what is missing each time.
    assert told(pool, "try:\n    import sky_lacking, sky_there\nexcept ImportError:\n    pass") == (
        [None, None],
        [missing + advice],
    )
    pool.restart()
    values, news = told(pool, LOOK, sync=True)
    # What the notebook has, and not what is newest.
    assert values == [["2.0+cpu", "1.6", "2.0", "2.0+cpu"]] * 2
    assert news == ["installed on the nodes: sky-lacking==2.0+cpu, sky-needed==1.6, sky-there==2.0"]
    assert told(pool, LOOK, sync=True) == (values, [])
    pool.restart()
    assert told(pool, LOOK) == (values, [])
    lines = pool.packages.frozen().splitlines()
    assert lines[0].startswith(f"# Python {sys.version_info[0]}.{sys.version_info[1]}.")
    assert {"sky-lacking==2.0+cpu", "sky-needed==1.6", "sky-there==2.0"} <= set(lines)
    assert not [line for line in lines if "differs" in line]


def test_what_cannot_be_installed_says_why_and_leaves_the_pool_usable(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipfile.ZipFile(make_wheel(tmp_path, "sky_nowhere", "3.0")).extractall(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    with pytest.raises(BootstrapError, match="sky-nowhere"):
        run(pool, "import sky_nowhere", {}, sync=True)
    assert run(pool, "1 + 1", {}).values == [2, 2]


@pytest.mark.slow
def test_nodes_that_come_later_have_what_was_installed(pool: Pool) -> None:
    assert told(pool, LOOK, sync=True)[0] == [["2.0+cpu", "1.6", "2.0", "2.0+cpu"]] * 2
    pool.resize(3)
    assert told(pool, LOOK) == ([["2.0+cpu", "1.6", "2.0", "2.0+cpu"]] * 3, [])
    assert "sky-needed==1.6" in pool.packages.frozen().splitlines()


@pytest.mark.slow
def test_packages_that_are_asked_for_while_the_pool_lives_are_installed_for_it_alone(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Path(os.environ["UV_FIND_LINKS"])
    # Neither is here, and what one needs is there already or is not.
    make_wheel(index, "sky_inner", "1.0")
    make_wheel(index, "sky_more", "1.0", ["sky_inner", "sky_there"])
    make_wheel(index, "sky_more", "2.0", ["sky_inner", "sky_there"])
    environment = Path(pool.packages._there()[0]["interpreter"]).parent.parent
    before = sorted(environment.rglob("*.dist-info"))
    assert sorted(pool.packages.add(["sky-more<2"])) == ["sky-inner==1.0", "sky-more==1.0"]
    assert sorted(environment.rglob("*.dist-info")) == before
    look = "import sky_more, sky_inner, sky_there\n[sky_more.VERSION, sky_inner.VERSION]"
    assert run(pool, look, {}).values == [["1.0", "1.0"]] * pool.spec.world_size
    assert pool.packages.add(["sky-more<2"]) == []
    assert "sky-more<2" in pool.spec.image.pip
    # A rank that has loaded one keeps it, and says so.
    assert pool.packages.add(["sky-more==2.0"]) == ["sky-more==2.0"]
    result = run(pool, look, {})
    assert result.values == [["1.0", "1.0"]] * pool.spec.world_size
    assert result.stderr(0) == "sky_more was loaded before sky-more==2.0 was installed, and stays: `%sky restart`\n"
    pool.restart()
    assert run(pool, look, {}).values == [["2.0", "1.0"]] * pool.spec.world_size
    # Who takes the pool over finds it, as long as its nodes have it.
    pool.packages = PoolPackages(pool)
    assert pool.packages.add(["sky-more==2.0"]) == []
    pool.restart()
    assert run(pool, look, {}).values == [["2.0", "1.0"]] * pool.spec.world_size
    with pytest.raises(BootstrapError, match="sky-nobodys"):
        pool.packages.add(["sky-nobodys"])
    assert "sky-nobodys" not in pool.spec.image.pip
    assert run(pool, "1 + 1", {}).values == [2] * pool.spec.world_size


def test_what_is_asked_for_while_nodes_are_lost_is_not_taken_for_installed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(Path(os.environ["UV_FIND_LINKS"]), "sky_late", "1.0")
    # What nodes have answered before would do.
    pool.packages = PoolPackages(pool)
    with monkeypatch.context() as patch:
        patch.setattr(pool.control, "lost", set(range(pool.spec.nodes)))
        with pytest.raises(NodeLost, match="node 0 is lost"):
            pool.packages.add(["sky-late"])
        with pytest.raises(NodeLost, match="node 0 is lost"):
            pool.packages.frozen()
    assert "sky-late" not in pool.spec.image.pip
    with monkeypatch.context() as patch:
        patch.setattr(pool.control, "lost", {0})
        assert pool.packages.add(["sky-late"]) == ["sky-late==1.0"]
    asked, ask = [], pool.control.ask

    async def noted(call: AgentCall, nodes: Any = None, **arguments: Any) -> dict[int, Any]:
        asked.append((call, list(nodes)))
        return await ask(call, nodes, **arguments)

    monkeypatch.setattr(pool.control, "ask", noted)
    # The node that is back is asked whether it has it.
    assert pool.packages.add(["sky-late"]) == []
    assert asked == [(rpc.LIST_PACKAGES, list(range(pool.spec.nodes)))]
    assert run(pool, "import sky_late\nsky_late.VERSION", {}).values == ["1.0"] * pool.spec.world_size


def test_the_notebooks_own_environment_does_not_differ_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(modules: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(package_sync, "behind", never)
    with local_pool(nodes=1) as pool:
        assert told(pool, "import numpy\n1") == ([1], [])
        frozen = pool.packages.frozen()
    # All of it is there already: nothing is fetched.
    command = [uv.find_uv_bin(), "pip", "install", "--dry-run", "--offline", "--no-deps", "--python", sys.executable]
    done = subprocess.run([*command, "-r", "-"], input=frozen, capture_output=True, text=True)
    assert "Would make no changes" in done.stderr, done.stderr


def test_the_distribution_behind_a_shared_first_name_is_the_one_that_has_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        info, part = (
            tmp_path / "site-packages" / inner for inner in (f"sky_{name}-1.0.dist-info", f"sky_shared/{name}")
        )
        info.mkdir(parents=True)
        part.mkdir(parents=True)
        (part / "__init__.py").touch()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sky-{name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"sky_shared/{name}/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    assert package_sync.behind({"sky_shared.one.part"}) == {"sky-one": "1.0"}
    assert package_sync.behind({"sky_shared.one", "sky_shared.other", "absent", "json"}) == {
        "sky-one": "1.0",
        "sky-other": "1.0",
    }
