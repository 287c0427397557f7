"""Forkserver and control plane, which a host prepares before it knows its pool.

A host that waits for its orders has them ready when the orders come.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...util.garbage import collections_paused
from ...util.optional_imports import left_out
from ..protocol.host_config import VARIABLES, HostConfig
from ..system import processes

FORKSERVER_LOG = "forkserver.log"


class HostParts:
    """Forkserver and control plane of a host; made by its `main`.

    Parameters
    ----------
    folder : Path
        The pool's folder.

    Attributes
    ----------
    forkserver : int
        Process id of the forkserver.
    serve_scheduler, serve_agents : callable
        Functions that run the scheduler and agents; called in separate processes.
    present_gpus : callable
        Finds the machine's accelerators.
    """

    serve_scheduler: Callable[..., Any]
    serve_agents: Callable[..., Any]
    present_gpus: Callable[..., Any]

    def __init__(self, folder: Path) -> None:
        self.forkserver = 0
        self._orders = -1
        self._variables: dict[str, str] = {}
        # Raised when the host starts, which reports it.
        self._error: BaseException | None = None
        try:
            self._begin(folder)
        except Exception as error:
            self._error = error

    def _begin(self, folder: Path) -> None:
        from ..kernel import forkserver

        read, self._orders = os.pipe()
        with forkserver.listen(folder / "fork") as listener:
            self.forkserver = fork(folder / FORKSERVER_LOG, lambda: _serve_forks(listener, read, self._orders))
        os.close(read)
        # After the forkserver, which must neither contain the control plane's modules nor wait for them. Garbage
        # collections would only visit modules: here again and again, and in each child, where they copy pages.
        with collections_paused():
            # Dask tries to import these, which takes a quarter of its import time. Without numpy, its buffers of frames
            # are bytearrays; without jinja2, it shows no pages.
            with left_out("numpy", "jinja2"):
                from ..dask import settings

                settings.forget_the_persons()
                from ..agent import dask_worker
                from ..dask import scheduler
            from ..system import gpus

            scheduler.prepare_forks()
            gc.freeze()
        # After the forkserver: its children run user code, and keep the defaults.
        processes.give_memory_back()
        self.serve_scheduler, self.serve_agents = scheduler.serve, dask_worker.serve
        self.present_gpus = gpus.present

    def take_variables(self, folder: Path) -> None:
        """Add the pool's environment variables to those of this process."""
        file = folder / VARIABLES
        with contextlib.suppress(FileNotFoundError):
            self._variables = json.loads(file.read_bytes())
            file.unlink()
        os.environ.update(self._variables)

    def order(self, config: HostConfig) -> None:
        """Tell the forkserver what to import for a pool; raise any earlier error."""
        if self._error is not None:
            raise self._error
        content = {"preload": config.preload, "exit_timeout": config.exit_timeout, "variables": self._variables}
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._orders, "w") as pipe:
            json.dump(content, pipe)


def _serve_forks(listener: socket.socket, orders: int, write: int) -> None:
    from ..kernel import forkserver

    os.close(write)

    def told() -> tuple[list[str], float]:
        with os.fdopen(orders) as pipe:
            content = json.load(pipe)
        os.environ.update(content["variables"])
        return content["preload"], content["exit_timeout"]

    forkserver.serve(listener, told)


def fork(log: Path, work: Callable[[], None], locks: Sequence[int | None] = ()) -> int:
    """Run ``work`` in a child that dies with this process; return its pid.

    Its output goes to ``log``. It does not hold the host's ``locks``.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        processes.die_with_parent(parent)
        for lock in locks:
            if lock is not None:
                os.close(lock)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C in a terminal is meant for the kernels, which get it through the agents.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)
