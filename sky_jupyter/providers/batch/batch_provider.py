"""`BatchProvider`: base of schedulers' providers; one job has a pool's machines.

A scheduler's own provider has the scheduler's options as fields, and implements the methods below "what a scheduler
implements".
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from ...errors import MachineError, OrderSpent, ProvisionError, SpecError, Unanswered
from ...machines.batch import waiter
from ...node.host.power_file import GRACE
from ...util.background_tasks import map_all
from ...util.pool_cost import TimeLeft
from ...util.text import cleaned
from ...util.validate import check_flag
from .. import pool_listing
from ..line_options import LineOption
from ..provisioning_types import ENDED, QUEUED, QUEUED_POOL, RUNNING, MachineRecord, Offer, Order
from . import allocation_notice, batch_job, login_calls
from .batch_job import BatchJob, JobMark

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ...machines.batch.step_target import StepTarget
    from ...machines.ssh.target import Target
    from ...spec.pool_spec import PoolSpec
    from ..base import ConnectionSession
    from ..pool_listing import BoughtPool
    from .login_calls import LoginCalls

P = TypeVar("P", bound="BatchProvider")
_lock = threading.Lock()
_PATIENCE = 60.0
# Seconds after which any sweep may end a job that was left in the queue.
_MOST_QUEUED = 30 * 86_400.0
_LINES, _MOST_LOG = 10_000, 1 << 20
# Line of a job's log if its set-up failed, which ends the script: another job would fail too.
SETUP_FAILED = "sky: setup failed"
# Maximum lines and characters of a failed job's log in a message.
_TOLD_LINES, _MOST_TOLD = 4, 800
# `ssh` joins its arguments into one line for the node's shell, so each of them is quoted.
_BY_SSH = r"""
quote="'" quoted="'\\''" line=
for one; do line+=" '${one//$quote/$quoted}'"; done
exec ssh -o BatchMode=yes "$0" "exec$line"
"""
# Orders whose job this process has ended: a retried order must not submit another job.
_ended: set[tuple[str, str]] = set()
# Unix times at which jobs reach their time limit, from the last listing.
_limits: dict[tuple[str | None, str], float] = {}


class BatchStep(NamedTuple):
    """Words with which the login host runs commands on a node; see `StepTarget`."""

    enter: tuple[str, ...]
    raw: tuple[str, ...]
    address: str

    @classmethod
    def by_ssh(cls, node: str, *before: str) -> BatchStep:
        """Return a step that runs commands by the login host's own `ssh`.

        It is for schedulers that start steps only from within a job.

        ``before`` are words that make the command part of the job, such as ``"pbs_attach", "-j", "12"``.
        """
        words = ("bash", "-c", _BY_SSH, node, *before)
        return cls(words, words, node)


@dataclass(frozen=True)
class BatchProvider(ABC):
    """Base of providers of a batch scheduler's jobs."""

    kind: ClassVar[str] = "batch"
    provisions = True
    survives_manager = True
    queues = True
    has_prices = False
    power_file = waiter.POWER_FILE
    supported_options = ()
    notice = "sky_jupyter.providers.batch.allocation_notice:read"
    visible_within = 0.0

    line_options: ClassVar[Mapping[str, LineOption]] = {
        "login": LineOption("U@HOST", "a host, as for ssh", "the cluster's login host (this machine)", finds=True),
    }

    login: str | None = None
    offline: bool = field(default=False, compare=False)
    accept_host_keys: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        check_flag("offline", self.offline)
        check_flag("accept_host_keys", self.accept_host_keys)
        if self.login is not None:
            from ...machines.ssh.resolve_target import HostAddress

            HostAddress.parse(self.login)

    def __str__(self) -> str:
        return f"{self.kind} ({self.login})" if self.login else self.kind

    # Folder of the jobs' logs, below the home.
    logs: ClassVar[str] = ".sky_jupyter/batch"

    # -- what a scheduler implements ---------------------------------------------------------------

    @abstractmethod
    def script(self, spec: PoolSpec, count: int, order: Order) -> str:
        """Return the job's script, which runs `waiter.script` on each of its nodes."""

    @abstractmethod
    def submit(self, calls: LoginCalls, script: str) -> str:
        """Submit a script; return the job's id. Raises ProvisionError if it is refused."""

    @abstractmethod
    def listed(self, calls: LoginCalls) -> Sequence[BatchJob]:
        """Return this user's jobs that have a mark, also those that ended recently."""

    @abstractmethod
    def steps(self, calls: LoginCalls, job: BatchJob) -> Mapping[str, BatchStep]:
        """Return how to run commands on each node that a running job has."""

    @abstractmethod
    def remark(self, calls: LoginCalls, job: BatchJob, mark: JobMark) -> None:
        """Replace the mark of a job."""

    @abstractmethod
    def cancel(self, calls: LoginCalls, jobs: Sequence[str]) -> None:
        """End jobs; ignore those that have ended."""

    def keep(self, calls: LoginCalls, job: BatchJob, nodes: Sequence[str]) -> None:
        """Release a running job's other nodes; by default they stay, unused, to its end."""
        return

    def test(self, calls: LoginCalls, script: str) -> None:
        """Raise ProvisionError if a script would be refused; by default do nothing."""
        return

    # -- what every provider says ------------------------------------------------------------------

    @property
    def target(self) -> Target | None:
        """The login host; None for this machine."""
        if self.login is None:
            return None
        from ...machines.ssh.resolve_target import resolve

        return resolve(self.login)

    @property
    def calls(self) -> LoginCalls:
        """The commands on the login host."""
        return login_calls.of(self.target, accept=self.accept_host_keys)

    def default_nodes(self) -> int:
        """Return 1."""
        return 1

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Return None: nodes are asked for as needed."""
        return None

    def resized(self: P, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> P:
        """Return the same provider; raise SpecError if machines are added by name."""
        if add:
            raise SpecError("nodes are given by the scheduler, not added by name: say how many there shall be")
        return self

    def recipe(self) -> Mapping[str, Any]:
        """Return the fields that are set."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    @classmethod
    def restore(cls: type[P], recipe: Mapping[str, Any]) -> P:
        """Return a provider made from its recipe."""
        return cls(**recipe)

    def account_name(self) -> str:
        """Return the login host."""
        return self.login or "this machine"

    def pools(self) -> Sequence[BoughtPool]:
        """Return the user's pools, found by jobs' marks, also those of other computers."""
        return pool_listing.pools(self)

    def all_regions(self) -> Sequence[str]:
        """Return nothing: a login host has one cluster."""
        return ()

    def forget(self, pool: str) -> None:
        """Do nothing: no files are kept of a pool."""
        return

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return one offer: only the scheduler knows what it can allocate."""
        asked = spec.accelerator
        return [Offer("job", None, asked.kind if asked else "", asked.count if asked else 0)]

    def jobs(self) -> Sequence[BatchJob]:
        """Return the user's jobs, from a listing that is at most a few seconds old."""
        calls = self.calls
        found = calls.jobs(lambda: self.listed(calls))
        for job in found:
            if job.ends is not None and job.state == RUNNING:
                _limits[self.login, job.id] = job.ends
            else:
                _limits.pop((self.login, job.id), None)
        return found

    def time_left(self, ids: Sequence[str]) -> TimeLeft | None:
        """Return the shortest known time left of the machines' jobs, without a call."""
        ends = [_limits[self.login, id] for id in batch_job.by_job(ids) if (self.login, id) in _limits]
        return TimeLeft(min(ends), time.time()) if ends else None

    # -- jobs --------------------------------------------------------------------------------------

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Submit a job of ``count`` nodes unless one exists; return its machines' ids."""
        calls = self.calls
        with _lock:
            if (order.pool, order.token) in _ended:
                raise OrderSpent(f"{self}: the job of this order was cancelled")
        for job in self.jobs():
            if (job.mark.pool, job.mark.token) == (order.pool, order.token):
                if job.state == ENDED:
                    raise OrderSpent(f"{self}: job {job.id} of this order has ended: {job.reason}")
                return [job.machine(index) for index in range(job.mark.count)]
            if job.mark.token == self.left_in_queue(spec, count) and job.state in (QUEUED, RUNNING):
                self.remark(calls, job, replace(JobMark.of(order, count), hosts=job.mark.hosts))
                calls.changed()
                return [job.machine(index) for index in range(count)]
        return self._submitted(spec, count, order)

    def _submitted(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        calls, script = self.calls, self.script(spec, count, order)
        self.test(calls, script)
        try:
            id = self.submit(calls, script)
        finally:
            calls.changed()
        self._must_be_found(id)
        return [f"{id}/{index}" for index in range(count)]

    def _must_be_found(self, id: str) -> None:
        """Cancel a new job that is not listed by its mark: nobody would end it."""
        try:
            jobs = self.jobs()
        except Unanswered:
            return
        if all(job.id != id for job in jobs):
            self.cancel(self.calls, [id])
            raise ProvisionError(
                f"{self}: job {id} was submitted and is cancelled: it is not listed with the mark by which pools find "
                "their jobs. The cluster, or an option given as extra, may have changed its comment"
            )

    def preview(self, spec: PoolSpec) -> str:
        """Return the script of a pool's job, and whether the scheduler would take it."""
        script = self.script(spec, spec.nodes, Order("POOL", "ORDER", name=spec.name))
        try:
            self.test(self.calls, script)
        except Unanswered:
            raise
        except ProvisionError as error:
            return f"{script}\n# It would be refused: {error}"
        return f"{script}\n# It would be taken."

    def enqueue(self, spec: PoolSpec) -> str:
        """Submit a job to which the same line attaches later; return what was done."""
        token = self.left_in_queue(spec, spec.nodes)
        for job in self.jobs():
            if job.mark.token == token and job.state in (QUEUED, RUNNING):
                return f"job {job.id} for pool {spec.name} is there already: {job.reason or job.state}"
        order = Order(f"{QUEUED_POOL}{spec.name}", token, until=time.time() + _MOST_QUEUED, name=spec.name)
        id = self._submitted(spec, spec.nodes, order)[0].partition("/")[0]
        return (
            f"job {id} for pool {spec.name} is submitted: `%sky attach {spec.name}`, or the same line without "
            f"--detach, attaches to it, now or when it runs; otherwise it ends {GRACE / 60:.0f} min after its start"
        )

    def is_left_in_queue(self, spec: PoolSpec) -> bool:
        """Return True if a job from `enqueue` waits or runs and no pool has taken it."""
        token = self.left_in_queue(spec, spec.nodes)
        return any(job.mark.token == token and job.state in (QUEUED, RUNNING) for job in self.jobs())

    def left_in_queue(self, spec: PoolSpec, count: int) -> str:
        """Return the token of a job from `enqueue`, unique to the pool and its options."""
        script = self.script(spec, count, Order("", "", name=spec.name))
        return f"queued{hashlib.sha256(script.encode()).hexdigest()[:16]}"

    def console(self, id: str, *, previous: bool = False, lines: int | None = None) -> str:
        """Return the newest log lines of a machine's job; see `LoggingProvider.console`."""
        job = id.partition("/")[0]
        if not job.isalnum():
            raise ProvisionError(f"{id} is not a node of a job: they are called JOB/INDEX")
        script = f'tail -n {lines or _LINES} "$HOME/{self.logs}/{job}.log" | tail -c {_MOST_LOG}'
        done = self.calls.run(["sh", "-c", script])
        if not done.out and done.err:
            raise ProvisionError(
                f"job {job} has no log on {self.calls}: it has not begun, or its nodes have another home than that"
            )
        return done.out.decode("utf-8", "replace")

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return the machines of a pool's jobs, or of all."""
        return [one for job in self.jobs() if pool in (None, job.mark.pool) for one in job.records()]

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return machines' states; ``"ended"`` for those whose job is unknown."""
        found = {one.id: (job, one) for job in self.jobs() for one in job.records()}
        unknown = MachineRecord("", ENDED, reason="the scheduler knows no such job")
        return [self._explained(*found[id]) if id in found else replace(unknown, id=id) for id in ids]

    def _explained(self, job: BatchJob, record: MachineRecord) -> MachineRecord:
        """Return the record with the log's last lines if the job's own script failed."""
        if not job.failed:
            return record
        with contextlib.suppress(ProvisionError):
            lines = self.console(record.id, lines=_TOLD_LINES).strip().splitlines()
            said = f"{record.reason}; its log (~/{self.logs}/{job.id}.log) ends with: {' | '.join(lines)}"
            return replace(record, reason=cleaned(said)[:_MOST_TOLD], hopeless=SETUP_FAILED in lines)
        return record

    def destroy(self, ids: Sequence[str]) -> None:
        """End jobs whose machines are all named; release single nodes of other jobs."""
        calls, jobs = self.calls, {job.id: job for job in self.jobs()}
        over, unknown = [], list[str]()
        for id, several in batch_job.by_job(ids).items():
            job = jobs.get(id)
            if job is None:
                unknown.append(id)
                continue
            if all(one.state == ENDED for one in job.records()):
                continue
            left = [one for one in job.records() if one.is_there and one.id not in several.values()]
            if not left:
                over.append(job)
            elif job.state == RUNNING:
                job = self._marked(calls, job)
                kept = [one.zone for one in left]
                self._clear(calls, job, [node for node in job.nodes if node not in kept])
                self.keep(calls, job, kept)
                calls.changed()
        if over or unknown:
            with _lock:
                _ended.update((job.mark.pool, job.mark.token) for job in over)
            try:
                # An unknown job may have lost its mark, and is ended too. One that the scheduler has forgotten is over.
                self.cancel(calls, [*(job.id for job in over), *unknown])
            finally:
                calls.changed()

    def _clear(self, calls: LoginCalls, job: BatchJob, nodes: Sequence[str]) -> None:
        """End nodes' waiters, which clean up.

        When a node is released, its processes are killed without warning.
        """
        steps = self.steps(calls, job)

        def clear(node: str) -> None:
            if node in steps:
                calls.run([*steps[node].enter, "/bin/sh", "-c", waiter.ending(node_folder(job.incarnation, node))])

        with contextlib.suppress(ProvisionError):
            map_all(clear, nodes, "sky-clear", most=8)

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
        """Connect to the nodes of running jobs, over the session's link if it has one."""
        from .. import pod_connections, ssh_connections

        found = self._targets(ids)
        open = pod_connections.step_opener(session, accept=self.accept_host_keys)
        return ssh_connections.connect_all(lambda name: self._told(name, open(found[name])), ids)

    def _told(self, id: str, machine: Machine) -> Machine:
        """Tell a node when its job ends."""
        ends = _limits.get((self.login, id.partition("/")[0]))
        if ends is not None:
            file = f'"${allocation_notice.FOLDER}"/{allocation_notice.ENDS}'
            with contextlib.suppress(MachineError, TimeoutError):
                machine.run(f"echo {ends:.0f} >{file}", timeout=_PATIENCE)
        return machine

    def _targets(self, ids: Sequence[str]) -> dict[str, StepTarget]:
        from ...machines.batch.step_target import StepTarget

        calls, login, found = self.calls, self.target, {}
        jobs = {job.id: job for job in self.jobs()}
        for id, several in batch_job.by_job(ids).items():
            job = jobs.get(id)
            if job is None or job.state != RUNNING:
                told = "the scheduler knows no such job" if job is None else f"it is {job.state}: {job.reason}"
                raise MachineError(next(iter(several.values())), "closed", told)
            job = self._marked(calls, job)
            steps = self.steps(calls, job)
            for index, name in several.items():
                node = job.first_nodes[index] if index < len(job.first_nodes) else ""
                if node not in steps:
                    raise MachineError(name, "gone", f"node {node or index} does not belong to job {id} any more")
                step = steps[node]
                folder = node_folder(job.incarnation, node)
                found[name] = StepTarget(
                    *(f"{name} ({node})", node, job.incarnation, step.enter, step.raw, folder, step.address, login)
                )
        return found

    def _marked(self, calls: LoginCalls, job: BatchJob) -> BatchJob:
        """Write the nodes that a running job began with into its mark; return the job."""
        start = f"{job.restarts}/"
        if job.mark.hosts.startswith(start) or len(job.nodes) != job.mark.count:
            return job
        mark = replace(job.mark, hosts=start + ",".join(job.nodes))
        with contextlib.suppress(ProvisionError):
            self.remark(calls, job, mark)
            calls.changed()
        return replace(job, mark=mark)


def node_folder(incarnation: str, node: str) -> str:
    """Return the folder of a job's start on a node; arguments may be shell variables."""
    return f"/tmp/sky-job-{incarnation}.{node}"


__all__ = ["SETUP_FAILED", "BatchProvider", "BatchStep", "node_folder"]
