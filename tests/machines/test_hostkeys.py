"""Host keys: what is known passes, what is new is asked about and kept, what has changed is refused."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import HostKeyError, SpecError
from sky_jupyter.machines.ssh import known_hosts
from sky_jupyter.machines.ssh.known_hosts import Presented, Unknown
from sky_jupyter.machines.ssh.target import Target

from .sshd import Server, keygen, serve

TargetOf = Callable[..., Target]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Presented]:
    """Public keys of each type, with a second one of one type."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen (openssh-client)")
    folder = tmp_path_factory.mktemp("keys")
    made = {}
    for name, kind in (("ed25519", "ed25519"), ("other", "ed25519"), ("ecdsa", "ecdsa"), ("rsa", "rsa")):
        words = keygen(folder / name, kind).with_suffix(".pub").read_text().split()
        made[name] = presented(words)
    return made


def presented(words: list[str]) -> Presented:
    import base64

    return Presented(words[0], base64.b64decode(words[1]))


def line(names: str, key: Presented) -> str:
    import base64

    return f"{names} {key.kind} {base64.b64encode(key.blob).decode()} comment\n"


def to(tmp_path: Path, text: str | bytes = "", **changes: Any) -> Target:
    path = tmp_path / "known"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return replace(Target("gpu", "Gpu.example.org", "me", known_hosts=(str(path),)), **changes)


@pytest.mark.parametrize(
    ("names", "port"),
    [
        ("gpu.example.org", 22),
        ("GPU.Example.org,10.0.0.1", 22),
        ("*.example.org", 22),
        ("!other.example.org,gpu?example.org", 22),
        ("[gpu.example.org]:2222", 2222),
        ("[*.example.org]:2222", 2222),
        ("gpu.example.org", 2222),
    ],
)
def test_a_known_key_passes(tmp_path: Path, keys: dict[str, Presented], names: str, port: int) -> None:
    known_hosts.check(to(tmp_path, line(names, keys["ed25519"]), port=port), keys["ed25519"])


@pytest.mark.parametrize(
    "names", ["example.org", "!gpu.example.org,*.example.org", "[gpu.example.org]:2222", "gpu", "gpu.example.orgs"]
)
def test_a_line_for_another_host_does_not_count(tmp_path: Path, keys: dict[str, Presented], names: str) -> None:
    with pytest.raises(HostKeyError) as caught:
        known_hosts.check(to(tmp_path, line(names, keys["ed25519"])), keys["ed25519"])
    assert caught.value.reason == "unknown"


def test_hashed_names_are_found_and_made(tmp_path: Path, keys: dict[str, Presented]) -> None:
    target = to(tmp_path, line("gpu.example.org", keys["ed25519"]))
    path = target.known_hosts[0]
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    assert "gpu" not in Path(path).read_text()
    known_hosts.check(target, keys["ed25519"])
    other = replace(target, host="new", port=2200, hash_known_hosts=True)
    known_hosts.check(other, keys["rsa"], accept=True)
    assert "new" not in Path(path).read_text()
    found = subprocess.run(["ssh-keygen", "-F", "[new]:2200", "-f", path], capture_output=True, text=True)
    assert "ssh-rsa" in found.stdout
    known_hosts.check(other, keys["rsa"])


def test_a_new_key_is_shown_as_ssh_keygen_shows_it(tmp_path: Path, keys: dict[str, Presented]) -> None:
    with pytest.raises(HostKeyError) as caught:
        known_hosts.check(to(tmp_path), keys["ed25519"])
    error = caught.value
    assert (error.host, error.reason) == ("gpu", "unknown")
    assert f"ED25519 key fingerprint of gpu.example.org is {error.fingerprint}" in str(error)
    assert "--accept-host-keys" in str(error)
    assert Path(to(tmp_path).known_hosts[0]).read_text() == ""


def test_an_accepted_key_is_kept_once_for_its_user_only(tmp_path: Path, keys: dict[str, Presented]) -> None:
    folder = tmp_path / "home" / ".ssh"
    target = to(tmp_path, known_hosts=(str(folder / "known_hosts"),))
    for _ in range(2):
        known_hosts.check(target, keys["ecdsa"], accept=True)
    known_hosts.check(target, keys["ecdsa"])
    path = folder / "known_hosts"
    assert len(path.read_text().splitlines()) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = subprocess.run(["ssh-keygen", "-F", "gpu.example.org", "-f", str(path)], capture_output=True, text=True)
    assert found.returncode == 0


