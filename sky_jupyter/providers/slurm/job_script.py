"""Script of a pool's job, as it is submitted and shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ...machines.batch import waiter
from ...machines.ssh import scripts
from ..batch.batch_job import JobMark
from ..batch.batch_provider import SETUP_FAILED, node_folder

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from ..provisioning_types import Order

# Seconds before the time limit at which the job is signalled.
WARNED = 120
LOGS = ".sky_jupyter/slurm"
_BODY = """\
umask 077
mkdir -p "$HOME/{logs}" && exec >>"$HOME/{logs}/$SLURM_JOB_ID.log" 2>&1
echo "sky: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start ${{SLURM_RESTART_COUNT:-0}}"
{setup}\
on_nodes() {{ srun --export=ALL --cpu-bind=none --input=none --no-kill --kill-on-bad-exit=0 --ntasks-per-node=1 "$@"; }}
# Slurm signals this script before the time limit; the nodes' processes find the file.
warn() {{ echo "sky: the time limit is near (USR1)"; on_nodes --overlap sh -c {warn} & }}
trap warn USR1
on_nodes sh -c {wait} &
step=$!
# A signal interrupts `wait`.
while wait "$step"; status=$?; kill -0 "$step" 2>/dev/null; do :; done
echo "sky: all nodes have ended (status $status)"
{requeue}\
exit "$status"
"""
# If the script of a preempted job ends within the grace time, Slurm does not requeue the job by itself.
_REQUEUE = """\
said=$(scontrol -o show job "$SLURM_JOB_ID")
if [[ $said =~ StartTime=([0-9T:-]+) ]] && began=${BASH_REMATCH[1]} &&
    [[ $said =~ PreemptTime=([0-9T:-]+) ]] && [[ ! ${BASH_REMATCH[1]} < $began ]]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 600
fi
"""
_SETUP = f"""\
{{{{
{{lines}}
}}}} || {{{{ echo "{SETUP_FAILED}"; exit 1; }}}}
"""


class JobOptions(Protocol):
    """Options of a provider that a job's script needs; `Slurm` explains them."""

    @property
    def setup(self) -> str | None: ...

    @property
    def extra(self) -> tuple[str, ...]: ...

    @property
    def requeue(self) -> bool: ...

    def asked(self, spec: PoolSpec) -> Mapping[str, str | None]:
        """Return the user's wishes as long `sbatch` options, without dashes."""
        ...


def text(provider: JobOptions, spec: PoolSpec, count: int, order: Order) -> str:
    """Return the script.

    Parameters
    ----------
    provider : JobOptions
        The provider's options.
    spec : PoolSpec
        The pool.
    count : int
        Number of nodes.
    order : Order
        Order that the job's mark names.

    Returns
    -------
    str
        Lines for `sbatch`.
    """
    folder = node_folder("$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}", "$SLURMD_NODENAME")
    own = f'"{folder}"'
    wait = waiter.script(order.until, own, scripts.LAUNCH)
    head = "".join(f"#SBATCH {line}\n" for line in directives(provider, spec, count, order))
    setup = _SETUP.format(lines=provider.setup) if provider.setup else ""
    warn = f'{waiter.owned(own)} && date +%s >"{folder}/warned"'
    # (`exec` keeps one process on each node.)
    requeue = _REQUEUE if provider.requeue else ""
    words = {"wait": shlex.quote(f"exec {wait}"), "warn": shlex.quote(warn)}
    body = _BODY.format(logs=LOGS, setup=setup, requeue=requeue, **words)
    return f"#!/bin/bash -l\n{head}{body}"


def directives(provider: JobOptions, spec: PoolSpec, count: int, order: Order) -> list[str]:
    """Return the options of `sbatch`: ours, the provider's, and the user's own last.

    One of ours is left out if the user's options have its name after ``!``.
    """
    name = "".join(letter for letter in order.name or spec.name or "pool" if letter.isalnum() or letter in "-_.")
    given = {
        "job-name": f"sky-{name}",
        "comment": str(JobMark.of(order, count)),
        "nodes": str(count),
        "ntasks-per-node": "1",
        "no-kill": None,
        "requeue" if provider.requeue else "no-requeue": None,
        "export": "NONE",
        "open-mode": "append",
        "output": "/dev/null",
        "chdir": "/",
        "signal": f"B:USR1@{WARNED}",
        **{key.replace("_", "-"): value for key, value in provider.asked(spec).items()},
    }
    left = {one[1:].lstrip("-") for one in provider.extra if one.startswith("!")}
    lines = [f"--{key}" if value is None else f"--{key}={value}" for key, value in given.items() if key not in left]
    return [*lines, *(one for one in provider.extra if not one.startswith("!"))]


__all__ = ["LOGS", "directives", "text"]
