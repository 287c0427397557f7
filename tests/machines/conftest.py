"""A real SSH server for a file of tests, and what it takes to connect to it."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.machines.ssh import resolve_target
from sky_jupyter.machines.ssh.target import Target

from .sshd import MISSING, Server, serve

PATIENCE = 60.0


def need_ssh() -> None:
    """Skip, and say what is missing."""
    if MISSING:
        pytest.skip(MISSING)
    if importlib.util.find_spec("paramiko") is None:
        pytest.skip("needs paramiko (the `ssh` extra)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An sshd that lets us in, for the whole file."""
    need_ssh()
    with serve(tmp_path_factory.mktemp("sshd")) as made:
        yield made


@pytest.fixture
def target_of(tmp_path: Path) -> Callable[..., Target]:
    """Makes the target for a server: its key known, and nothing of this machine's user or agent used."""

    def make(server: Server, **changes: Any) -> Target:
        known = tmp_path / "known_hosts"
        if "known_hosts" not in changes:
            port = changes.get("port", server.port)
            known.write_text(server.known_line(name=f"[127.0.0.1]:{port}"))
        usual: dict[str, Any] = {
            "known_hosts": (str(known),),
            "system_known_hosts": (),
            "agent": None,
            "keys": (str(server.key),),
        }
        plain = resolve_target.resolve(f"127.0.0.1:{changes.get('port', server.port)}", files=[])
        return replace(plain, **{**usual, **changes})

    return make


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """A connection that was closed has left no thread."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + PATIENCE
    while left := [t for t in threading.enumerate() if t not in before and t.name.startswith(("sky-ssh", "Thread-"))]:
        if time.monotonic() > end:
            pytest.fail(f"threads are left: {left}")
        time.sleep(0.05)


def eventually(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until something is so."""
    end = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)
    return value
