"""Who is let in: the agent, key files, certificates; and what is said when nobody is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sky_jupyter.errors import LoginRefused
from sky_jupyter.machines.ssh.target import Target

from .conftest import need_ssh
from .sshd import Server, keygen, serve

TargetOf = Callable[..., Target]


@pytest.fixture(autouse=True)
def _ssh() -> None:
    need_ssh()


def let_in(server: Server, public: Path) -> None:
    """Let one more key in."""
    with open(server.folder / "authorized_keys", "a") as file:
        file.write(public.read_text())


@contextmanager
def agent(folder: Path, *keys: Path) -> Iterator[str]:
    """An ssh-agent that holds some keys."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("needs ssh-agent (openssh-client)")
    path = str(folder / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        from .conftest import eventually

        eventually(lambda: os.path.exists(path))
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)], env={**os.environ, "SSH_AUTH_SOCK": path}, check=True, capture_output=True
            )
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("ed25519", []),
        ("ecdsa", ["-b", "384"]),
        ("ecdsa", ["-m", "PKCS8"]),
        ("rsa", ["-b", "2048"]),
        ("rsa", ["-b", "2048", "-m", "PEM"]),
    ],
)
def test_a_key_file_of_any_kind_and_form_lets_in(
    server: Server, target_of: TargetOf, tmp_path: Path, kind: str, more: list[str]
) -> None:
    from sky_jupyter.machines.ssh.session import connect

    key = keygen(tmp_path / "key", kind, "", *more)
    let_in(server, tmp_path / "key.pub")
    with connect(target_of(server, keys=(str(tmp_path / "missing"), str(key)))) as session:
        assert session.key == str(key)


