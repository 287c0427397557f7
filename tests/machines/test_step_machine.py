"""What a node of a batch job does when its steps fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import MachineError
from sky_jupyter.machines.link import encoding
from sky_jupyter.machines.ssh.types import NoShell

from .conftest import need_ssh

BUSY = "srun: error: Unable to create step for job 12: Requested nodes are busy"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Any]:
    """A node on which no step begins."""
    need_ssh()
    from sky_jupyter.machines.batch.login_session import LocalLogin
    from sky_jupyter.machines.batch.step_machine import StepMachine
    from sky_jupyter.machines.batch.step_session import StepSession
    from sky_jupyter.machines.batch.step_target import StepTarget

    class Login(LocalLogin):
        def channel(self, argv: Sequence[str]) -> Any:
            made = super().channel(argv)
            # Otherwise a timer waits for it when it is closed.
            made.process.wait()
            return made

    step = ("/bin/sh", "-c", f"echo '{BUSY}' >&2; exit 1")
    target = StepTarget("12/0 (n1)", "n1", "12.0", step, step, str(tmp_path / "job"), "127.0.0.1")
    with StepMachine(StepSession(target, Login())) as made:
        yield made


@pytest.mark.parametrize(
    "transfer",
    [
        lambda node, folder: node.run("true"),
        lambda node, folder: node.download("/etc/hostname", folder / "got"),
        lambda node, folder: node.upload(folder / "file", "/tmp/sky-test-never-written"),
        lambda node, folder: node.upload(folder, "/tmp/sky-test-never-written"),
    ],
    ids=["run", "download", "upload", "upload of a folder"],
)
def test_a_step_that_fails_says_why(node: Any, tmp_path: Path, transfer: Callable[[Any, Path], object]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NoShell, match=BUSY) as error:
        transfer(node, tmp_path)
    with pytest.raises(MachineError, match=BUSY):
        encoding.checked({"error": encoding.from_error(error.value)})
