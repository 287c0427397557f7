"""A machine whose shells an API starts, as `ShellMachine` has it: what its API does not do holds up nobody."""

from __future__ import annotations

import os
import threading

import pytest

from sky_jupyter.machines.ssh import shell_machine
from sky_jupyter.machines.ssh.shell_machine import ShellMachine
from tests.providers.pod import Exec

from .conftest import PATIENCE, eventually


class Here(ShellMachine):
    """This machine, by an API that starts one shell and answers no second call until it is freed."""

    name, key, address = "here", "key", "127.0.0.1"

    def __init__(self) -> None:
        self.shells: list[Exec] = []
        self.asked, self.freed, self.answered = (threading.Event() for _ in range(3))

    def open_shell(self, command: str) -> Exec:
        if self.shells:
            self.asked.set()
            self.freed.wait(PATIENCE)
            self.answered.set()
        self.shells.append(Exec(["/bin/sh", "-c", command], dict(os.environ)))
        return self.shells[-1]

    def status(self, pipes: Exec) -> int:
        return pipes.process.wait()

    def open_stream(self, host: str, port: int) -> Exec:
        raise NotImplementedError


def test_a_script_is_given_up_in_time_though_no_other_shell_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_machine, "_END_PATIENCE", 0.2)
    machine = Here()
    try:
        with pytest.raises(TimeoutError, match="has not ended after"):
            machine.run("sleep 600; echo never", timeout=1.0)
        assert machine.asked.is_set()
        assert not machine.answered.is_set()
        monkeypatch.undo()
    finally:
        machine.freed.set()
    # It is ended all the same, once a shell is to be had.
    eventually(lambda: machine.shells[0].process.poll() is not None)
