"""Slurm's commands in fixed formats: their words, and what their output means."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import ProvisionError
from ..batch.batch_job import BatchJob, JobMark, waiting
from ..batch.batch_provider import BatchStep
from ..provisioning_types import ENDED, ENDING, QUEUED, RUNNING

if TYPE_CHECKING:
    from ..batch.login_calls import LoginCalls

# The comment is last, as it may contain any character.
_FORMAT = "%i|%T|%r|%S|%e|%V|%P|%D|%N|%Q|%k"
_FIELDS = 11
# States of `squeue`. In the others, the job has ended.
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_RUNS = ("RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
_GOES = ("COMPLETING",)
_ENDS: Mapping[str, str] = {
    "COMPLETED": "the job has ended: its lease is over, or its pool has",
    "CANCELLED": "the job was cancelled (scancel)",
    "TIMEOUT": "the job has reached its time limit",
    "DEADLINE": "the job has reached its deadline",
    "PREEMPTED": "the job was preempted by another one",
    "NODE_FAIL": "a node of the job failed",
    "BOOT_FAIL": "a node of the job did not boot",
    "OUT_OF_MEMORY": "the job has used more memory than it asked for (--mem)",
    "FAILED": "the job's script failed",
    "REVOKED": "the job was moved to another cluster",
}
_REQUEUED = "the job was preempted by another one, or requeued, and waits in the queue again"
# Reasons of a job that is completing.
_CAUSES: Mapping[str, str] = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
# Reasons of jobs that delay no other job: they could not begin now, however many nodes were free.
_HELD = ("BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldAdmin", "JobHeldUser", "PartitionTimeLimit")
_NODE = re.compile(r"\bNodeName=(\S+)")
_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")


def listed(calls: LoginCalls) -> list[BatchJob]:
    """Return this user's marked jobs from one `squeue`, which is asked for UTC times."""
    text = calls.ask(["env", "TZ=UTC", "squeue", "--me", "-h", "-t", "all", "-o", _FORMAT])
    rows = [row for line in text.splitlines() if len(row := line.split("|", _FIELDS - 1)) == _FIELDS]
    marked = [(row, mark) for row in rows if (mark := JobMark.parse(row[-1])) is not None]
    # (No more is needed of a pending job, which may wait for days.)
    asked = {*_WAITS, *_RUNS, *_GOES, "FAILED"} - {"PENDING"}
    more = {row[0]: _more(calls, row[0]) for row, _ in marked if row[1] in asked}
    nodes = expanded(calls, [row[8] for row, _ in marked])
    found = [_job(row, mark, nodes.get(row[8], ()), *more.get(row[0], (0, False, False))) for row, mark in marked]
    return [
        _placed(calls, job, row) if row[1] == "PENDING" else job for job, (row, _) in zip(found, marked, strict=True)
    ]


def _placed(calls: LoginCalls, job: BatchJob, row: Sequence[str]) -> BatchJob:
    """Return a waiting job with the number of jobs ahead of it, if that is known."""
    partitions, own = set(row[6].split(",")), row[9]
    if not own.isdecimal() or row[2] in _HELD:
        return job
    ahead = 0
    for line in calls.ask_rarely(["squeue", "-h", "-t", "PENDING", "-o", "%Q|%r|%P|%i"]).splitlines():
        priority, _, rest = line.partition("|")
        why, _, rest = rest.partition("|")
        queue, _, id = rest.partition("|")
        if priority.isdecimal() and why not in _HELD and partitions & set(queue.split(",")) and id != job.id:
            ahead += int(priority) > int(own)
    return replace(job, reason=waiting(row[1], row[2], job.started, ahead)) if ahead else job


def _more(calls: LoginCalls, id: str) -> tuple[int, bool, bool]:
    """Return what `squeue` lacks: restarts, and whether preempted and requeueable."""
    argv = ["scontrol", "-o", "show", "job", id]
    done = calls.run(argv)
    if done.status and b"invalid job id" not in done.err.lower():
        # Without the number, the job's nodes would be those of another start.
        raise calls.refused(argv, done)
    said = done.out.decode("utf-8", "replace")
    restarts = re.search(r"\bRestarts=(\d+)", said)
    return int(restarts[1]) if restarts else 0, bool(re.search(r"\bPreemptTime=\d", said)), " Requeue=1 " in said


