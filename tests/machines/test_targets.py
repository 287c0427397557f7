"""Which host is meant: what users write, and what the SSH configuration adds, as OpenSSH reads it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sky_jupyter.errors import SpecError
from sky_jupyter.machines.ssh import ssh_config
from sky_jupyter.machines.ssh.resolve_target import HostAddress, resolve
from sky_jupyter.machines.ssh.target import Target


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a", HostAddress("a")),
        ("user@b:2222", HostAddress("b", "user", 2222)),
        ("[2001:db8::1]:22", HostAddress("2001:db8::1", None, 22)),
        ("me@[::1]", HostAddress("::1", "me")),
        ("::1", HostAddress("::1")),
        ("fe80::1%eth0", HostAddress("fe80::1%eth0")),
        ("ssh://u@host:2200/", HostAddress("host", "u", 2200)),
        ("first.last@corp@gpu", HostAddress("gpu", "first.last@corp")),
        (" gpu_1 ", HostAddress("gpu_1")),
    ],
)
def test_a_host_is_read_as_ssh_reads_it(text: str, place: HostAddress) -> None:
    assert HostAddress.parse(text) == place
    assert HostAddress.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        *("", "@", "u@", "-oProxyCommand=x", "-x@h", "a b", "a\nb", "a;reboot", "$(id)", "u`id`@h", "h:0", "h:65536"),
        *("h:ssh", "h:", "[::1", "[::1]x", "[]:22", "a\0", "u|v@h", "h/../x", "ho#st", "h" * 300, "x:1:2"),
    ],
)
def test_what_is_no_host_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(SpecError, match=r"HOST|from 1 to 65535|no user's name"):
        HostAddress.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_a_host_or_a_clear_refusal(text: str) -> None:
    try:
        place = HostAddress.parse(text)
    except SpecError:
        return
    assert not place.host.startswith("-")
    assert not set(f"{place.host}{place.user or ''}") & set(" \n\0;|&$`<>()'\"\\")


CONFIG = """
# what comes first counts
Host jump
    HostName bastion.example.org
    User jumper
    Port=2022
Host gpu? !gpu9
    User "trainer"
    ProxyJump jump
    IdentityFile ~/.ssh/%h_%r
    IdentityFile "%d/a key"
    IdentitiesOnly yes
Host gpu*
    HostName %h.cluster.example.org
    User second
    HostKeyAlias cluster-%h
    UserKnownHostsFile ~/known_a /b/known
    StrictHostKeyChecking accept-new
    ConnectTimeout 7
Match host *.cluster.example.org user trainer
    CertificateFile ~/.ssh/cert-cert.pub
Match originalhost plain exec "test %h = plain"
    Port 2200
Match originalhost plain !exec "true"
    Port 1
