"""What a person is asked while hosts are connected to: in the notebook, once, and nowhere kept."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.display.base.prompts import UserPrompts
from sky_jupyter.machines.ssh.known_hosts import Unknown
from tests.hosts.traces import wait_until_clean
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.magics.notebook import Notebook, notebook

SECRET = "open sesame, please"
LINE = "%%sky --provider ssh --hosts host0,host1 --offline"
on_hosts = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]


def marked(*marks: pytest.MarkDecorator):
    """Several marks as one decorator."""

    def apply(test):
        for mark in marks:
            test = mark(test)
        return test

    return apply


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


@pytest.fixture
def config(world: World, tmp_path: Path) -> Path:
    """An SSH configuration under which new hosts may be asked about."""
    path = world.ssh_config(tmp_path / "config")
    path.write_text(path.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask"))
    return path


@pytest.fixture
def locked(world: World, config: Path, tmp_path: Path) -> Path:
    """A key with a passphrase that lets in, and the only one."""
    key = tmp_path / "locked"
    key.write_bytes(world.key.read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", SECRET, "-f", str(key)], check=True)
    config.write_text(config.read_text().replace(str(world.key), str(key)))
    return key


@pytest.fixture
def book(config: Path, tmp_path: Path) -> Iterator[Notebook]:
    with notebook(tmp_path, SKY_SSH_CONFIG=str(config), SSH_AUTH_SOCK="", IPYTHONDIR=str(tmp_path / "ipython")) as made:
        assert made.run("%load_ext sky_jupyter").status == "ok"
        yield made


@marked(*on_hosts)
def test_a_passphrase_is_asked_for_once_and_is_nowhere_afterwards(
    world: World, locked: Path, book: Notebook, tmp_path: Path
) -> None:
    cell = book.run(f"{LINE}\n6 * 7", timeout=240, answers=["wrong", SECRET])
    assert cell.status == "ok", cell.outputs
    assert [hidden for _, hidden in cell.asked] == [True, True]
    assert f"Passphrase of the key {locked}" in cell.asked[0][0]
    assert "That was not it" in cell.asked[1][0]
    assert SECRET not in str(cell.outputs)
    assert not book.value(f"any({SECRET!r} in str(item) for item in globals().values() if not callable(item))")
    # The same line again needs no key, and the pool's end and a new one ask anew: nothing was kept.
    assert book.run(f"{LINE}\n1", timeout=240, answers=[]).asked == []
    assert book.run("%sky down").status == "ok"
    assert len(book.run("%sky up --provider ssh --hosts host0 --offline", timeout=240, answers=[SECRET]).asked) == 1
    assert book.run("%sky down").status == "ok"
    for host in world:
        assert SECRET not in host.run("cat ~/.cache/sky_jupyter/*.log 2>/dev/null || :", user="ada")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    wait_until_clean(world)


@marked(*on_hosts)
def test_where_nobody_can_be_asked_it_is_said_what_to_do(
    world: World, locked: Path, config: Path, book: Notebook
) -> None:
    cell = book.run(f"{LINE}\n1", timeout=120)
    assert (cell.status, cell.asked, cell.error_name) == ("error", [], "LoginRefused")
    assert f"needs its passphrase, and nobody can be asked here: ssh-add {locked}" in cell.error
    config.with_name("known_hosts").write_text("")
    cell = book.run(f"{LINE}\n1", timeout=120)
    assert (cell.status, cell.asked, cell.error_name) == ("error", [], "HostKeyError")
    assert "--accept-host-keys" in cell.error
    wait_until_clean(world)


@marked(*on_hosts)
def test_an_unknown_host_is_shown_and_kept_when_it_is_the_right_one(world: World, config: Path, book: Notebook) -> None:
    known = config.with_name("known_hosts")
    known.write_text("")
    cell = book.run(f"{LINE}\n1", timeout=120, answers=["no", "no"])
    assert (cell.status, cell.error_name) == ("error", "HostKeyError")
    assert all("SHA256:" in text and "ED25519" in text and not hidden for text, hidden in cell.asked)
    assert known.read_text() == ""
    cell = book.run(f"{LINE}\n6 * 7", timeout=240, answers=["what?", "yes", "yes"])
    assert cell.status == "ok", cell.outputs
    assert book.value("_sky.values") == [42, 42]
    assert len(known.read_text().splitlines()) == 2
    assert book.run("%sky down").status == "ok"
    cell = book.run(f"{LINE}\n1", timeout=240, answers=[])
    assert (cell.status, cell.asked) == ("ok", [])
    assert book.run("%sky down").status == "ok"
    wait_until_clean(world)


@marked(*on_hosts)
def test_an_interrupt_is_no_answer_and_ends_the_start(world: World, locked: Path, book: Notebook) -> None:
    timer = threading.Timer(5, book.manager.interrupt_kernel)
    timer.start()

    class Later:
        """Never answers."""

        def __iter__(self) -> Iterator[str]:
            return self

        def __next__(self) -> str:
            time.sleep(8)
            return ""

    cell = book.run(f"{LINE}\n1", timeout=120, answers=Later())
    timer.join()
    assert (cell.status, cell.error_name) == ("error", "KeyboardInterrupt")
    assert book.run("%sky status").stream().startswith("no pool is running")
    wait_until_clean(world)


NEW = Unknown("gpu1", "ED25519", "SHA256:abc")


def test_nobody_is_asked_outside_of_a_wait_or_without_a_terminal() -> None:
    asking = UserPrompts()
    assert asking._accept(NEW) is False
    assert asking._passphrase("/key", 0) is None
    assert (asking.prompts.accept, asking.prompts.passphrase) == (None, None)
    assert asking.wait(lambda: asking._accept(NEW)) is False


def test_a_script_in_a_terminal_asks_there(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from sky_jupyter.display.base.prompts import person\n"
        "from sky_jupyter.machines.ssh.known_hosts import Unknown\n"
        "new = Unknown('gpu1', 'ED25519', 'SHA256:abc')\n"
        "def work(): return person.prompts.accept(new), person.prompts.passphrase('/key', 0), 'done'\n"
        "print(person.wait(work))\n"
    )
    terminal, other = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=other, stdout=other, stderr=other, start_new_session=True
    )
    os.close(other)
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            try:
                shown += os.read(terminal, 1024)
            except OSError:
                pytest.fail(f"the script ended: {shown.decode()}")

    try:
        until(b"should have): ")
        os.write(terminal, b"SHA256:abc\n")
        until(b"without that key): ")
        os.write(terminal, f"{SECRET}\n".encode())
        until(b"done')")
        assert f"(True, '{SECRET}', 'done')".encode() in shown
        assert shown.count(SECRET.encode()) == 1
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
        os.close(terminal)
