"""`sky.Slurm` is a value that is valid once it exists, and its script says what was asked for."""

from __future__ import annotations

import json
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import ProvisionError, Unanswered
from sky_jupyter.machines.ssh.types import Ran
from sky_jupyter.pool.lifecycle import machine_queue
from sky_jupyter.providers import provider_registry
from sky_jupyter.providers.base import ConnectionSession
from sky_jupyter.providers.batch import allocation_notice
from sky_jupyter.providers.batch.batch_job import BatchJob, JobMark
from sky_jupyter.providers.batch.login_calls import LoginCalls, program_of
from sky_jupyter.providers.provisioning_types import Order
from sky_jupyter.providers.slurm import slurm_commands
from sky_jupyter.session import job_queue
from sky_jupyter.spec.pool_spec import PoolSpec
from sky_jupyter.util.state_folder import queued_specs

FULL = sky.Slurm(
    login="me@cluster:2222",
    partition="gpu,long",
    account="lab",
    qos="high",
    time="90m",
    gpus_per_node="a100:4",
    constraint="a100&nvlink",
    mem="64G",
    cpus_per_task=8,
    exclusive=True,
    reservation="course",
    setup="module load cuda\nexport A='b c'",
    extra=("--mail-type=END", "!no-kill"),
)
ORDER = Order("p1", "t1", until=2e9, owner="laptop 1", name="p")


