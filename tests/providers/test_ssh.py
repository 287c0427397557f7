"""The SSH provider: hosts that are there already, checked before anything is asked of them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import HostKeyError, ProvisionError, SpecError
from sky_jupyter.providers.base import ConnectionSession, Order
from sky_jupyter.spec.pool_spec import PoolSpec


def test_hosts_are_the_nodes_in_their_order() -> None:
    provider = sky.SSH(hosts=["gpu1", "me@gpu2:2222", "[::1]:22"])
    assert (provider.kind, provider.default_nodes()) == ("ssh", 3)
    spec = PoolSpec(provider=provider, nodes=2)
    assert provider.create(spec, 2, Order("abc")) == ["gpu1", "me@gpu2:2222"]
    assert [record.state for record in provider.describe(["gpu1", "other"])] == ["running", "unknown"]
    assert list(provider.list("abc")) == []
    assert provider.offers(spec)[0].hourly == 0.0
    provider.destroy(["gpu1"])


def test_jump_hosts_are_a_text_or_a_list() -> None:
    provider = sky.SSH("a", jump=["b", "me@c:2222"])  # type: ignore[arg-type]
    same = sky.SSH("a", jump="b, me@c:2222")
    assert (provider, hash(provider), provider.target("a")) == (same, hash(same), same.target("a"))
    last = provider.target("a").jump
    assert last is not None
    assert last.jump is not None
    assert (last.jump.host, last.user, last.host, last.port) == ("b", "me", "c", 2222)


def test_fewer_hosts_than_nodes_names_both() -> None:
    provider = sky.SSH(hosts="gpu1,gpu2")
    with pytest.raises(ProvisionError, match=r"3 nodes need as many hosts, and there are 2 \(gpu1, gpu2\)"):
        provider.create(PoolSpec(provider=provider, nodes=3), 3, Order("abc"))


def test_providers_compare_by_what_they_were_given() -> None:
    assert sky.SSH(["a"], user="u") == sky.SSH("a", user="u")
    assert sky.SSH(["a"]) != sky.SSH(["b"])
    assert hash(sky.SSH(["a"], accept_host_keys={"a": "SHA256:" + "A" * 43})) == hash(sky.SSH(["a"]))
    # Whether a key is accepted says nothing about what the pool is.
    assert sky.SSH(["a"], accept_host_keys=True) == sky.SSH(["a"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hosts": []}, "ssh needs hosts"),
        ({"hosts": ""}, "names that are not empty"),
        ({"hosts": None}, "must be a string or a list of strings, not None"),
        ({"hosts": ["a", 3]}, "not 3"),
        ({"hosts": ["a", "b", "a"]}, "host 'a' is named more than once"),
        ({"hosts": ["-oProxyCommand=reboot"]}, "is not HOST"),
        ({"hosts": ["a;reboot"]}, "is not HOST"),
        ({"hosts": "a", "user": "x y"}, "user 'x y' is not"),
        ({"hosts": "a", "user": "-l"}, "user '-l' is not"),
        ({"hosts": "a", "port": 0}, "port must be a whole number from 1 to 65535, not 0"),
        ({"hosts": "a", "port": "22"}, "port must be a whole number"),
        ({"hosts": "a", "port": True}, "port must be a whole number"),
        ({"hosts": "a", "key": "/no/such/key"}, "key '/no/such/key' is not a file here"),
        ({"hosts": "a", "jump": "b c"}, "is not HOST"),
        ({"hosts": "a", "accept_host_keys": "yes"}, "must be True, False or a mapping"),
        ({"hosts": "a", "accept_host_keys": {"b": "SHA256:" + "A" * 43}}, "'b', which is not one of the hosts a"),
        ({"hosts": "a", "accept_host_keys": {"a": "aa:bb"}}, "is not a host key's fingerprint"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        sky.SSH(**given)
    assert told in str(caught.value)


def test_another_host_than_those_given_is_not_connected_to() -> None:
    with pytest.raises(SpecError, match="'b' is not one of the hosts a"):
        sky.SSH("a").target("b")


def test_it_costs_no_paramiko_until_it_connects() -> None:
    code = (
        "import sys, sky_jupyter as sky; sky.SSH(hosts=['a', 'b']).target('a');"
        "print(*[name for name in ('paramiko', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def test_without_paramiko_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['paramiko'] = None\n"
        "import sky_jupyter as sky\n"
        "from sky_jupyter.providers.base import ConnectionSession\n"
        "try: sky.SSH('a').connect(['a'], ConnectionSession())\n"
        "except sky.SpecError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'sky-jupyter[ssh]'" in done.stdout


def test_it_connects_as_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ..machines.sshd import MISSING, serve

    if MISSING or importlib.util.find_spec("paramiko") is None:
        pytest.skip(MISSING or "needs paramiko (the `ssh` extra)")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config, known, session = tmp_path / "config", tmp_path / "known_hosts", ConnectionSession()
    monkeypatch.setenv("SKY_SSH_CONFIG", str(config))
    with serve(tmp_path / "sshd") as server:
        config.write_text(
            f"Host gpu1\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.key}\n"
            f"  UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n"
        )
        with pytest.raises(HostKeyError) as caught:
            sky.SSH("gpu1").connect(["gpu1"], session)
        accepted = sky.SSH("gpu1", accept_host_keys={"gpu1": caught.value.fingerprint})
        with contextlib.closing(accepted.connect(["gpu1"], session)[0]) as machine:
            assert machine.run("echo $((6 * 7))").out == b"42\n"
        with contextlib.closing(sky.SSH("gpu1").connect(["gpu1"], session)[0]) as machine:
            command = machine.exec(["true"], env={}, cwd="/", log=tmp_path / "log")
            assert command.wait(60) == 0
            assert os.path.exists(tmp_path / "log")
