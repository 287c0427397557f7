"""Options of a pool's start and supervision, with Skyward's names."""

from __future__ import annotations

import logging as standard
from dataclasses import dataclass
from typing import Any

from ..errors import SpecError
from ..util.text import nearest
from ..util.validate import check_flag, check_whole, is_number, is_whole

SELECTIONS = ("first", "cheapest")
EXECUTORS = ("auto", "process", "thread", "loky")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_SECONDS = 366 * 86_400.0
MAX_ATTEMPTS = 1000
# For providers that create machines, and may have none left for a moment; existing machines are tried once.
ATTEMPTS = 3
DEFAULT_EXIT_TIMEOUT = 2.0
# Seconds that other ranks get after one has failed.
DEFAULT_GRACE = 5.0


@dataclass(frozen=True)
class Worker:
    """Number of calls that a node runs at a time: the pool's ``ranks_per_node``.

    Parameters
    ----------
    concurrency : int
        Ranks of each node. A rank is a process, and runs one call at a time.
    executor : str
        ``"auto"``, ``"process"`` or ``"loky"``, which are the same here. ``"thread"`` is accepted for compatibility:
        its calls run in processes as well, and share no memory.
    """

    concurrency: int = 1
    executor: str = "auto"

    def __post_init__(self) -> None:
        check_whole("concurrency", self.concurrency, 1, MAX_ATTEMPTS)
        _one_of("executor", self.executor, EXECUTORS)


@dataclass(frozen=True)
class LogConfig:
    """Destination and level of a pool's log.

    Parameters
    ----------
    level : int or str
        The lowest level that is written, such as ``"INFO"``.
    file : str, optional
        The file to which the log is appended; by default standard error.
    """

    level: int | str = "INFO"
    file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", _level(self.level))
        if self.file is not None and (not isinstance(self.file, str) or not self.file.strip()):
            raise SpecError(f"file must be the path of a log file, not {self.file!r}")


@dataclass(frozen=True)
class Options:
    """Options of a pool's start and supervision.

    Parameters
    ----------
    selection : str
        Order of several `Spec`: ``"cheapest"`` tries the lowest price first, ``"first"`` the first one given. Local
        nodes and your own hosts cost nothing; an unknown price comes last.
    provision_timeout : float
        Timeout in seconds for creating the machines: all attempts, and the waits between them. Time that they wait in
        their provider's queue does not count.
    queue_timeout : float
        Timeout in seconds for machines that wait in their provider's queue.
    ssh_timeout : float
        Timeout in seconds of one attempt to connect to the machines.
    bootstrap_timeout : float
        Timeout in seconds for preparing the machines: packages, files, the plugins' own steps.
    max_provision_attempts : int, optional
        Attempts to create machines and connect to them; 3 by default, 1 for existing machines (SSH, local). Errors
        that a retry cannot fix, such as a refused key, are not retried.
    provision_retry_delay : float
        Back-off in seconds between two attempts.
    shutdown_timeout : float
        Timeout in seconds of the pool's end; nodes that are still running then end by their lease.
    exit_timeout : float
        Seconds for ranks to run their exit handlers and close their files when the pool ends or is restarted; then
        they are killed. 0 kills at once. The pool's end does not exceed ``shutdown_timeout``.
    retry_on_interruption : int
        Retries of a call to one rank whose node was lost; a broadcast has its own `with_retries`.
    console : bool
        Show the pool's start and its runs.
    logging : bool, int, str or LogConfig
        Events for the ``sky_jupyter`` logger: True logs them for the program's own handlers, False logs nothing, a
        level or a `LogConfig` also adds a handler.
    worker : Worker, optional
        Number of calls that a node runs at a time.
    cluster : bool
        True if nodes work together. Otherwise they need not reach each other, and each rank is a world of its own:
        no coordinator, no collectives, and ``shard`` returns everything.
    crowded : bool
        Allow more local rank processes than fit this machine: more than four per core, or more than half of its
        memory.
    """

    selection: str = "cheapest"
    provision_timeout: float = 600.0
    queue_timeout: float = 86_400.0
    ssh_timeout: float = 300.0
    bootstrap_timeout: float = 3600.0
    max_provision_attempts: int | None = None
    provision_retry_delay: float = 5.0
    shutdown_timeout: float = 120.0
    exit_timeout: float = DEFAULT_EXIT_TIMEOUT
    retry_on_interruption: int = 3
    console: bool = True
    logging: bool | int | str | LogConfig = True
    worker: Worker | None = None
    cluster: bool = True
    crowded: bool = False

    def __post_init__(self) -> None:
        _one_of("selection", self.selection, SELECTIONS)
        for name in ("provision_timeout", "queue_timeout", "ssh_timeout", "bootstrap_timeout", "shutdown_timeout"):
            _seconds(name, getattr(self, name))
        for name in ("provision_retry_delay", "exit_timeout"):
            _seconds(name, getattr(self, name), zero=True)
        if self.max_provision_attempts is not None:
            check_whole("max_provision_attempts", self.max_provision_attempts, 1, MAX_ATTEMPTS)
        check_whole("retry_on_interruption", self.retry_on_interruption, 0, MAX_ATTEMPTS)
        for name in ("console", "cluster", "crowded"):
            check_flag(name, getattr(self, name))
        if self.worker is not None and not isinstance(self.worker, Worker):
            raise SpecError(f"worker must be sky.Worker(concurrency=…), not {self.worker!r}")
        if not isinstance(self.logging, (bool, LogConfig)):
            object.__setattr__(self, "logging", _level(self.logging))

    def attempts(self, *, made: bool) -> int:
        """Return the number of attempts to create machines.

        Parameters
        ----------
        made : bool
            True if the provider creates them.

        Returns
        -------
        int
            The largest number of attempts.
        """
        return self.max_provision_attempts or (ATTEMPTS if made else 1)


def _seconds(name: str, value: Any, *, zero: bool = False) -> None:
    if not is_number(value, 0, MAX_SECONDS) or not (value or zero):
        least = "0 or more" if zero else "above 0"
        raise SpecError(f"{name} must be a number of seconds {least}, at most a year, not {value!r}")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        told = nearest(value, allowed) if isinstance(value, str) else ""
        raise SpecError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}{told}")


def _level(value: Any) -> int:
    """Return a level of the standard library's logging, from a number or name."""
    if isinstance(value, str) and value.upper() in LEVELS:
        return int(getattr(standard, value.upper()))
    if not is_whole(value, 0, 100):
        raise SpecError(f"logging must be True, False, a level such as 'INFO', or a LogConfig, not {value!r}")
    return value
