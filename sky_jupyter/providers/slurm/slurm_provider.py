"""`Slurm`: one allocation of a Slurm cluster for each pool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import SpecError
from ...util.validate import brief, check_flag, is_whole
from .. import provider_registry
from ..batch.batch_provider import BatchProvider
from ..line_options import LineOption
from . import job_script, slurm_commands

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from ..batch.batch_job import BatchJob, JobMark
    from ..batch.batch_provider import BatchStep
    from ..batch.login_calls import LoginCalls
    from ..provisioning_types import Order

_WORD = r"[^\s\x00-\x1f'\"\\|]{1,200}"
_TIME = r"\d{1,7}|\d{1,5}:\d{2}(:\d{2})?|\d{1,4}-\d{1,2}(:\d{2}){0,2}|UNLIMITED|INFINITE"
_TEXTS = {
    "partition": (_WORD, "a partition, such as 'gpu', or several with a comma between"),
    "account": (_WORD, "an account to charge"),
    "qos": (_WORD, "a quality of service"),
    "gres": (_WORD, "resources such as 'gpu:a100:4'"),
    "constraint": (_WORD, "features of nodes, such as 'a100&nvlink'"),
    "mem": (r"\d{1,9}[KMGT]?", "the memory of a node, such as '64G' (0 for all that it has)"),
    "reservation": (_WORD, "a reservation's name"),
    "gpus_per_node": (r"([A-Za-z0-9_.-]+:)?\d{1,4}", "a number of GPUs, or such as 'a100:4'"),
}
# Options that the user must not give, as the pool could not find or use the job then; and their short forms.
_NEEDED = ("array", "clusters", "comment", "nodes", "parsable", "test-only", "wait")
_SHORT = {"-a": "array", "-M": "clusters", "-N": "nodes", "-W": "wait"}
_LENGTH = re.compile(r"(?P<number>\d{1,6}(\.\d{1,3})?)\s*(?P<unit>[smhd])\Z")
_MINUTES = {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}


@dataclass(frozen=True)
class Slurm(BatchProvider):
    """One job of a Slurm cluster for each pool, submitted and ended with it.

    Parameters
    ----------
    login : str, optional
        The cluster's login host, as for ``ssh``; this machine by default, which must have Slurm's commands.
    offline : bool
        True to send nodes all packages from here.
    accept_host_keys : bool
        True to accept a login host that is not in known_hosts, and add it.
    partition : str, optional
        Partition; the cluster's default one unless given.
    account : str, optional
        Account that is charged.
    qos : str, optional
        Quality of service.
    time : str or int, optional
        Time limit of the job, such as ``"2h"``, ``"1-12:00:00"``, or minutes; the partition's by default.
    gpus_per_node : int or str, optional
        GPUs of each node, such as 4 or ``"a100:4"``.
    gres : str, optional
        Generic resources of each node, where the site wants them in place of ``gpus_per_node``.
    constraint : str, optional
        Features that nodes must have.
    mem : str or int, optional
        Memory of each node, such as ``"64G"``, or megabytes.
    cpus_per_task : int, optional
        Processors of each node; a pool has one task on each.
    exclusive : bool
        True for whole nodes.
    reservation : str, optional
        Reservation to run in.
    setup : str, optional
        Shell lines that run first in the job, in a login shell, such as ``"module load cuda"``.
    extra : str or iterable of str
        Further options of ``sbatch``, such as ``"--mail-type=END"``. An option that the pool sets is left out if its
        name is given after an exclamation mark: ``"!no-kill"``.
    requeue : bool
        True to requeue a preempted job; the pool then starts in it by itself, with new kernels.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """

    kind: ClassVar[str] = "slurm"
    logs: ClassVar[str] = job_script.LOGS
    line_options: ClassVar[Mapping[str, LineOption]] = {
        **BatchProvider.line_options,
        "partition": LineOption("NAME", "a name", "the partition (the cluster's default)"),
        "account": LineOption("NAME", "a name", "the account that is charged"),
        "qos": LineOption("NAME", "a name", "the quality of service"),
        "time": LineOption("T", "a length of time such as 2h or 1-12:00:00", "the job's time limit (the partition's)"),
        "gpus_per_node": LineOption("N", "a number, or such as a100:4", "GPUs of each node"),
        "gres": LineOption("G", "resources such as gpu:4", "generic resources of each node"),
        "constraint": LineOption("C", "features of nodes", "features that nodes must have"),
        "mem": LineOption("SIZE", "a size such as 64G", "memory of each node"),
        "cpus_per_task": LineOption("N", "a whole number", "processors of each node"),
        "setup": LineOption("LINES", "shell lines", "what runs first in the job, such as 'module load cuda'"),
        "extra": LineOption("OPTIONS", "options of sbatch", "further options of sbatch, such as --mail-type=END"),
        "exclusive": LineOption("", "", "whole nodes"),
        "requeue": LineOption("", "", "queue a preempted job again; the pool starts in it by itself"),
    }

    partition: str | None = None
    account: Any = None
    qos: str | None = None
    time: str | None = None
    gpus_per_node: str | None = None
    gres: str | None = None
    constraint: str | None = None
    mem: str | None = None
    cpus_per_task: int | None = None
    exclusive: bool = False
    reservation: str | None = None
    setup: str | None = None
    extra: tuple[str, ...] = ()
    requeue: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gpus_per_node", "mem"):
            if is_whole(value := getattr(self, name)):
                object.__setattr__(self, name, str(value))
        object.__setattr__(self, "time", _time(self.time))
        object.__setattr__(self, "extra", _extra(self.extra))
        if isinstance(cpus := self.cpus_per_task, str) and cpus.isdecimal():
            object.__setattr__(self, "cpus_per_task", int(cpus))
        if self.cpus_per_task is not None and not is_whole(self.cpus_per_task, 1, 1 << 16):
            raise SpecError(f"cpus_per_task must be a whole number from 1, not {brief(self.cpus_per_task)}")
        for name, (pattern, form) in _TEXTS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not re.fullmatch(pattern, value)):
                raise SpecError(f"{name} must be {form}, not {brief(value)}")
        for name in ("exclusive", "requeue"):
            check_flag(name, getattr(self, name))
        if self.setup is not None and (not isinstance(self.setup, str) or "\0" in self.setup):
            raise SpecError(f"setup must be shell lines such as 'module load cuda', not {brief(self.setup)}")
        if self.gres is not None and self.gpus_per_node is not None:
            raise SpecError("gres and gpus_per_node say the same: give the one that the site wants")

    def asked(self, spec: PoolSpec) -> dict[str, str | None]:
        """Return the user's wishes as long `sbatch` options, without dashes."""
        names = ("partition", "account", "qos", "time", "gpus_per_node", "gres", "constraint", "mem", "cpus_per_task")
        given: dict[str, Any] = {name: getattr(self, name) for name in (*names, "reservation")}
        if spec.accelerator is not None and self.gres is None and self.gpus_per_node is None:
            given["gpus_per_node"] = str(spec.accelerator.count)
        found: dict[str, str | None] = {name: str(value) for name, value in given.items() if value is not None}
        return {**found, **({"exclusive": None} if self.exclusive else {})}

    # -- what `BatchProvider` needs ----------------------------------------------------------------

    def script(self, spec: PoolSpec, count: int, order: Order) -> str:
        """Return the job's script."""
        return job_script.text(self, spec, count, order)

    def test(self, calls: LoginCalls, script: str) -> None:
        """Raise ProvisionError if Slurm would refuse a script."""
        slurm_commands.test(calls, script)

    def submit(self, calls: LoginCalls, script: str) -> str:
        """Submit a script; return the job's id."""
        return slurm_commands.submit(calls, script)

    def listed(self, calls: LoginCalls) -> Sequence[BatchJob]:
        """Return this user's jobs that have a mark."""
        return slurm_commands.listed(calls)

    def steps(self, calls: LoginCalls, job: BatchJob) -> Mapping[str, BatchStep]:
        """Return how to run commands on a job's nodes."""
        return slurm_commands.steps(calls, job)

    def remark(self, calls: LoginCalls, job: BatchJob, mark: JobMark) -> None:
        """Replace a job's comment."""
        slurm_commands.remark(calls, job, mark)

    def cancel(self, calls: LoginCalls, jobs: Sequence[str]) -> None:
        """End jobs."""
        slurm_commands.cancel(calls, jobs)

    def keep(self, calls: LoginCalls, job: BatchJob, nodes: Sequence[str]) -> None:
        """Shrink a running job to some of its nodes."""
        slurm_commands.keep(calls, job, nodes)


