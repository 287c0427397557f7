"""``%sky clean``: what pools keep for later ones goes, here and on hosts; a pool that is there is named."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from sky_jupyter.magics.option_completion import candidates
from sky_jupyter.magics.parsing import HelpRequested, parse
from sky_jupyter.providers import SSH
from tests.bootstrap.wheels import make_wheel
from tests.hosts.traces import wait_until_clean
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.magics.notebook import notebook


def test_hosts_are_given_as_for_a_pool() -> None:
    given = parse("clean --host gpu1,me@gpu2:2222 --user ada --accept-host-keys", cell=False)
    assert given.pool["provider"] == SSH(["gpu1", "me@gpu2:2222"], user="ada")
    assert given.pool["provider"].accept_host_keys is True
    assert parse("clean", cell=False).pool == {}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("clean --user ada --accept-host-keys", "--user, --accept-host-keys are for --host"),
        ("clean --hosts gpu1", "unknown option --hosts; did you mean '--host'?"),
        ("clean --host a,a", "host 'a' is named more than once"),
        ("clean gpu1", "'gpu1' is not an option"),
        ("clean --nodes 2", "unknown option --nodes"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(line: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line, cell=False)
    assert told in str(caught.value)


def test_it_has_help_and_completes() -> None:
    with pytest.raises(HelpRequested) as caught:
        parse("clean --help", cell=False)
    assert "--host A,U@B:P" in str(caught.value)
    assert candidates("%sky cl") == ["clean"]
    assert candidates("%sky clean --h") == ["--help", "--host"]


@pytest.mark.slow
def test_the_environments_of_this_machine_go_when_no_pool_uses_them(tmp_path: Path) -> None:
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    make_wheel(wheels, "skyextra")
    links = os.pathsep.join(filter(None, [str(wheels), os.environ.get("UV_FIND_LINKS", "")])).replace(os.pathsep, ",")
    with notebook(tmp_path, XDG_CACHE_HOME=str(cache), UV_FIND_LINKS=links) as book:
        assert book.run("%load_ext sky_jupyter").status == "ok"
        cell = book.run("%%sky --pip skyextra\nimport skyextra\nskyextra.VERSION", timeout=120)
        assert cell.status == "ok", cell.outputs
        cell = book.run("%sky clean")
        assert (cell.status, cell.error_name) == ("error", "PoolError")
        assert "this machine: pool 'default' is there; end with `%sky down --name default`" in cell.error
        assert book.run("%%sky\nimport skyextra\nskyextra.VERSION").status == "ok"
        assert book.run("%sky down").status == "ok"
        assert list((cache / "sky_jupyter" / "environments").iterdir())
        assert book.run("%sky clean").stream().startswith("this machine: ")
        assert not (cache / "sky_jupyter").exists()
        assert book.run("%sky clean").stream() == "this machine: nothing to remove\n"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)")
def test_hosts_are_cleaned_all_or_none(tmp_path: Path) -> None:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True) as world:
        bare = [host.files() for host in world]
        config = world.ssh_config(tmp_path / "config")
        with notebook(tmp_path, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="") as book:
            assert book.run("%load_ext sky_jupyter").status == "ok"
            assert book.run("%sky clean --host host0,host1").stream() == "".join(
                f"{name}: nothing to remove\n" for name in ("host0", "host1")
            )
            line = "%sky up --provider ssh --offline --name lab --hosts"
            assert book.run(f"{line} host0,host1", timeout=240).status == "ok"
            assert book.run("%sky down").status == "ok"
            assert book.run(f"{line} host1", timeout=240).status == "ok"
            cell = book.run("%sky clean --host host0,host1")
            assert (cell.status, cell.error_name) == ("error", "PoolError")
            assert "host1: pool 'lab' is there; end with `%sky down --name lab`" in cell.error
            assert all(host.run("ls ~/.cache/sky_jupyter/environments", user="ada") for host in world)
            assert book.run("%%sky --name lab\nimport distributed, fractions\n1").status == "ok"
            assert book.run("%sky down").status == "ok"
            told = book.run("%sky clean --host host0,host1", timeout=120).stream().splitlines()
            assert [row.split()[0] for row in told] == ["host0:", "host1:"]
            assert all(row.endswith(" MB freed") and int(row.split()[1]) > 50 for row in told)
            wait_until_clean(world)
            for host, before in zip(world, bare, strict=True):
                more = {path for path in host.files() - before if not path.startswith(("/run/", "/var/log/", "/tmp/"))}
                assert more <= {"/home/ada/.cache"}
            # A pool that comes after it builds anew.
            assert book.run(f"{line} host0", timeout=240).status == "ok"
            assert book.run("%sky down").status == "ok"
