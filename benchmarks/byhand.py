"""Two bare processes started at the same time by hand: `scripts/by_hand.py`, without a pool."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .fresh import end_with_children

SCRIPT = Path(__file__).resolve().parent / "scripts" / "by_hand.py"


class ByHand:
    """The processes of one such job; they are ready when this is made.

    Parameters
    ----------
    ranks : int
        How many.
    """

    def __init__(self, ranks: int = 2) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        command = [sys.executable, str(SCRIPT)]
        self._processes: list[subprocess.Popen[Any]] = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), str(port)],
                env={**os.environ, "KERAS_BACKEND": "jax"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                # As in two terminals: the system shares a busy machine out among sessions.
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        try:
            self._answers("ready")
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes' ids, by rank."""
        return [process.pid for process in self._processes]

    def train(self, epochs: int) -> list[tuple[float, float]]:
        """Train on all; each rank's seconds from the first step to the last, on the clock and on processors."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{epochs}\n")
            process.stdin.flush()
        answers = [answer.split() for answer in self._answers("took")]
        return [(float(wall), float(processor)) for wall, processor in answers]

    def _answers(self, word: str) -> list[str]:
        return [self._answer(process, word) for process in self._processes]

    def _answer(self, process: subprocess.Popen[Any], word: str) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        self._said.seek(0)
        tail = b"\n".join(self._said.read().splitlines()[-20:]).decode(errors="replace")
        raise RuntimeError(f"a process started by hand ended with status {process.wait()}\n{tail}")

    def close(self) -> None:
        """Let them end; kill those that do not."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                end_with_children(process)
            if process.stdout is not None:
                process.stdout.close()
        self._said.close()