def test_a_line_without_an_end_is_not_run_into(tmp_path: Path, keys: dict[str, Presented]) -> None:
    target = to(tmp_path, line("a", keys["rsa"]).rstrip("\n"))
    known_hosts.check(target, keys["ecdsa"], accept=True)
    assert len(Path(target.known_hosts[0]).read_text().splitlines()) == 2
    known_hosts.check(replace(target, host="a"), keys["rsa"])


def test_only_the_named_fingerprint_is_accepted(tmp_path: Path, keys: dict[str, Presented]) -> None:
    target = to(tmp_path)
    with pytest.raises(HostKeyError, match="and not SHA256:"):
        known_hosts.check(target, keys["other"], accept={"gpu": keys["ed25519"].fingerprint})
    with pytest.raises(HostKeyError, match="not established"):
        known_hosts.check(target, keys["other"], accept={"gpu2": keys["other"].fingerprint})
    known_hosts.check(target, keys["ed25519"], accept={"gpu": keys["ed25519"].fingerprint})
    known_hosts.check(target, keys["ed25519"])


def test_a_person_may_be_asked_unless_strict_checking_is_on(tmp_path: Path, keys: dict[str, Presented]) -> None:
    asked: list[Unknown] = []

    def answer(new: Unknown) -> bool:
        asked.append(new)
        return True

    target = to(tmp_path)
    with pytest.raises(HostKeyError):
        known_hosts.check(replace(target, strict="yes"), keys["rsa"], ask=answer)
    known_hosts.check(target, keys["rsa"], ask=answer)
    assert asked == [Unknown("gpu.example.org", "RSA", keys["rsa"].fingerprint)]
    known_hosts.check(replace(target, host="b", strict="accept-new"), keys["rsa"])


def test_a_changed_key_is_refused_whatever_is_accepted(tmp_path: Path, keys: dict[str, Presented]) -> None:
    text = "# a comment\n" + line("x", keys["rsa"]) + line("gpu.example.org", keys["ed25519"])
    target = to(tmp_path, text, strict="accept-new")
    for key in (keys["other"], keys["rsa"]):
        with pytest.raises(HostKeyError) as caught:
            known_hosts.check(target, key, accept=True, ask=lambda _: True)
        assert caught.value.reason == "changed"
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in str(caught.value)
        assert f"offending ED25519 key in {target.known_hosts[0]}:3" in str(caught.value)
        assert "ssh-keygen -f" in str(caught.value)
    assert Path(target.known_hosts[0]).read_text() == text


def test_a_revoked_key_is_refused_though_it_is_known(tmp_path: Path, keys: dict[str, Presented]) -> None:
    text = line("gpu.example.org", keys["ed25519"]) + "@revoked " + line("*", keys["ed25519"])
    with pytest.raises(HostKeyError) as caught:
        known_hosts.check(to(tmp_path, text), keys["ed25519"], accept=True)
    assert caught.value.reason == "revoked"
    known_hosts.check(to(tmp_path, text + line("gpu.example.org", keys["rsa"])), keys["rsa"])


def test_an_authoritys_own_key_is_no_hosts_key(tmp_path: Path, keys: dict[str, Presented]) -> None:
    with pytest.raises(HostKeyError) as caught:
        known_hosts.check(to(tmp_path, "@cert-authority " + line("*", keys["ed25519"])), keys["ed25519"])
    assert caught.value.reason == "unknown"


def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path, keys: dict[str, Presented]) -> None:
    odd = b"gpu.example.org\n\n@what gpu.example.org ssh-rsa AAAA\n|1|x|y ssh-rsa AAAA\n|2|a|b|c k v\n\xff\xfe\n"
    odd += b"gpu.example.org ssh-rsa !!!!\ngpu.example.org ssh-rsa AAAAB3\n" + b"gpu.example.org ssh-ed25519 "
    odd += line("", keys["rsa"]).split()[1].encode() + b"\n"
    known_hosts.check(to(tmp_path, odd + line("gpu.example.org", keys["ecdsa"]).encode()), keys["ecdsa"])


def test_what_is_known_is_asked_for_first(tmp_path: Path, keys: dict[str, Presented]) -> None:
    order = known_hosts.algorithms(known_hosts.known(to(tmp_path, line("gpu.example.org", keys["rsa"]))))
    assert order[:2] == ["rsa-sha2-512", "rsa-sha2-256"]
    assert sorted(order) == sorted(known_hosts.ALGORITHMS)
    signed = known_hosts.algorithms(known_hosts.known(to(tmp_path, "@cert-authority " + line("*", keys["rsa"]))))
    assert signed[0] == "ssh-ed25519-cert-v01@openssh.com"


