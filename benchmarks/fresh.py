"""A function in a process of its own: imports count, and nothing is warm, as in a new notebook.

``python -m benchmarks.fresh MODULE FUNCTION JSON`` is what `call` starts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from . import ended

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
# Seconds that a process has to end what it has started.
_END = 15.0


def call(module: str, function: str, patience: float = PATIENCE, **arguments: Any) -> Any:
    """Call a function of a module of this folder in a new process; its result as JSON brings it back.

    Raises
    ------
    RuntimeError
        With the process's last lines, when it fails or takes longer than so many seconds.
    """
    command = [sys.executable, "-m", "benchmarks.fresh", module, function, json.dumps(arguments)]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        try:
            answer, _ = process.communicate(timeout=patience)
            status = f"ended with status {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            status = f"took longer than {patience:.0f} s"
        except BaseException:
            # It removes its folders itself.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END)
            raise
        finally:
            end_with_children(process)
        if status:
            said.seek(0)
            tail = "\n".join(said.read().decode(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"{module}.{function}({arguments}) {status}\n{tail}")
    return json.loads(answer)


def end_with_children(process: subprocess.Popen[Any]) -> None:
    """Kill a process that still runs, with all that it has started."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in family:
        if child.is_running():
            child.kill()
    process.wait()


def like_a_notebook() -> None:
    """Import what a notebook's kernel has imported before the first cell, and make its shell.

    Neither ours nor a peer pays for these.
    """
    import ipykernel.ipkernel
    import ipykernel.kernelapp  # noqa: F401

    from .engines import shell

    shell()


def main() -> None:
    """Do what the command line says and write the result to standard output."""
    ended.raise_signals(once=True)
    module, function, arguments = sys.argv[1:]
    # Libraries and what they start may print; the answer has the pipe for itself.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    result = getattr(importlib.import_module(f"benchmarks.{module}"), function)(**json.loads(arguments))
    json.dump(result, answer)
    answer.close()


if __name__ == "__main__":
    main()
