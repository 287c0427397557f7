"""Plugins' commands on each machine, before a pool's processes start there."""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import BootstrapError, MachineError
from ..machines.base import Command, Machine
from ..plugins.core.plugin import Step, steps_of
from ..spec.pool_spec import PoolSpec

_LAST = 30
_LOOK = 0.1


def run(
    spec: PoolSpec,
    machines: Sequence[Machine],
    python: Path,
    env: Mapping[str, str],
    on_line: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Run the commands of all plugins in order, once on each machine.

    Programs of the environment come first in PATH. Setting ``stop`` ends the running command. Raise BootstrapError for
    a command that fails, with phase ``"plugins"``, its node and its last lines.
    """
    steps = [step for plugin in spec.plugins for step in steps_of(plugin, spec)]
    done: set[str] = set()
    for node, machine in enumerate(machines):
        if machine.key in done:
            continue
        done.add(machine.key)
        path = os.pathsep.join(filter(None, [str(python.parent), env.get("PATH", os.defpath)]))
        for step in steps:
            _run_one(node, machine, step, python, {**env, "PATH": path, **step.variables}, on_line, stop)


def _run_one(
    node: int,
    machine: Machine,
    step: Step,
    python: Path,
    env: Mapping[str, str],
    on_line: Callable[[str], None],
    stop: threading.Event,
) -> None:
    program, *rest = step.command
    # A system's own interpreter may be called python3 only.
    argv = [str(python) if program == "python" else program, *rest]
    with tempfile.TemporaryDirectory(prefix="sky-step-") as folder:
        log = Path(folder) / "stderr"
        try:
            command = machine.exec(argv, env=env, cwd=folder, log=log)
        except MachineError as error:
            why = str(error).removeprefix(f"{error.host}: ")
            raise BootstrapError("plugins", why, node=node, command=shlex.join(argv)) from None
        lines = []
        over = threading.Event()
        threading.Thread(target=_end_when, args=(stop, over, command), name="sky-step", daemon=True).start()
        try:
            for line in map(step.hide, command.lines()):
                lines.append(line)
                on_line(line)
            status = command.wait()
        except BaseException:
            command.kill()
            command.wait()
            raise
        finally:
            over.set()
        if status:
            why = "stopped" if stop.is_set() else f"exit status {status}"
            lines += map(step.hide, log.read_text(errors="replace").splitlines())
            raise BootstrapError("plugins", why, node=node, command=shlex.join(argv), lines=lines[-_LAST:])


def _end_when(stop: threading.Event, over: threading.Event, command: Command) -> None:
    """End a command that nobody waits for any more."""
    while not over.wait(_LOOK):
        if stop.is_set():
            command.kill()
            return
