"""Host process that begins before its pool, to import while the notebook does.

A line that will start a local pool begins one first. When the pool launches its hosts, it takes this one over if it
fits. Else the host is ended, as it is if the line has an error. Until then it has the future pool's id in its command
line and folder, like any host, and ends with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from ...errors import SkyError
from ...machines.base import Command, Machine
from ...machines.local_machine import LocalMachine
from ...node.protocol.host_config import VARIABLES
from ...node.protocol.version import HOST_PROCESS
from ...util import process_identity
from .host_places import make_blobs, make_folder, node_environment

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec

# Seconds that it waits for its configuration, which a start on a busy machine may take that long to write.
_PATIENCE = 120


class EarlyHost:
    """Host process that waits for the pool that takes it over; made by `EarlyHosts`.

    Attributes
    ----------
    pool : str
        Id of the pool that it is for.
    claimed : bool
        Whether that pool was made.
    """

    def __init__(self) -> None:
        self.pool = secrets.token_hex(4)
        self.claimed = False
        self._variables = node_environment({})
        self._folder = make_folder(self.pool)
        try:
            where = LocalMachine(), Path(sys.executable), self._folder, self._variables
            self.command: Command = start(*where, str(_PATIENCE), str(os.getpid()))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def fits(self, machine: Machine, python: Path, variables: Mapping[str, str]) -> bool:
        """Return whether it lives and suits a pool, apart from variables of plugins."""
        is_same = sys.executable == str(python) and self._variables.items() <= variables.items()
        return is_same and machine.key == LocalMachine.key and process_identity.lives(*self.command.identity)

    def files(self, variables: Mapping[str, str]) -> dict[PurePath, bytes]:
        """Return the file of variables that it lacks, to write before its configuration."""
        more = {name: value for name, value in variables.items() if name not in self._variables}
        return {self._folder / VARIABLES: json.dumps(more).encode()} if more else {}

    def make_folders(self) -> tuple[Path, Path]:
        """Return the pool's folder and a new blob folder; end the host if that fails."""
        try:
            return self._folder, make_blobs(self.pool, self._folder)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End it, and remove its folder."""
        # It holds nothing yet, and its child dies with it, but may make a file before that.
        self.command.kill()
        self.command.wait()
        while self._folder.exists():
            shutil.rmtree(self._folder, ignore_errors=True)


def start(machine: Machine, python: Path, folder: Path, variables: Mapping[str, str], *more: str) -> Command:
    """Start a host process on a machine.

    The working folder is the pool's, so that no `random.py` beside the notebook is imported by a node's own modules.
    """
    return machine.exec(
        [str(python), "-m", HOST_PROCESS, str(folder), *more],
        env=variables,
        cwd=str(folder),
        log=folder / "host.log",
    )


class EarlyHosts:
    """The host of this process that waits for its pool, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: EarlyHost | None = None

    def begin(self) -> None:
        """Start a host process for the next local pool if possible; ignore errors."""
        with self._lock, contextlib.suppress(OSError, SkyError):
            if self._begun is None:
                self._begun = EarlyHost()

    def claim(self, spec: PoolSpec) -> str | None:
        """Claim a begun host for a new pool; return the pool's id, None if none suits."""
        with self._lock:
            if self._begun is None or self._begun.claimed or not _may_have(spec):
                return None
            self._begun.claimed = True
            return self._begun.pool

    def take(self, pool: str, machine: Machine, python: Path, variables: Mapping[str, str]) -> EarlyHost | None:
        """Return a pool's early host, which the pool then owns; None if none fits.

        Parameters
        ----------
        pool : str
            The pool's id.
        machine : Machine
            Where the host is to run.
        python : Path
            The interpreter that is to run it.
        variables : mapping
            All of its environment variables.

        Returns
        -------
        EarlyHost or None
            The host.
        """
        with self._lock:
            if self._begun is None or self._begun.pool != pool:
                return None
            found, self._begun = self._begun, None
        if found.fits(machine, python, variables):
            return found
        found.end()
        return None

    def discard(self) -> None:
        """End a host that no pool has taken over."""
        with self._lock:
            found, self._begun = self._begun, None
        if found is not None:
            found.end()


def _may_have(spec: PoolSpec) -> bool:
    """Return whether a pool may have a host that begins before it.

    The user's variables may concern the interpreter, and libraries that such a host has loaded; plugins' do not.
    """
    return not (spec.keep or spec.provider.survives_manager or spec.image.env)


early_hosts = EarlyHosts()
"""The early host of this process."""