def _time(value: Any) -> str | None:
    """Return a time limit as Slurm reads it."""
    if value is None:
        return None
    text = str(value).strip() if isinstance(value, str) or is_whole(value, 1) else ""
    if (found := _LENGTH.match(text)) is not None:
        return str(max(1, round(float(found["number"]) * _MINUTES[found["unit"]])))
    if re.fullmatch(_TIME, text):
        return text
    raise SpecError(f"time must be such as '2h', '90m', '1-12:00:00' or minutes, not {brief(value)}")


def _extra(value: Any) -> tuple[str, ...]:
    given = value.split() if isinstance(value, str) else value
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        given = [None]
    found = tuple(given)
    for one in found:
        if isinstance(one, str) and (own := _found_by(one)):
            raise SpecError(f"extra cannot contain --{own}: the pool sets it itself")
        if not isinstance(one, str) or not re.fullmatch(r"[-!][^\n\r\0]{1,500}", one):
            raise SpecError(f"extra must be options such as '--mail-type=END' or '!no-kill', not {brief(one)}")
    return found


def _found_by(one: str) -> str:
    """Return the required option that a user's option overrides or removes, or ""."""
    if one.startswith("!"):
        name = one[1:].lstrip("-")
        return name if name in _NEEDED else ""
    for word in one.split():
        # Slurm accepts the beginning of an option's name.
        name = word[2:].partition("=")[0] if word.startswith("--") else _SHORT.get(word[:2], "")
        for needed in _NEEDED:
            if len(name) > 2 and needed.startswith(name):
                return needed
    return ""


provider_registry.register(Slurm)

__all__ = ["Slurm"]
