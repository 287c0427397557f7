"""A script of `scripts` in a process of its own, for ours or for a peer, which may have an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from .fresh import ROOT, end_with_children
from .measure import Figures

_MARK = "SKY_BENCHMARK_MARK"
_SCRIPTS = Path(__file__).resolve().parent / "scripts"


class Script:
    """A script that does jobs (see `scripts/call_loop.py`), and the processes that belong to it."""

    def __init__(self, process: subprocess.Popen[str], mark: str, said: IO[bytes]) -> None:
        self._process = process
        self._mark = mark
        self._said = said

    def do(self, job: str, **given: Any) -> float:
        """Have the script do a job; return the seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": job, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            tail = "\n".join(self._said.read().decode(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"{self._process.args} ended with status {status} at {job}\n{tail}")
        return float(json.loads(line)["s"])

    def start(self, ranks: int) -> Figures:
        """Start the ranks."""
        return {"start": self.do("start", ranks=ranks)}

    def end(self) -> Figures:
        """End the ranks, until no process is left but the script's."""
        began = time.perf_counter()
        self.do("end")
        while len(self.family()) > 1 and time.perf_counter() - began < 60:
            time.sleep(0.02)
        return {"end": time.perf_counter() - began}

    def spent(self) -> dict[str, float]:
        """Return the processor time of all processes, and of the notebook's alone."""
        spent = {"": 0.0, " of the notebook": 0.0}
        for one in self.family():
            with contextlib.suppress(OSError):
                seconds = processor_time(one.pid)
                spent[""] += seconds
                if one.pid == self._process.pid:
                    spent[" of the notebook"] = seconds
        return spent

    def family(self) -> list[psutil.Process]:
        """Return the script's process and all that was started by it, whoever has adopted that."""
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.environ().get(_MARK) == self._mark and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
        return found


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used.

    Linux's clock of a process, as clock_getcpuclockid(3) has it, counts nanoseconds; `/proc` counts in ticks of 10 ms,
    more than an idle process uses in a second.
    """
    return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def running(python: Path, script: str) -> Iterator[Script]:
    """Start a script by this Python; nothing of it is left."""
    mark = uuid.uuid4().hex
    # What the processes of a rank import, too.
    folders = [str(_SCRIPTS), *([str(ROOT)] if python == Path(sys.executable) else [])]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [python, script],
            cwd=_SCRIPTS,
            env={**os.environ, _MARK: mark, "PYTHONPATH": os.pathsep.join(folders)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What they say of their start would be between the rows; the end of it is told with an error.
            stderr=None if os.environ.get("SKY_BENCHMARK_TALK") else said,
            text=True,
            start_new_session=True,
        )
        try:
            yield Script(process, mark, said)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
        finally:
            end_with_children(process)


MONARCH = "torchmonarch==0.7.0"


def monarch_python(benchmark: str) -> Path | None:
    """Return the Python of Monarch's environment; None where it cannot be made."""
    return own_python(benchmark, "monarch", MONARCH, "torch", "numpy", "ipykernel")


def own_python(benchmark: str, name: str, *packages: str) -> Path | None:
    """Return the Python of a peer's environment, which is made where there is none; None, told, where that fails.

    Parameters
    ----------
    benchmark : str
        The one that is measured, for the message.
    name : str
        The environment's folder in artifacts.
    packages : str
        What it has; the first is the peer.
    """
    folder = ROOT / "artifacts" / name
    python = folder / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    install = ["pip", "install", "--quiet", "--python", str(python), "--constraints", str(ROOT / "constraints.txt")]
    make = ["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)]
    for step in (make, [*install, *packages]):
        done = subprocess.run([uv, *step], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{benchmark}: left out, as {packages[0]} cannot be installed here: {reason}", file=sys.stderr)
            return None
    return python
