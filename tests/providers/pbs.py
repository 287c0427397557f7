"""Provider of PBS jobs, as another distribution would have it: what CONTRIBUTING says of a batch scheduler.

It is written for OpenPBS's commands, and tried on scripts that stand in for them (`tests/providers/pbs_commands.py`).
"""

from __future__ import annotations

import getpass
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sky_jupyter.machines.batch import waiter
from sky_jupyter.machines.ssh import scripts
from sky_jupyter.providers.batch.batch_job import BatchJob, JobMark, waiting
from sky_jupyter.providers.batch.batch_provider import BatchProvider, BatchStep, node_folder
from sky_jupyter.providers.line_options import LineOption
from sky_jupyter.providers.provisioning_types import ENDED, ENDING, QUEUED, RUNNING, Order

if TYPE_CHECKING:
    from sky_jupyter.providers.batch.login_calls import LoginCalls
    from sky_jupyter.spec.pool_spec import PoolSpec

_STATES = {"Q": QUEUED, "H": QUEUED, "W": QUEUED, "T": QUEUED, "R": RUNNING, "S": RUNNING, "E": ENDING}
_SCRIPT = """\
#!/bin/bash -l
{head}
umask 077
mkdir -p "$HOME/{logs}" && exec >>"$HOME/{logs}/${{PBS_JOBID%%.*}}.log" 2>&1
{setup}
exec pbsdsh -- sh -c {wait}
"""


@dataclass(frozen=True)
class PBS(BatchProvider):
    """One job of a PBS cluster for each pool.

    Parameters
    ----------
    login : str, optional
        The login host; this machine by default.
    queue : str, optional
        Queue; the cluster's default unless given.
    resources : str, optional
        Resources of each node, such as ``"ncpus=8:ngpus=4"``.
    walltime : str, optional
        Time limit, such as ``"02:00:00"``.
    setup : str
        Shell lines that run first in the job.
    """

    kind: ClassVar[str] = "pbs"
    logs: ClassVar[str] = ".sky_jupyter/pbs"
    line_options: ClassVar[Mapping[str, LineOption]] = {
        **BatchProvider.line_options,
        "queue": LineOption("NAME", "a name", "the queue (the cluster's default)"),
        "resources": LineOption("K=V:K=V", "resources such as ncpus=8:ngpus=4", "resources of each node"),
        "walltime": LineOption("T", "hours, minutes and seconds", "the job's time limit (the queue's)"),
    }

    queue: str | None = None
    resources: str | None = None
    walltime: str | None = None
    setup: str = ""

    def script(self, spec: PoolSpec, count: int, order: Order) -> str:
        """Return the job's script, which runs the waiter on each of its nodes."""
        chunk = f"{count}:{self.resources}" if self.resources else str(count)
        head = [f"#PBS -N sky-{order.name or spec.name}", "#PBS -r n -j oe -o /dev/null"]
        head += [f"#PBS -l select={chunk} -l place=scatter", f"#PBS -v {_variable(JobMark.of(order, count))}"]
        head += [f"#PBS -q {self.queue}"] * bool(self.queue) + [f"#PBS -l walltime={self.walltime}"] * bool(
            self.walltime
        )
        own = f'"{node_folder("${PBS_JOBID%%.*}.0", "$(hostname -s)")}"'
        wait = shlex.quote(f"exec {waiter.script(order.until, own, scripts.LAUNCH)}")
        return _SCRIPT.format(head="\n".join(head), logs=self.logs, setup=self.setup, wait=wait)

    def submit(self, calls: LoginCalls, script: str) -> str:
        """Submit a script; return the job's number."""
        return calls.ask(["qsub"], script).strip().partition(".")[0]

    def listed(self, calls: LoginCalls) -> Sequence[BatchJob]:
        """Return this user's jobs that have a mark."""
        user = self.target.user if self.target is not None else getpass.getuser()
        ids = calls.ask(["qselect", "-x", "-u", str(user)]).split()
        said = json.loads(calls.ask(["qstat", "-x", "-f", "-F", "json", *ids])) if ids else {}
        found = [_job(id.partition(".")[0], one) for id, one in said.get("Jobs", {}).items()]
        return [job for job in found if job is not None]

    def steps(self, calls: LoginCalls, job: BatchJob) -> Mapping[str, BatchStep]:
        """Return how commands are run on a job's nodes: `pbsdsh` works within the job only."""
        return {node: BatchStep.by_ssh(node, "pbs_attach", "-j", job.id) for node in job.nodes}

    def remark(self, calls: LoginCalls, job: BatchJob, mark: JobMark) -> None:
        """Replace the mark of a job."""
        calls.ask(["qalter", "-v", _variable(mark), job.id])

    def cancel(self, calls: LoginCalls, jobs: Sequence[str]) -> None:
        """End jobs; ignore those that have ended."""
        argv = ["qdel", *jobs]
        done = calls.run(argv)
        if done.status and b"finished" not in done.err and b"Unknown Job" not in done.err:
            raise calls.refused(argv, done)

    def keep(self, calls: LoginCalls, job: BatchJob, nodes: Sequence[str]) -> None:
        """Give back all other nodes of a running job."""
        calls.ask(["pbs_release_nodes", "-j", job.id, *(node for node in job.nodes if node not in nodes)])


def _variable(mark: JobMark) -> str:
    """Return the mark as a variable of the job: commas part variables."""
    return f"SKY_MARK={str(mark).replace(',', '%2C')}"


def _job(id: str, said: Mapping[str, Any]) -> BatchJob | None:
    mark = JobMark.parse(said.get("Variable_List", {}).get("SKY_MARK", ""))
    if mark is None:
        return None
    state = _STATES.get(said["job_state"], ENDED)
    begins = _moment(said.get("stime") or said.get("estimated", {}).get("start_time"))
    reason = {QUEUED: waiting("pending", said.get("comment", ""), begins), RUNNING: ""}.get(state, _end(said))
    nodes = tuple(dict.fromkeys(one.partition("/")[0] for one in said.get("exec_host", "").split("+") if one))
    limit = [int(part) for part in said.get("Resource_List", {}).get("walltime", "0:0:0").split(":")]
    ends = begins + limit[0] * 3600 + limit[1] * 60 + limit[2] if begins and any(limit) else None
    nodes = () if state == QUEUED else nodes
    return BatchJob(id, mark, state, reason, nodes, 0, said.get("queue", ""), _moment(said.get("qtime")), begins, ends)


def _end(said: Mapping[str, Any]) -> str:
    """Return in words how a job ended: 256 and more is a signal, -29 the time limit."""
    status = int(said.get("Exit_status", 0))
    if status == -29:
        return "the job has reached its time limit"
    return "the job was deleted (qdel)" if status >= 256 else f"the job has ended (status {status})"


def _moment(text: str | None) -> float | None:
    return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y")) if text else None


__all__ = ["PBS"]