def test_a_key_that_cannot_be_kept_is_not_taken(tmp_path: Path, keys: dict[str, Presented]) -> None:
    target = to(tmp_path, known_hosts=(str(tmp_path / "known" / "below" / "file"),))
    (tmp_path / "known").write_text("")
    with pytest.raises(HostKeyError, match="cannot be kept"):
        known_hosts.check(target, keys["rsa"], accept=True)


@pytest.mark.parametrize("text", ["", "MD5:aa:bb", "SHA256:", "SHA256:short", "SHA256:" + "!" * 43])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="ssh-keygen -l shows"):
        known_hosts.valid_fingerprint(text)


# With a server


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_a_known_key_of_any_type_is_what_the_host_is_asked_for(server: Server, target_of: TargetOf, kind: str) -> None:
    from sky_jupyter.machines.ssh.session import connect

    target = target_of(server)
    Path(target.known_hosts[0]).write_text(server.known_line(kind))
    connect(target).close()


def test_an_unknown_server_is_accepted_once_and_then_known(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import Access, connect

    target = target_of(server)
    Path(target.known_hosts[0]).write_text("")
    with pytest.raises(HostKeyError) as caught:
        connect(target)
    assert caught.value.fingerprint == server.fingerprint()
    connect(target, Access(accept={target.name: caught.value.fingerprint})).close()
    connect(target).close()


def test_a_server_with_another_key_is_refused(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import Access, connect

    target = target_of(server)
    words = keygen(tmp_path / "impostor").with_suffix(".pub").read_text().split()
    Path(target.known_hosts[0]).write_text(f"[127.0.0.1]:{server.port} {words[0]} {words[1]}\n")
    with pytest.raises(HostKeyError) as caught:
        connect(target, Access(accept=True))
    assert caught.value.reason == "changed"


@pytest.mark.parametrize(
    ("principals", "more", "told"),
    [
        ("127.0.0.1,localhost", [], ""),
        ("127.*", [], ""),
        ("other.example.org", [], "it is for other.example.org, not for 127.0.0.1"),
        ("127.0.0.1", ["-V", "20200101:20200102"], "it was valid until 2020-01-0"),
        ("127.0.0.1", ["-V", "20990101:20990102"], "it is valid from 20"),
    ],
)
def test_a_host_certificate_counts_when_it_is_good(
    tmp_path: Path, target_of: TargetOf, principals: str, more: list[str], told: str
) -> None:
    from .conftest import need_ssh

    need_ssh()
    from sky_jupyter.machines.ssh.session import connect

    folder = tmp_path / "sshd"
    folder.mkdir()
    authority = keygen(tmp_path / "authority")
    host = keygen(folder / "host_ed25519")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "host", "-h", "-n", principals, *more, f"{host}.pub"]
    subprocess.run(sign, check=True)
    with serve(folder, f"HostCertificate {host}-cert.pub", kinds=("ed25519",)) as server:
        target = target_of(server)
        words = authority.with_suffix(".pub").read_text().split()
        trust = f"@cert-authority [127.0.0.1]:* {words[0]} {words[1]}\n"
        Path(target.known_hosts[0]).write_text(trust)
        if told:
            with pytest.raises(HostKeyError, match="certificate") as caught:
                connect(target)
            assert caught.value.reason == "certificate"
            assert told in str(caught.value)
        else:
            connect(target).close()
        # An authority that has not signed it: the key itself may still be known.
        other = keygen(tmp_path / "stranger").with_suffix(".pub").read_text().split()
        Path(target.known_hosts[0]).write_text(f"@cert-authority * {other[0]} {other[1]}\n" + server.known_line())
        connect(target).close()
        if not told:
            Path(target.known_hosts[0]).write_text(trust + trust.replace("@cert-authority", "@revoked"))
            with pytest.raises(HostKeyError, match="revoked"):
                connect(target)


def test_many_processes_may_keep_keys_at_once(tmp_path: Path, keys: dict[str, Presented]) -> None:
    path = tmp_path / "known_hosts"
    code = (
        "import sys; from sky_jupyter.machines.ssh import known_hosts as hostkeys, target as targets\n"
        "key = hostkeys.Presented(sys.argv[2], bytes.fromhex(sys.argv[3]))\n"
        "for n in range(50):\n"
        "    hostkeys.keep(targets.Target('x', f'host{n}', 'me', known_hosts=(sys.argv[1],)), key)\n"
    )
    import sys

    command = [sys.executable, "-c", code, str(path), keys["rsa"].kind, keys["rsa"].blob.hex()]
    running = [subprocess.Popen(command, env={**os.environ}) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert len(path.read_text().splitlines()) == 50