def test_the_agent_lets_in_without_a_file(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    other = keygen(tmp_path / "other")
    with agent(tmp_path, other, server.key) as path:
        with connect(target_of(server, agent=path, keys=())) as session:
            assert session.key == "agent key id_ed25519"
        # Only the public half of the wanted key lies here, as where the agent is a forwarded one.
        shutil.copy(server.key.with_suffix(".pub"), tmp_path / "wanted.pub")
        target = target_of(server, agent=path, keys=(str(tmp_path / "wanted"),), identities_only=True)
        with connect(target) as session:
            assert session.key == f"agent key {tmp_path / 'wanted'}"
        with pytest.raises(LoginRefused, match="there was none to try"):
            connect(target_of(server, agent=path, keys=(), identities_only=True))


def test_an_agent_that_is_gone_is_passed_over(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    connect(target_of(server, agent=str(tmp_path / "gone"))).close()


@pytest.mark.parametrize("more", [[], ["-m", "PEM"]])
def test_a_passphrase_is_asked_for_once_for_all_hosts(
    server: Server, target_of: TargetOf, tmp_path: Path, more: list[str]
) -> None:
    from sky_jupyter.machines.ssh.session import Access, connect
    from sky_jupyter.machines.ssh.types import Prompts

    key = keygen(tmp_path / "locked", "rsa", "open sesame", "-b", "2048", *more)
    let_in(server, tmp_path / "locked.pub")
    asked: list[tuple[str, int]] = []

    def answer(path: str, attempt: int) -> str:
        asked.append((path, attempt))
        return "open sesame" if attempt else "wrong"

    access = Access.of(prompts=Prompts(passphrase=answer))
    target = target_of(server, keys=(str(key),))
    threads = [threading.Thread(target=lambda: connect(target, access).close()) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert asked == [(str(key), 0), (str(key), 1)]
    assert "sesame" not in repr(access)


@pytest.mark.slow
def test_who_takes_longer_to_answer_than_the_host_waits_is_let_in_all_the_same(
    target_of: TargetOf, tmp_path: Path
) -> None:
    from sky_jupyter.machines.ssh.session import Access, connect
    from sky_jupyter.machines.ssh.types import Prompts

    asked: list[str] = []
    with serve(tmp_path / "sshd", "LoginGraceTime 5") as impatient:
        key = keygen(tmp_path / "locked", "ed25519", "open sesame")
        let_in(impatient, tmp_path / "locked.pub")

        def answer(path: str, attempt: int) -> str:
            asked.append(path)
            time.sleep(6)
            return "open sesame"

        def accept(new: object) -> bool:
            asked.append("host")
            time.sleep(6)
            return True

        prompts = Prompts(answer, accept)
        known = str(tmp_path / "nobody")
        changes = {"keys": (str(key),), "known_hosts": (known,), "strict": "ask"}
        connect(target_of(impatient, **changes), Access.of(prompts=prompts)).close()
        connect(target_of(impatient, **changes), Access.of(prompts=prompts)).close()
    assert asked == ["host", str(key), str(key)]


def test_a_key_that_stays_closed_is_named_and_not_asked_for_again(
    server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    from sky_jupyter.machines.ssh.session import Access, connect
    from sky_jupyter.machines.ssh.types import Prompts

    key = keygen(tmp_path / "locked", "ed25519", "secret")
    target = target_of(server, keys=(str(key),))
    with pytest.raises(LoginRefused, match="needs its passphrase"):
        connect(target)
    asked: list[str] = []
    access = Access.of(prompts=Prompts(passphrase=lambda path, attempt: asked.append(path)))
    for _ in range(2):
        with pytest.raises(LoginRefused, match="passphrase"):
            connect(target, access)
    assert asked == [str(key)]
    # A key that needs no passphrase comes first, wherever it stands: then nobody is asked.
    with connect(target_of(server, keys=(str(key), str(server.key))), Access.of()) as session:
        assert session.key == str(server.key)


def test_a_certificate_lets_in(target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    authority, key = keygen(tmp_path / "authority"), keygen(tmp_path / "me")
    with serve(tmp_path / "sshd", f"TrustedUserCAKeys {authority}.pub") as server:
        target = target_of(server, keys=(str(key),))
        with pytest.raises(LoginRefused):
            connect(target)
        sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", server.user, f"{key}.pub"]
        subprocess.run(sign, check=True)
        with connect(target) as session:
            assert session.key == f"{key} with {key}-cert.pub"
        elsewhere = shutil.move(f"{key}-cert.pub", tmp_path / "signed.pub")
        with agent(tmp_path, key) as path:
            for given in (target_of(server, keys=(str(key),)), target_of(server, agent=path, keys=())):
                from dataclasses import replace

                with connect(replace(given, certificates=(str(elsewhere),))) as session:
                    assert session.key.endswith(f"with {elsewhere}")


def test_a_refusal_names_all_that_was_tried_and_what_to_do(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    wrong, public = keygen(tmp_path / "wrong"), keygen(tmp_path / "shown")
    public.chmod(0o644)
    garbage = tmp_path / "garbage"
    garbage.write_text("no key")
    garbage.chmod(0o600)
    files = (str(wrong), str(public), str(garbage), str(tmp_path / "missing"))
    with pytest.raises(LoginRefused) as caught:
        connect(target_of(server, keys=files))
    text = str(caught.value)
    assert caught.value.reason == "keys"
    assert f"takes no key of ours for the user {server.user}; tried " in text
    for told in (str(wrong), "others can read it", "is no private key", "no such file"):
        assert told in text
    assert f"ssh-copy-id -p {server.port} {server.user}@127.0.0.1" in text


def test_a_host_with_passwords_only_says_what_to_do(target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with serve(tmp_path / "sshd", "PubkeyAuthentication no", "PasswordAuthentication yes") as server:
        for keys in ((str(server.key),), (str(tmp_path / "missing"),)):
            with pytest.raises(LoginRefused) as caught:
                connect(target_of(server, keys=keys))
            assert caught.value.reason == "password"
            assert "lets users in by password only" in str(caught.value)
            assert "ssh-copy-id" in str(caught.value)


def test_a_second_factor_is_said_to_be_asked_for(target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    both = ["AuthenticationMethods publickey,password", "PasswordAuthentication yes"]
    with serve(tmp_path / "sshd", *both) as server:
        with pytest.raises(LoginRefused) as caught:
            connect(target_of(server))
        assert caught.value.reason == "factor"
        assert "asks for password as well" in str(caught.value)


def test_too_many_keys_are_said_to_be_too_many(target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    wrong = [keygen(tmp_path / f"wrong{number}") for number in range(4)]
    with serve(tmp_path / "sshd", "MaxAuthTries 2") as server:
        with pytest.raises(LoginRefused) as caught:
            connect(target_of(server, keys=tuple(map(str, [*wrong, server.key]))))
        assert caught.value.reason == "attempts"
        assert "IdentitiesOnly" in str(caught.value)
        connect(target_of(server)).close()


def test_another_user_is_refused_by_name(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with pytest.raises(LoginRefused, match="for the user nobody-here"):
        connect(target_of(server, user="nobody-here"))
