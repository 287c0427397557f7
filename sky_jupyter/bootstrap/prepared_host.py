"""State of a host that is being prepared, and work on all hosts at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ..errors import AGAIN, BootstrapError, LinkLost, MachineError, SkyError
from ..util.background_tasks import run_all
from .host_probe import HostFacts
from .installed_packages import InstalledPackages
from .standalone_python import Standalone
from .uv import LAST_LINES

if TYPE_CHECKING:
    from ..machines.base import Machine

PATIENCE = 120.0
T = TypeVar("T")


@dataclass
class PreparedHost:
    """Host that is being prepared, with what has been found and made there so far.

    Parameters
    ----------
    node : int
        The node that it will be.
    machine : Machine
        The connection.
    known : str
        Its address, if the pool's hosts know one already.
    installed : InstalledPackages, optional
        The packages of its Python, if the environment adds to them.
    """

    node: int
    machine: Machine
    known: str = ""
    facts: HostFacts = field(init=False)
    python: str = ""
    version: str = ""
    installed: InstalledPackages | None = None
    standalone: Standalone | None = None
    environment: str = ""
    package: str = ""

    @property
    def name(self) -> str:
        """Name of the host, as the user wrote it."""
        return self.machine.name

    @property
    def interpreter(self) -> str:
        """Interpreter that starts the node's processes."""
        return f"{self.environment}/bin/python"

    @property
    def address(self) -> str:
        """Address at which the pool's other hosts reach it."""
        if self.known:
            return self.known
        own = self.facts.address
        return own if own and not own.startswith(("127.", "::1")) else self.machine.address

    def variables(self) -> dict[str, str]:
        """Return the environment of the node's processes, besides a login's own."""
        path = f"{self.environment}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        if self.installed is not None:
            # The image's own programs, such as CUDA's compiler.
            path = ":".join(dict.fromkeys([f"{self.environment}/bin", *self.facts.path, *path.split(":")]))
        return {
            "PATH": path,
            "PYTHONPATH": self.package,
            "VIRTUAL_ENV": self.environment,
        }

    def run(self, script: str, phase: str, what: str, timeout: float = PATIENCE) -> str:
        """Run a script on the host and return its output, or raise BootstrapError."""
        done = self.machine.run(script, timeout=timeout)
        said = done.out.decode("utf-8", "replace")
        if done.status:
            lines = said.strip().splitlines()[-LAST_LINES:]
            raise BootstrapError(phase, f"{what} (exit status {done.status})", lines=lines)
        return said


def on_all(
    sites: Sequence[PreparedHost], work: Callable[[PreparedHost], T], phase: str, stop: threading.Event
) -> list[T]:
    """Run a function on hosts in parallel, and wait for all.

    Raise BootstrapError for the first host that failed; its message names the others.
    """
    if not sites:
        return []
    if stop.is_set():
        raise BootstrapError(phase, "stopped")
    futures = run_all(work, sites, "sky-prepare", most=len(sites))
    faults = [(site, error) for site, future in zip(sites, futures, strict=True) if (error := future.exception())]
    if faults:
        raise _one_error(faults, phase) from faults[0][1]
    return [future.result() for future in futures]


def _one_error(faults: Sequence[tuple[PreparedHost, BaseException]], phase: str) -> BaseException:
    """Return the first host's error, with what happened on the others."""
    site, error = faults[0]
    if isinstance(error, SkyError) and not isinstance(error, (BootstrapError, MachineError)):
        return error
    first = _message(error)
    same = [other.name for other, fault in faults[1:] if _message(fault) == first]
    told = [f"the same on {', '.join(same)}"] if same else []
    told += [f"and on {other.name}: {text}" for other, fault in faults[1:] if (text := _message(fault)) != first]
    message = "; ".join([first, *told])
    if isinstance(error, BootstrapError):
        lines = error.lines
        return BootstrapError(error.phase, message, node=site.node, host=site.name, command=error.command, lines=lines)
    return BootstrapError(phase, message, node=site.node, host=site.name)


def _message(error: BaseException) -> str:
    """Return an error's message without the host's name."""
    if isinstance(error, BootstrapError):
        return error.message
    if isinstance(error, LinkLost):
        told = str(error).removeprefix(f"{error.host}: ").removesuffix(AGAIN)
        return f"{told}; what was begun there ended with it, so try again"
    return str(error).removeprefix(f"{error.host}: ") if isinstance(error, MachineError) else str(error)
