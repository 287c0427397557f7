"""An environment that a host keeps, and that somebody has damaged: mended by itself, or it is said how."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.magics.notebook import Notebook, notebook

UP = "%sky up --provider ssh --hosts host0 --offline"
PACKAGES = "/home/ada/.cache/sky_jupyter/environments/*/lib/python3*/site-packages"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(1, python=True, warm=True) as made:
        yield made


@pytest.fixture
def page(world: World, tmp_path: Path) -> Iterator[Notebook]:
    config = str(world.ssh_config(tmp_path / "config"))
    with notebook(tmp_path, SKY_SSH_CONFIG=config, SSH_AUTH_SOCK="") as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        yield opened


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "mended"),
    [
        (f"rm -rf {PACKAGES}/zmq*", True),
        pytest.param(f"rm -rf {PACKAGES}/distributed", True, marks=pytest.mark.long),
        # Inside of a package: that takes a look at every file, each time.
        (f"rm {PACKAGES}/distributed/scheduler.py {PACKAGES}/distributed/__pycache__/scheduler.*", False),
    ],
)
def test_a_damaged_environment_is_made_anew_or_it_is_said_how(
    world: World, page: Notebook, damage: str, *, mended: bool
) -> None:
    world[0].run(damage)
    cell = page.run(UP, timeout=240)
    if not mended:
        assert cell.status == "error"
        assert "`%sky clean --host host0` removes the environments there" in cell.error, cell.error
        assert page.run("%sky clean --host host0", timeout=120).status == "ok"
        cell = page.run(UP, timeout=240)
    assert cell.status == "ok", cell.outputs
    assert page.run("%%sky\nimport zmq, distributed").status == "ok"
    assert page.run("%sky down").status == "ok"
