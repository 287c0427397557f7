"""``%%sky --provider ssh``: from a cell's line to hosts, and back to the notebook."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from sky_jupyter.magics.parsing import parse
from sky_jupyter.providers import SSH, Local
from tests.hosts.traces import wait_until_clean
from tests.hosts.world import Kind, hosts, skip_unless_hosts_run
from tests.magics.notebook import notebook
from tests.magics.test_reattach import kill
from tests.pool.remote import is_clean, nothing_here, wait_until

needs_paramiko = pytest.mark.skipif(
    importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"
)


def test_hosts_make_the_provider_and_are_the_nodes() -> None:
    line = "--provider ssh --hosts gpu1,me@gpu2:2222 --hosts gpu3 --user ada --port 2200 --jump door --accept-host-keys"
    spec = parse(line, cell=True).spec()
    assert spec.provider == SSH(["gpu1", "me@gpu2:2222", "gpu3"], user="ada", port=2200, jump="door")
    assert spec.provider.accept_host_keys is True
    assert not spec.provider.offline
    assert spec.nodes == 3
    assert parse("--provider ssh --hosts a,b,c --nodes 2", cell=True).spec().nodes == 2
    assert parse("--nodes 2", cell=True).spec().provider == Local()


def test_a_file_of_options_names_hosts_too(tmp_path: Path) -> None:
    file = tmp_path / "sky.toml"
    file.write_text('[lab]\nprovider = "ssh"\nhosts = ["gpu1", "gpu2"]\noffline = true\n[here]\noffline = false\n')
    spec = parse(f"--config {file}#lab", cell=True).spec()
    assert (spec.provider.hosts, spec.provider.offline, spec.nodes) == (("gpu1", "gpu2"), True, 2)
    assert parse(f"--config {file}#here", cell=True).spec().provider == Local()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--provider ssh", "--provider ssh needs --hosts, such as --hosts gpu1,me@gpu2:2222"),
        ("--provider local --hosts a", "--hosts is for --provider ssh"),
        ("--provider local --hosts a --offline", "--hosts, --offline are for --provider ssh"),
        ("--provider ssh --hosts a,a", "host 'a' is named more than once"),
        ("--provider ssh --hosts a --port x", "--port takes a whole number, not 'x'"),
        ("--provider ssh --hosts a --key ~nobody-has-this-name/k", "key '~nobody-has-this-name/k' is not a file here"),
        ("--provider ssh --hosts a --key /no/such", "key '/no/such' is not a file here"),
        ("--provider shh --hosts a", "unknown provider 'shh'; did you mean 'ssh'?"),
        ("--provider shh", "unknown provider 'shh'; did you mean 'ssh'?"),
    ],
)
def test_what_does_not_go_together_is_told_in_a_line(line: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line, cell=True)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_a_cell_runs_on_hosts(tmp_path: Path) -> None:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as world:
        config = world.ssh_config(tmp_path / "config")
        with notebook(tmp_path, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="") as book:
            assert book.run("%load_ext sky_jupyter\nfactor = 7").status == "ok"
            line = "%%sky --provider ssh --hosts host0,host1 --offline"
            cell = book.run(f"{line}\nimport socket\nprint(socket.gethostname())\n6 * factor", timeout=240)
            assert cell.status == "ok", cell.outputs
            assert book.value("_sky.values") == [42, 42]
            assert "[0] host0" in cell.run
            assert "[1] host1" in cell.run
            # The same line finds the pool there.
            assert book.run(f"{line}\nsocket.gethostname()").status == "ok"
            assert book.value("_sky.values") == ["host0", "host1"]
            assert book.run("%sky down").status == "ok"
        end = time.monotonic() + 60
        while any(host.processes("ada") for host in world):
            assert time.monotonic() < end
            time.sleep(0.1)


@pytest.mark.long  # waits for cuts; pools are taken up in tests/pool, too
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_paramiko
def test_a_new_notebook_is_told_of_the_pool_that_a_killed_one_left_and_takes_it_up(tmp_path: Path) -> None:
    with hosts(2, python=True, warm=True) as world:
        config = {"SKY_SSH_CONFIG": str(world.ssh_config(tmp_path / "config")), "SSH_AUTH_SOCK": ""}
        with notebook(tmp_path, **config) as page:
            page.run("%load_ext sky_jupyter")
            line = "%sky up --provider ssh --hosts host0,host1 --offline --name far"
            assert page.run(line, timeout=240).status == "ok"
            id = page.value("__import__('sky_jupyter.pool.open_pools', fromlist=['pools']).pools.current.id")
            page.run("%%sky\nfirst = 'here'")
            page.client.execute(
                "%%sky\nimport time\nfor i in range(150):\n    print('line', i); time.sleep(.1)\n'the end'"
            )
            time.sleep(3)
            kill(page)
        with notebook(tmp_path, **config) as page:
            told = page.run("%load_ext sky_jupyter").stream()
            assert "pool far: 2 ssh nodes, left by its notebook until its lease ends, runs " in told
            assert "(import time) since 0 min ago, as far as is known; `%sky attach far` attaches to it" in told
            cell = page.run("%sky attach far", timeout=120)
            assert cell.status == "ok", cell.outputs
            assert [f"line {i}" in cell.run for i in (0, 1, 148, 149)] == [True] * 4, cell.displays
            assert page.value("_sky.values") == ["the end", "the end"]
            assert page.run("%%sky\nfirst").status == "ok"
            assert page.value("_sky.values") == ["here", "here"]
            world.cut()
            # Of both: one that has not noticed yet does so when all is well again.
            wait_until(lambda: page.run("%sky status").run.count(": unreachable, trying again") == 2)
            world.mend()
            wait_until(lambda: "unreachable" not in page.run("%sky status").run)
            assert page.run("%sky down").stream().endswith("pool far: ended\n")
        for host in world:
            wait_until(lambda host=host: is_clean(host))
        assert nothing_here(id)


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_a_pool_that_ends_by_itself_says_so_and_no_cell_runs_here_in_its_place(tmp_path: Path) -> None:
    line = "%sky up --provider ssh --hosts host0,host1 --ttl 30s --offline"
    with hosts(2, python=True, warm=True) as world:
        config = world.ssh_config(tmp_path / "config")
        with notebook(tmp_path, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="") as book:
            book.run("%load_ext sky_jupyter")
            assert book.run(line, timeout=240).status == "ok"
            # Nothing runs when the time is over: what is told comes by itself.
            while (message := book.client.get_iopub_msg(timeout=240))["msg_type"] != "stream":
                pass
            assert message["content"]["text"] == "pool 'default' has ended: its ttl of 30 s is over\n"
            cell = book.run("%%sky\nimport os\nos.uname().nodename")
            assert cell.status == "error"
            assert "pool 'default' on ssh (host0, host1) has ended: its ttl of 30 s is over" in cell.error
            assert f"`{line}` recreates it" in cell.error
            assert "its ttl of 30 s is over" in book.run("%sky").stream()
            # Made anew by the line, and lost with its hosts' processes.
            assert book.run(line.replace("30s", "1h"), timeout=240).status == "ok"
            for host in world:
                host.run("pkill -KILL -u ada -f sky_jupyter.node.host")
            while (message := book.client.get_iopub_msg(timeout=240))["msg_type"] != "stream":
                pass
            assert "pool 'default' can run nothing any more: " in message["content"]["text"]
            assert "`%sky restart` recreates it" in message["content"]["text"]
            assert "is broken" in book.run("%%sky\n1").error
            assert book.run("%sky down").stream().endswith("pool default: ended\n")


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_a_kept_pool_has_the_lease_that_is_promised(tmp_path: Path) -> None:
    with hosts(2, python=True, warm=True) as world:
        config = world.ssh_config(tmp_path / "config")
        with notebook(tmp_path, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="") as book:
            book.run("%load_ext sky_jupyter")
            up = "%sky up --provider ssh --hosts host0,host1 --offline --name"
            for line, lease in (("kept --keep", 12 * 3600.0), ("left", 1800.0)):
                assert book.run(f"{up} {line}", timeout=240).status == "ok"
                for host in world:
                    assert json.loads(host.run("cat /tmp/sky-*/host.json"))["idle_timeout"] == lease
                assert book.run("%sky down").status == "ok"


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_a_refusal_is_short_names_the_host_and_leaves_nothing(tmp_path: Path) -> None:
    with hosts(Kind(), Kind(login="password")) as world:
        config = world.ssh_config(tmp_path / "config")
        nowhere = {"UV_PYTHON_INSTALL_DIR": str(tmp_path), "UV_PYTHON_INSTALL_MIRROR": f"file://{tmp_path}/nothing"}
        with notebook(tmp_path, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="", **nowhere) as book:
            assert book.run("%load_ext sky_jupyter").status == "ok"
            for line, name, told in [
                ("host0,nohost", "Unreachable", "nohost: no host of the name 'nohost' is known here"),
                ("host1", "LoginRefused", "host1: lets users in by password only"),
                ("host0", "BootstrapError", "on node 0 (host0): no Python 3."),
                (f"ada@{world[0].address}", "HostKeyError", f"{world[0].address}: the authenticity of the host is not"),
            ]:
                cell = book.run(f"%%sky --provider ssh --offline --hosts {line}\n1", timeout=120)
                assert (cell.status, cell.error_name) == ("error", name), cell.outputs
                assert told in cell.error
                # What a person is told, and not the way there through our code.
                assert "sky_jupyter/" not in cell.error
                assert book.run("%sky status").stream().startswith("no pool is running")
        wait_until_clean(world)