def _job(
    row: Sequence[str], mark: JobMark, nodes: tuple[str, ...], restarts: int, preempted: bool, requeues: bool
) -> BatchJob:
    id, said, why, started, ends, submitted, queue = row[:7]
    begins = _moment(started)
    if said in _WAITS:
        state, reason, nodes = QUEUED, waiting(said, why, begins), ()
    elif said in _RUNS:
        # A suspended job keeps its nodes and processes, and continues later.
        state, reason = RUNNING, f"the job is suspended ({why})" if said == "SUSPENDED" else ""
    elif said in _GOES:
        # Slurm says only afterwards how it ended.
        cause = "PREEMPTED" if preempted else _CAUSES.get(why, "")
        state, reason = ENDING, _ENDS.get(cause, "the job was cancelled (scancel), or its nodes have ended")
        if requeues and cause != "TIMEOUT":
            # Slurm calls a requeued job pending only when all of it has ended. Here it counts as queued before that,
            # so that it can be cancelled.
            start, _, _ = mark.hosts.partition("/")
            again = start.isdecimal() and restarts > int(start)
            state, nodes, reason = QUEUED, (), _REQUEUED if again else f"{reason}; Slurm may queue it again"
    else:
        state = ENDED
        reason = _ENDS.get(said, f"the job is {said.lower()}")
        if said == "FAILED" and preempted:
            # The script ended by itself within the grace time, so that Slurm does not call it preempted.
            reason = _ENDS["PREEMPTED"]
        reason += f" ({why})" if why not in ("None", "", said, "NonZeroExitCode") else ""
    failed = said == "FAILED" and not preempted
    return BatchJob(id, mark, state, reason, nodes, restarts, queue, _moment(submitted), begins, _moment(ends), failed)


def _moment(text: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def expanded(calls: LoginCalls, lists: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of lists such as ``n[0-3]``; only brackets need `scontrol`."""
    found: dict[str, tuple[str, ...]] = {}
    for one in dict.fromkeys(lists):
        if "[" in one:
            found[one] = tuple(calls.ask(["scontrol", "show", "hostnames", one]).split())
        else:
            found[one] = tuple(filter(None, one.split(",")))
    return found


def steps(calls: LoginCalls, job: BatchJob) -> dict[str, BatchStep]:
    """Return how to run commands on a job's nodes."""
    text = calls.ask(["scontrol", "-o", "show", "node", ",".join(job.nodes)])
    found = {}
    for line in text.splitlines():
        name, address = _NODE.search(line), _ADDRESS.search(line)
        if name is not None:
            node = name[1]
            where = ["--overlap", "--quiet", "--cpu-bind=none", "-N1", "-n1", f"--jobid={job.id}", "-w", node]
            found[node] = BatchStep(
                ("srun", *where), ("srun", "--unbuffered", *where), address[1] if address is not None else node
            )
    return found


def submit(calls: LoginCalls, script: str) -> str:
    """Submit a script over standard input; return the job's id."""
    said = calls.ask(["sbatch", "--parsable"], script)
    # A site's own plugins may print lines before it.
    id = said.strip().splitlines()[-1].partition(";")[0].strip() if said.strip() else ""
    if not id.isdecimal():
        raise ProvisionError(f"sbatch on {calls} gave no job's id, but {said[:200]!r}")
    return id


def test(calls: LoginCalls, script: str) -> None:
    """Raise ProvisionError if Slurm would refuse a script, such as for its account."""
    calls.ask(["sbatch", "--test-only"], script)


def cancel(calls: LoginCalls, jobs: Sequence[str]) -> None:
    """End jobs; ignore those that have ended."""
    done = calls.run(["scancel", *jobs])
    said = done.err.decode("utf-8", "replace")
    if done.status and not re.search(r"invalid job id|already completing", said, re.IGNORECASE):
        raise calls.refused(["scancel"], done)


def keep(calls: LoginCalls, job: BatchJob, nodes: Sequence[str]) -> None:
    """Shrink a running job to some of its nodes."""
    calls.ask(["scontrol", "update", f"JobId={job.id}", f"NodeList={','.join(nodes)}"])


def remark(calls: LoginCalls, job: BatchJob, mark: JobMark) -> None:
    """Replace a job's comment."""
    calls.ask(["scontrol", "update", f"JobId={job.id}", f"Comment={mark}"])


__all__ = ["cancel", "expanded", "keep", "listed", "remark", "steps", "submit", "test"]
