"""The manager's process, as the driver of a soak holds it."""

from __future__ import annotations

import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.programs import ROOT

# No wait lasts longer: what does is a hang.
LIMIT = 120.0


class Hang(Exception):
    """Something did not answer in time; the soak cannot go on."""


class Failed(Exception):
    """A request of the manager raised; the message is its traceback."""


class Child:
    """A manager's process; killed or closed, and then another takes its place."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            command = [sys.executable, "-m", "tests.soak.manager", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=file, stderr=file, pass_fds=[theirs.fileno()]
            )
        self.connection = Connection(ours.detach())
        self.busy = ""

    def ask(self, verb: str, *arguments: Any, limit: float = LIMIT) -> Any:
        """Have it do something, and wait for the answer."""
        self.send(verb, *arguments)
        return self.receive(limit)

    def send(self, verb: str, *arguments: Any) -> None:
        assert not self.busy, f"{self.busy} is still on"
        self.busy = verb
        self.connection.send((verb, arguments))

    def receive(self, limit: float = LIMIT) -> Any:
        if not self.connection.poll(limit):
            raise Hang(f"the manager did not answer to {self.busy!r} within {limit:.0f} s")
        try:
            state, value = self.connection.recv()
        except (EOFError, ConnectionError):
            raise Hang(f"the manager ended by itself in {self.busy!r}: status {self.process.wait(60)}") from None
        verb, self.busy = self.busy, ""
        if state == "error":
            raise Failed(f"{verb}: {value}")
        return value

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