@pytest.mark.parametrize("provider", [sky.Slurm(), FULL])
def test_it_is_the_same_after_a_pickle_and_from_its_recipe(provider: sky.Slurm) -> None:
    recorded = provider_registry.restore("slurm", json.dumps(provider.recipe()))
    assert recorded == pickle.loads(pickle.dumps(provider)) == provider
    assert hash(recorded) == hash(provider)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"login": "a b"}, "host 'a b'"),
        ({"time": "soon"}, "time must be such as '2h'"),
        ({"partition": "a b"}, "partition must be a partition"),
        ({"gpus_per_node": "many"}, "gpus_per_node must be a number of GPUs"),
        ({"gpus_per_node": 4, "gres": "gpu:4"}, "say the same"),
        ({"cpus_per_task": 0}, "cpus_per_task must be a whole number from 1"),
        ({"extra": ("mail",)}, "extra must be options"),
        ({"extra": ("--a\n#SBATCH --b",)}, "extra must be options"),
        ({"extra": "--comment=mine"}, "extra cannot contain --comment"),
        ({"extra": ["!comment"]}, "extra cannot contain --comment"),
        ({"extra": ["--mail-type END --arr=0-9"]}, "extra cannot contain --array"),
        ({"extra": ["-N4"]}, "extra cannot contain --nodes"),
        ({"setup": 1}, "setup must be shell lines"),
    ],
)
def test_what_is_wrong_is_told_at_once(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(sky.SpecError, match=re.escape(said)):
        sky.Slurm(**fields)


@pytest.mark.parametrize(
    ("given", "limit"),
    [("2h", "120"), ("90m", "90"), ("30s", "1"), (15, "15"), ("1-12:00:00", "1-12:00:00"), ("1d", "1440")],
)
def test_a_time_limit_is_read_as_people_write_it(given: Any, limit: str) -> None:
    assert sky.Slurm(time=given).time == limit


def test_the_script_has_what_was_asked_for() -> None:
    text = FULL.script(PoolSpec(provider=FULL, nodes=4), 4, ORDER)
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    asked = ["nodes=4", "time=90", "partition=gpu,long", "account=lab", "gpus-per-node=a100:4", "mem=64G", "exclusive"]
    assert {f"--{one}" for one in (*asked, "no-requeue", "export=NONE", "mail-type=END")} <= set(lines)
    assert "--no-kill" not in lines
    assert "module load cuda\nexport A='b c'\n" in text


def test_an_accelerator_asks_for_gpus() -> None:
    spec = PoolSpec(provider=sky.Slurm(), accelerator=sky.accelerators.A100(count=2))
    assert "#SBATCH --gpus-per-node=2\n" in sky.Slurm().script(spec, 1, ORDER)


@pytest.mark.parametrize("name", ["p", "a:b|c d\n", "ä"])
def test_a_job_is_found_by_its_mark(name: str) -> None:
    mark = JobMark("pool", "token", 3, 2e9, "laptop 1", name, "1/n0,n1")
    assert JobMark.parse(str(mark)) == mark
    assert "\n" not in str(mark)
    assert JobMark.parse("somebody's own comment") is None


def test_nodes_keep_their_numbers_when_one_is_lost() -> None:
    mark = JobMark("pool", "token", 3, hosts="0/n0,n1,n2")
    states = [one.state for one in BatchJob("7", mark, "running", nodes=("n0", "n2")).records()]
    assert states == ["running", "ended", "running"]
    ending = BatchJob("7", mark, "ending", "the job was preempted by another one", nodes=("n1",))
    assert {one.reason for one in ending.records()} == {"the job was preempted by another one"}
    again = BatchJob("7", mark, "running", nodes=("n4", "n5", "n6"), restarts=1)
    assert [one.zone for one in again.records()] == ["n4", "n5", "n6"]


@pytest.mark.parametrize(
    ("row", "state", "said"),
    [
        ("PENDING|Resources", "queued", "the job is pending (Resources)"),
        ("CONFIGURING|None", "queued", "configuring"),
        ("RUNNING|None", "running", ""),
        ("SUSPENDED|None", "running", "suspended"),
        ("TIMEOUT|TimeLimit", "ended", "time limit"),
        ("CANCELLED|None", "ended", "cancelled"),
        ("PREEMPTED|None", "ended", "preempted"),
        ("NODE_FAIL|NodeDown", "ended", "a node of the job failed"),
    ],
)
def test_endings_are_told_apart(row: str, state: str, said: str) -> None:
    class Calls:
        def ask(self, argv: list[str], stdin: str = "") -> str:
            return (
                f"7|{row}|N/A|N/A|2026-11-24T01:00:00|gpu|1|n0|1|{JobMark('p', 't', 1)}\n8|RUNNING|None||||||||other\n"
            )

        def run(self, argv: list[str], stdin: str = "") -> Any:
            return Ran(0, b"JobId=7 Restarts=0", b"")

        def ask_rarely(self, argv: list[str]) -> str:
            return ""

    (job,) = slurm_commands.listed(Calls())  # type: ignore[arg-type]
    assert job.state == state
    assert said in job.reason


def test_a_job_that_is_queued_again_is_told_from_one_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = f"7|COMPLETING|None|N/A|N/A|N/A|gpu|1|n0|1|{JobMark('p', 't', 1, hosts='0/n0')}"
    a_program(tmp_path, monkeypatch, "squeue", f"echo '{row}'")
    reasons = []
    for restarts in (0, 1):
        a_program(tmp_path, monkeypatch, "scontrol", f"echo 'JobId=7 Requeue=1 Restarts={restarts}'")
        (job,) = slurm_commands.listed(LoginCalls(None))
        assert job.state == "queued"
        reasons.append(job.reason)
    assert "cancelled (scancel), or its nodes have ended; Slurm may queue it again" in reasons[0]
    assert "preempted by another one, or requeued, and waits in the queue again" in reasons[1]


def test_a_job_whose_script_failed_says_what_its_log_ends_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = f"7|FAILED|NonZeroExitCode|N/A|N/A|N/A|gpu|1|n0|1|{JobMark('p', 't', 1)}"
    a_program(tmp_path, monkeypatch, "squeue", f"echo '{row}'")
    a_program(tmp_path, monkeypatch, "scontrol", "echo JobId=7 Restarts=0")
    monkeypatch.setenv("HOME", str(tmp_path))
    log = tmp_path / ".sky_jupyter" / "slurm" / "7.log"
    log.parent.mkdir(parents=True)
    log.write_text("sky: job 7 on n0, start 0\nmodule: cuda-99 is not known\nsky: setup failed\n")
    monkeypatch.setattr(sky.Slurm, "calls", LoginCalls(None))
    (record,) = sky.Slurm().describe(["7/0"])
    assert record.state == "ended"
    assert "the job's script failed; its log (~/.sky_jupyter/slurm/7.log) ends with: " in record.reason
    assert record.reason.endswith("module: cuda-99 is not known | sky: setup failed")
    # No other job is submitted in its place.
    spec = PoolSpec(provider=sky.Slurm(), name="p")
    with pytest.raises(ProvisionError, match="cuda-99 is not known"):
        machine_queue.wait(spec, {"7/0": 0}, ConnectionSession(), print)


def test_a_notice_comes_before_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(allocation_notice.FOLDER, str(tmp_path))
    assert allocation_notice.read() is None
    actions = []
    for left in (3600, 500, 60):
        (tmp_path / allocation_notice.ENDS).write_text(f"{time.time() + left:.0f}\n")
        notice = allocation_notice.read()
        actions.append(notice and notice.action)
    assert actions == [None, allocation_notice.NEAR, allocation_notice.NOW]
    (tmp_path / allocation_notice.ENDS).unlink()
    (tmp_path / allocation_notice.WARNED).write_text(f"{time.time():.0f}\n")
    notice = allocation_notice.read()
    assert notice is not None
    assert notice.action == allocation_notice.NOW
    # Slurm's own signal is right where the limit was lowered since.
    (tmp_path / allocation_notice.ENDS).write_text(f"{time.time() + 3600:.0f}\n")
    notice = allocation_notice.read()
    assert notice is not None
    assert notice.at == float((tmp_path / allocation_notice.WARNED).read_text()) + allocation_notice.LAST


class _Calls:
    """Slurm's commands with one job in the queue."""

    def __init__(self, mark: JobMark, *, loses: bool = False) -> None:
        self.mark, self.loses, self.asked = str(mark), loses, list[list[str]]()

    def run(self, argv: list[str], stdin: str = "") -> Ran:
        self.asked.append(argv)
        rows = f"7|PENDING|Priority|N/A|N/A|2026-11-24T01:00:00|gpu|2||1|{self.mark}\n"
        if ["sbatch", "--parsable"] in self.asked and not self.loses:
            rows += f"8{rows[1:]}"
        return Ran(0, {"squeue": rows, "sbatch": "8\n"}.get(program_of(argv), "").encode(), b"")

    def cancelled(self) -> list[str]:
        return [id for argv in self.asked if argv[0] == "scancel" for id in argv[1:]]

    def ask(self, argv: list[str], stdin: str = "") -> str:
        return self.run(argv, stdin).out.decode()

    def ask_rarely(self, argv: list[str]) -> str:
        return ""

    def jobs(self, listed: Any) -> Any:
        return listed()

    def changed(self) -> None:
        """Nothing is kept here."""


@pytest.mark.parametrize(("time_limit", "ids"), [("2h", ["7/0", "7/1"]), ("3h", ["8/0", "8/1"])])
def test_a_job_left_in_the_queue_is_taken_up_by_the_same_options(
    time_limit: str, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, spec = sky.Slurm(time="2h"), PoolSpec(provider=sky.Slurm(), nodes=2, name="p")
    calls = _Calls(JobMark("queued-p", provider.left_in_queue(spec, 2), 2))
    monkeypatch.setattr(sky.Slurm, "calls", calls)
    assert list(sky.Slurm(time=time_limit).create(spec, 2, ORDER)) == ids
    updates = [argv[-1] for argv in calls.asked if argv[:2] == ["scontrol", "update"]]
    assert updates == ([f"Comment={JobMark.of(ORDER, 2)}"] if ids[0] == "7/0" else [])


def test_the_spec_of_a_job_left_in_the_queue_is_found_by_name_until_the_job_is_taken_up_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    spec = PoolSpec(provider=sky.Slurm(time="2h"), nodes=2, name="p")
    calls = _Calls(JobMark("queued-p", sky.Slurm(time="2h").left_in_queue(spec, 2), 2))
    monkeypatch.setattr(sky.Slurm, "calls", calls)
    assert job_queue.left("p") is None
    assert "is there already" in job_queue.submit(spec)
    assert (queued_specs() / "p").stat().st_mode & 0o777 == 0o600
    assert job_queue.left("p") == job_queue.left(None) == spec
    assert job_queue.left("q") is None
    calls.mark = str(JobMark("taken", "up", 2))
    assert job_queue.left("p") is None
    assert list(queued_specs().iterdir()) == []


def test_an_order_that_is_sent_again_submits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _Calls(JobMark.of(ORDER, 2))
    monkeypatch.setattr(sky.Slurm, "calls", calls)
    spec = PoolSpec(provider=sky.Slurm(), nodes=2, name="p")
    assert list(sky.Slurm().create(spec, 2, ORDER)) == ["7/0", "7/1"]
    assert all(argv[0] != "sbatch" for argv in calls.asked)


def test_a_job_that_cannot_be_found_again_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _Calls(JobMark("other", "other", 2), loses=True)
    monkeypatch.setattr(sky.Slurm, "calls", calls)
    spec = PoolSpec(provider=sky.Slurm(), nodes=2, name="p")
    with pytest.raises(ProvisionError, match="job 8 was submitted and is cancelled"):
        sky.Slurm().create(spec, 2, ORDER)
    assert calls.cancelled() == ["8"]


def test_a_job_that_has_lost_its_mark_is_ended_with_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _Calls(JobMark("other", "other", 2))
    monkeypatch.setattr(sky.Slurm, "calls", calls)
    sky.Slurm().destroy(["9/0", "9/1"])
    assert calls.cancelled() == ["9"]


def a_program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Have commands find a program of this name."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("said", "passing"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", True),
        ("sbatch: error: invalid partition specified: gpu", False),
    ],
)
def test_a_controller_that_is_away_is_asked_again(
    said: str, passing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("squeue", "sbatch"):
        a_program(tmp_path, monkeypatch, name, f"echo '{said}' >&2; exit 1")
    calls = LoginCalls(None)
    for ask in (lambda: slurm_commands.listed(calls), lambda: slurm_commands.submit(calls, "")):
        with pytest.raises(ProvisionError) as caught:
            ask()
        assert isinstance(caught.value, Unanswered) == passing


def test_a_job_s_start_is_not_guessed_when_the_controller_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = f"7|RUNNING|None|N/A|N/A|N/A|gpu|1|n0|1|{JobMark('p', 't', 1)}"
    a_program(tmp_path, monkeypatch, "squeue", f"echo '{row}'")
    a_program(tmp_path, monkeypatch, "scontrol", "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1")
    with pytest.raises(Unanswered):
        slurm_commands.listed(LoginCalls(None))


def test_a_job_that_waits_is_told_how_many_are_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = f"7|PENDING|Priority|N/A|N/A|N/A|gpu|1||50|{JobMark('p', 't', 1)}"
    # Two of the partition go before it; a held one, one of a lower priority and one of another partition do not.
    others = (
        "90|Priority|gpu|3",
        "60|Resources|cpu,gpu|4",
        "99|JobHeldUser|gpu|1",
        "40|Priority|gpu|9",
        "70|None|cpu|5",
    )
    rows = "\n".join(others)
    a_program(
        tmp_path,
        monkeypatch,
        "squeue",
        f"echo x >>{tmp_path}/asked; case $* in *--me*) echo '{mine}';; *) echo '{rows}';; esac",
    )
    a_program(tmp_path, monkeypatch, "scontrol", "echo Restarts=0")
    calls = LoginCalls(None)

    def asked() -> int:
        return len((tmp_path / "asked").read_text().split())

    for expected in (2, 2):
        # The second listing comes too early: nothing is asked for it.
        (job,) = calls.jobs(lambda: slurm_commands.listed(calls))
        assert job.reason == "the job is pending (Priority), 2 jobs before it"
        assert asked() == expected
    # One that follows a change asks for the user's own jobs only.
    calls.changed()
    calls.jobs(lambda: slurm_commands.listed(calls))
    assert asked() == 3


def test_times_are_those_of_the_cluster_wherever_the_notebook_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = f"7|RUNNING|None|$t|$t|$t|gpu|1|n0|1|{JobMark('p', 't', 1)}"
    a_program(tmp_path, monkeypatch, "squeue", f't=$(date -d @2000000000 +%Y-%m-%dT%H:%M:%S); echo "{row}"')
    a_program(tmp_path, monkeypatch, "scontrol", "echo Restarts=0")
    monkeypatch.setenv("TZ", "America/New_York")
    (job,) = slurm_commands.listed(LoginCalls(None))
    assert job.ends == job.started == job.submitted == 2e9