Host *
    Include extra/*.conf
Host last
    ProxyJump none
Match final host last
    HashKnownHosts yes
Host * !first !second !jump !x !z
    ProxyJump a@first:22,second
Host *
    User everyone
"""
EXTRA = """
Host included
    HostName 10.0.0.9
Host *
    AddressFamily inet
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    home = tmp_path / "home"
    (home / ".ssh" / "extra").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.delenv("SKY_SSH_CONFIG", raising=False)
    (home / ".ssh" / "config").write_text(CONFIG)
    (home / ".ssh" / "extra" / "one.conf").write_text(EXTRA)
    return [ssh_config.user_file()]


def test_the_configuration_says_where_and_how(files: list[Path]) -> None:
    home = str(Path.home())
    gpu = resolve("gpu1", files=files)
    assert (gpu.host, gpu.user, gpu.port, gpu.name) == ("gpu1.cluster.example.org", "trainer", 22, "gpu1")
    assert gpu.keys == (f"{home}/.ssh/gpu1.cluster.example.org_trainer", f"{home}/a key")
    assert gpu.certificates == (f"{home}/.ssh/cert-cert.pub",)
    assert gpu.known_hosts == (f"{home}/known_a", "/b/known")
    assert (gpu.strict, gpu.timeout, gpu.identities_only, gpu.family) == ("accept-new", 7.0, True, "inet")
    assert gpu.jump is not None
    assert (gpu.jump.host, gpu.jump.user, gpu.jump.port) == ("bastion.example.org", "jumper", 2022)
    assert resolve("gpu9", files=files).user == "second"
    assert resolve("included", files=files).host == "10.0.0.9"
    assert resolve("plain", files=files).port == 2200
    last = resolve("last", files=files)
    assert (last.jump, last.hash_known_hosts) == (None, True)


def test_what_is_given_counts_more_than_the_configuration(files: list[Path]) -> None:
    given = resolve("me@gpu1:99", user="you", port=5, keys=["/k"], jump="x,y@z:3", files=files)
    assert (given.user, given.port, given.keys, given.identities_only) == ("me", 99, ("/k",), True)
    assert given.jump is not None
    assert (given.jump.host, given.jump.user, given.jump.port) == ("z", "y", 3)
    assert given.jump.jump is not None
    assert given.jump.jump.host == "x"
    assert resolve("gpu1", user="you", port=5, jump="none", files=files).jump is None


@pytest.mark.parametrize("name", ["gpu1", "gpu9", "plain", "included", "last", "jump", "other", "root@gpu2"])
def test_openssh_reads_the_same(files: list[Path], name: str) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's client")
    done = subprocess.run(["ssh", "-G", "-F", str(files[0]), name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        theirs.setdefault(key, []).append(value)
    place = HostAddress.parse(name)
    found = ssh_config.lookup(place.host, place.user, files)
    ours = resolve(name, files=files)
    assert [ours.host, ours.user, str(ours.port)] == [theirs[key][0] for key in ("hostname", "user", "port")]
    assert found.get("proxyjump", "none") == theirs.get("proxyjump", ["none"])[0]
    assert found.flag("hashknownhosts") == (theirs["hashknownhosts"] == ["yes"])
    if found.all("identityfile"):
        assert found.all("identityfile") == theirs["identityfile"]


def test_a_jump_host_that_everything_goes_through_is_reached_directly(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host *\n  ProxyJump bastion\n  User me\n")
    gpu = resolve("gpu", files=[path])
    assert gpu.jump is not None
    assert (gpu.jump.host, gpu.jump.jump) == ("bastion", None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("90S", 90), ("1m30s", 90), ("1h5", 3605), ("1w1d", 691_200), ("none", 15), ("0", 15)],
)
def test_times_are_read_as_ssh_reads_them(tmp_path: Path, text: str, seconds: float) -> None:
    path = tmp_path / "config"
    path.write_text(f"ConnectTimeout {text}\n")
    assert resolve("h", files=[path]).timeout == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Host h\n  ProxyJump g\nHost g\n  ProxyJump h\n", "behind more than 8 others"),
        ("CanonicalizeHostname always\n", "config:1: canonicalizehostname always is not supported"),
        ("KnownHostsCommand /bin/x\n", "not supported"),
        ("RevokedHostKeys /etc/revoked\n", "not supported"),
        ("PubkeyAuthentication no\n", "not supported"),
        ('User "open\n', "config:1: a quote is not closed"),
        ("Port many\n", "the port 'many' is not a whole number from 1 to 65535"),
        ("HostName $(reboot)\n", "is not HOST"),
        ("User -x\n", "no user's name may have"),
        ("HostName %q\n", "%q in '%q' is not one of"),
        ("Match localnetwork 10.0.0.0/8\n", "Match localnetwork is not supported"),
        ("Include config\n", "more than 16 files include each other"),
        ("IdentityFile ${SKY_NOT_SET}/k\n", "SKY_NOT_SET, which is not set"),
        ("ConnectTimeout soon\n", "connecttimeout 'soon' is not a time, such as 30 (seconds), 90s or 1m30s"),
        ("ConnectTimeout 1234567\n", "is not a time"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("SKY_SSH_CONFIG", str(path))
    with pytest.raises(SpecError) as caught:
        resolve("h", files=[path])
    assert told in str(caught.value)


def test_what_is_for_other_hosts_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host other\n  KnownHostsCommand /bin/x\nMatch host other localnetwork 10.0.0.0/8\n  User x\n")
    assert resolve("h", files=[path]).host == "h"


def test_a_proxy_command_is_kept_with_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text('Host *\n  ProxyCommand nc --proxy "a b" %h %p # 100%%\n  ProxyJump late\n')
    target = resolve("u@h:77", files=[path])
    assert (target.proxy_command, target.jump) == ('nc --proxy "a b" h 77 # 100%', None)
    assert "nc" not in repr(target)


def test_a_target_says_who_and_where() -> None:
    assert str(Target("gpu", "10.0.0.1", "me", 2222)) == "gpu (me@10.0.0.1:2222)"
    assert Target("gpu", "Gpu", "me", 2222).host_key_name == "[gpu]:2222"
    assert Target("gpu", "gpu", "me").host_key_name == "gpu"
    assert Target("gpu", "gpu", "me", 2222, host_key_alias="x").host_key_name == "x"
