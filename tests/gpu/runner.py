"""Runs the checks in a process beside this one, and sees to it that each has an end.

One process runs them in their order, so that they share pools. Where one hangs, the process and all that it has
started is killed, and another one goes on with the next check. The standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .table import FAILED, SKIPPED, Row

MARK = "SKY_TEST"
_LOOK = 0.05
_PATIENCE = 15.0
# What a check may take after the limit for all is over: nothing is begun then.
_LEAST = 5.0


@dataclass(frozen=True)
class Job:
    """A check as the runner knows it: its key, what it is called, and the seconds that it may take."""

    key: str
    name: str
    limit: float


class Runner:
    """Runs jobs one after the other.

    Parameters
    ----------
    command : callable
        The command line of a process that runs the checks with these keys, and writes what becomes of them into the
        file that is named first.
    env : mapping
        Its environment.
    log : Path
        Where what it prints goes.
    seconds : float
        How long all of it may take.
    tell : callable
        Called with each row, as it comes.
    """

    def __init__(
        self,
        command: Callable[[Path, Sequence[str]], Sequence[str]],
        env: Mapping[str, str],
        log: Path,
        seconds: float,
        tell: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self.command, self.log, self.tell = command, log, tell
        self.mark = uuid.uuid4().hex
        self.env = {**env, MARK: self.mark}
        self.end = time.monotonic() + seconds

    def run(self, jobs: Sequence[Job]) -> list[Row]:
        """All of them, a row each."""
        rows: list[Row] = []
        left = list(jobs)
        while left:
            if self.end - time.monotonic() < _LEAST:
                more = [Row(job.name, SKIPPED, "the time for all checks was over") for job in left]
                for row in more:
                    self.tell(row)
                return rows + more
            found = self.some(left)
            rows += found
            left = left[len(found) :]
        return rows

    def some(self, jobs: Sequence[Job]) -> list[Row]:
        """In one process: as many as it came to, one at least."""
        rows: list[Row] = []
        with tempfile.TemporaryDirectory() as folder, self.log.open("ab") as log:
            words = Path(folder, "words")
            words.touch()
            env = {**self.env, "SKY_REGISTRY": str(Path(folder, "registry.sqlite"))}
            process = subprocess.Popen(
                self.command(words, [job.key for job in jobs]),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                for row in self.attend(process, words, jobs):
                    rows.append(row)
                    self.tell(row)
            finally:
                self.clear(process)
        return rows

    def attend(self, process: subprocess.Popen[bytes], words: Path, jobs: Sequence[Job]) -> Iterator[Row]:
        """What becomes of the checks, until the process ends or has to be ended."""
        with words.open(encoding="utf-8") as told:
            for job in jobs:
                began = time.monotonic()
                limit = min(job.limit, max(0.0, self.end - began))
                while True:
                    # Looked at before its last word is read.
                    over = process.poll() is not None
                    if (word := _word(told)) is not None:
                        yield Row(job.name, word["result"], word["figure"], time.monotonic() - began)
                        break
                    seconds = time.monotonic() - began
                    if over:
                        why = f"its process ended with status {process.returncode}; {self.log.name} has what it said"
                        yield Row(job.name, FAILED, why, seconds)
                        return
                    if seconds > limit:
                        yield Row(job.name, FAILED, f"it took longer than {limit:.0f} s, and was killed", seconds)
                        return
                    time.sleep(_LOOK)

    def clear(self, process: subprocess.Popen[bytes]) -> None:
        """End the process; its pools end by themselves then, and what does not is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.wait_for_end()
        end = time.monotonic() + _PATIENCE
        while (left := marked(self.mark)) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK)

    def wait_for_end(self) -> None:
        """Wait until nothing bears the mark: a pool removes its folders as it ends."""
        end = time.monotonic() + _PATIENCE
        while marked(self.mark) and time.monotonic() < end:
            time.sleep(_LOOK)


def marked(mark: str) -> list[int]:
    """The processes that have inherited a mark from one of ours. Linux tells."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _word(told: Any) -> dict[str, str] | None:
    """The next whole line of a file that is being written; None where there is none yet."""
    at = told.tell()
    line = told.readline()
    if line.endswith("\n"):
        word: dict[str, str] = json.loads(line)
        return word
    told.seek(at)
    return None


def this_python(path: Path) -> list[str]:
    """The command that runs a program or a folder with this Python."""
    return [sys.executable, str(path)]
