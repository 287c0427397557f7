#!/usr/bin/python3
"""Commands of a PBS that runs jobs on the host where it is installed, under each command's name.

A job has as many nodes as it asks for, n0, n1 and so on: they are names for processes of the host. A job's script and
what it starts on nodes are real processes, which a deletion ends. Standard library only; see `install`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STATE = Path("/var/tmp/pbs.json")
# By these, what belongs to a job and to one of its nodes is found.
JOB, NODE = "TESTS_PBS_JOB", "TESTS_PBS_NODE"
_CLOCK = "%a %b %d %H:%M:%S %Y"
_WAITS, _GRACE = 1.0, 5.0


@contextlib.contextmanager
def jobs() -> Iterator[dict[str, Any]]:
    """The jobs by their ids; written back afterwards."""
    with STATE.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found = json.loads(file.read() or "{}")
        yield found
        file.truncate(0)
        file.write(json.dumps(found))


def qsub() -> None:
    """Take a script from standard input, and start it after a second."""
    script = sys.stdin.read()
    words = [word for line in script.splitlines() if line.startswith("#PBS ") for word in shlex.split(line[5:])]
    options = dict(zip(words[::2], words[1::2], strict=True))
    (count,) = re.findall(r"-l select=(\d+)", " ".join(words))
    with jobs() as known:
        id = f"{len(known) + 1}.tests"
        name, _, value = options["-v"].partition("=")
        known[id] = {"Job_Name": options["-N"], "job_state": "Q", "queue": "batch", "Variable_List": {name: value}}
        known[id] |= {"qtime": time.strftime(_CLOCK), "comment": "Not Running: all nodes are busy"}
    print(id, flush=True)
    if os.fork() == 0:
        os.setsid()
        nobody = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nobody, stream)
        _carry_out(id, script, [f"n{number}" for number in range(int(count))])


def _carry_out(id: str, script: str, nodes: list[str]) -> None:
    time.sleep(_WAITS)
    with jobs() as known:
        if known[id]["job_state"] != "Q":
            return
        at = {"stime": time.strftime(_CLOCK), "exec_host": "+".join(f"{node}/0" for node in nodes)}
        known[id] |= {"job_state": "R", **at}
    env = {name: os.environ[name] for name in ("HOME", "USER", "PATH") if name in os.environ}
    env |= {"PBS_JOBID": id, "PBS_NODEFILE": "/nowhere", JOB: id, NODE: nodes[0]}
    status = subprocess.run(["bash", "-l"], input=script, text=True, env=env).returncode
    with jobs() as known:
        if known[id]["job_state"] == "R":
            known[id] |= {"Exit_status": status}
        known[id]["job_state"] = "F"


def qdel(*ids: str) -> None:
    """Tell all processes of jobs to end, and kill them after a while."""
    for number in ids:
        with jobs() as known:
            id = f"{number}.tests"
            if known[id]["job_state"] == "F":
                sys.exit("qdel: Job has finished")
            known[id] |= {"job_state": "E" if known[id]["job_state"] == "R" else "F", "Exit_status": 271}
        _end(id)


def _end(id: str, node: str | None = None) -> None:
    _signal(id, node, signal.SIGTERM)
    end = time.monotonic() + _GRACE
    while time.monotonic() < end and _processes(id, node):
        time.sleep(0.1)
    _signal(id, node, signal.SIGKILL)


def _processes(id: str, node: str | None) -> list[int]:
    wanted = {f"{JOB}={id}".encode(), *([f"{NODE}={node}".encode()] if node else [])}
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((place / "environ").read_bytes().split(b"\0")):
                found.append(int(place.name))
    return found


def _signal(id: str, node: str | None, number: int) -> None:
    for pid in _processes(id, node):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def qselect(*_: str) -> None:
    """Print the ids of all jobs."""
    with jobs() as known:
        print(*known, sep="\n")


def qstat(*options: str) -> None:
    """Print jobs as JSON."""
    with jobs() as known:
        print(json.dumps({"Jobs": {id: known[id] for id in options if id in known}}))


def qalter(_: str, variable: str, number: str) -> None:
    """Replace a job's variable."""
    name, _, value = variable.partition("=")
    with jobs() as known:
        known[f"{number}.tests"]["Variable_List"] = {name: value}


def pbs_release_nodes(_: str, number: str, *nodes: str) -> None:
    """Take nodes from a job."""
    id = f"{number}.tests"
    with jobs() as known:
        places = known[id]["exec_host"].split("+")
        known[id]["exec_host"] = "+".join(one for one in places if one.partition("/")[0] not in nodes)
    for node in nodes:
        _end(id, node)


def pbsdsh(_: str, *command: str) -> None:
    """Run a command on each node of the job."""
    id = os.environ["PBS_JOBID"]
    with jobs() as known:
        nodes = [one.partition("/")[0] for one in known[id]["exec_host"].split("+")]
    beside = [subprocess.Popen(command, env={**os.environ, NODE: node}) for node in nodes]
    sys.exit(max(one.wait() for one in beside))


def ssh(_: str, __: str, node: str, command: str) -> None:
    """Run a shell's line on a node."""
    os.execvpe("sh", ["sh", "-c", command], {**os.environ, NODE: node})


def pbs_attach(_: str, number: str, *command: str) -> None:
    """Run a command as one of the job's processes."""
    id = f"{number}.tests"
    with jobs() as known:
        if id not in known or known[id]["job_state"] != "R":
            sys.exit("pbs_attach: Unknown Job Id")
    os.execvpe(command[0], list(command), {**os.environ, JOB: id})


def hostname(*options: str) -> None:
    """Print the name of the node."""
    print(os.environ.get(NODE) or os.uname().nodename)


COMMANDS: tuple[Callable[..., None], ...] = (
    *(qsub, qdel, qselect, qstat, qalter, pbs_release_nodes, pbsdsh, ssh, pbs_attach, hostname),
)


def install(write: Callable[[str, str, int], None]) -> None:
    """Write the commands to a host: ``write`` takes a path, what is in it, and its mode."""
    for command in COMMANDS:
        write(f"/usr/local/bin/{command.__name__}", Path(__file__).read_text(), 0o755)
    write(str(STATE), "{}", 0o666)


if __name__ == "__main__":
    {command.__name__: command for command in COMMANDS}[Path(sys.argv[0]).name](*sys.argv[1:])
