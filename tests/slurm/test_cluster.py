"""The tests' own clusters are Slurm as sites have it: queue, GPUs, control groups, power, networks, and an end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import Cluster, LocalCluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.root


def test_jobs_run_on_nodes_of_this_machine(local_cluster: LocalCluster) -> None:
    said = local_cluster.run("srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_NODEID")
    assert sorted(said.splitlines()) == ["n0 0", "n1 1"]
    # srun may end before its job has completed.
    while local_cluster.jobs():
        time.sleep(0.1)


@pytest.mark.slow
def test_a_cluster_on_this_machine_ends_with_what_made_it() -> None:
    script = """
    import os, json, sys
    from tests.slurm.cluster import on_this_machine
    with on_this_machine(1) as made:
        made.run("sbatch", "-o", "/dev/null", "--wrap", "sleep 600")
        print(json.dumps(str(made.folder)), flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", "if True:" + script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = json.loads(process.stdout.readline())
        mine = psutil.Process(process.pid).children(recursive=True)
        assert {"slurmctld", "slurmd", "munged"} <= {one.name() for one in mine}
        process.kill()
    assert psutil.wait_procs(mine, timeout=60)[1] == []
    subprocess.run(["rm", "-r", folder], check=True)


SLEEP = 'srun sh -c "setsid sleep 998 & env | grep CUDA; sleep 999"'


def submit(cluster: Cluster, *options: str, command: str) -> str:
    return cluster.ada(f"sbatch --parsable -o out {' '.join(options)} --wrap '{command}'")


@pytest.mark.slow
def test_a_cancelled_job_leaves_nothing_not_even_what_has_left_its_session(cluster: Cluster) -> None:
    job = submit(
        cluster, "-N2", "--gpus-per-node=1", command='srun sh -c "setsid sleep 998 & env | grep CUDA; sleep 999"'
    )
    cluster.wait("it runs", lambda: cluster.ada("cat out", check=False).count("CUDA_VISIBLE_DEVICES=0") == 2)
    assert sum(line.endswith(": sleep 998") for line in cluster.left()) == 2
    cluster.ada(f"scancel {job}; rm out")
    cluster.wait("nothing is left", lambda: cluster.left() == [])
    assert cluster.state(job) == "CANCELLED"


@pytest.mark.slow
def test_users_of_the_login_host_dial_nodes_unless_they_may_not(cluster: Cluster) -> None:
    dial = f"timeout 20 bash -c ': < /dev/tcp/{cluster.nodes[0].private}/22' && echo reached"
    assert cluster.ada(dial) == "reached"
    cluster.forbid_dialling()
    try:
        assert cluster.ada(dial, check=False) == ""
        assert sorted(cluster.ada("srun -N2 hostname").split()) == [host.name for host in cluster.nodes]
    finally:
        cluster.allow_dialling()


@pytest.mark.slow
def test_all_hosts_have_one_home(cluster: Cluster) -> None:
    cluster.ada("srun -N1 -w " + cluster.nodes[1].name + " touch one && test -e one && rm one")
    assert cluster.nodes[0].run("ls", user="ada") == ""


@pytest.mark.long
def test_an_urgent_job_takes_the_nodes_of_another(cluster: Cluster) -> None:
    first = submit(cluster, "-N2", "--exclusive", "--no-requeue", command='trap "" TERM; srun sleep 600; sleep 600')
    cluster.wait("the first runs", lambda: cluster.state(first) == "RUNNING")
    second = submit(cluster, "-N2", "--exclusive", "-p", "urgent", command="true")
    cluster.wait("the first has been ended", lambda: cluster.state(first) == "PREEMPTED")
    cluster.wait("the second is through", lambda: cluster.state(second) == "COMPLETED")
    cluster.ada("rm -f out")
    cluster.wait("nothing is left", lambda: cluster.left() == [])


@pytest.mark.long
def test_a_node_without_power_fails_its_job_and_comes_back(cluster: Cluster) -> None:
    job = submit(cluster, "-N2", "--no-requeue", command="srun sleep 600")
    # (A node that is lost before its step is there makes the script fail by itself.)
    cluster.wait(
        "it runs", lambda: sum(bool(re.search(r": \S*sleep 600$", line)) for line in cluster.left(files=False)) == 2
    )
    cluster.kill(cluster.nodes[1])
    try:
        cluster.wait("Slurm has noticed", lambda: cluster.state(job) == "NODE_FAIL")
    finally:
        cluster.start(cluster.nodes[1])
    cluster.ada("rm -f out")
    cluster.wait("nothing is left", lambda: cluster.left() == [])
    assert len(cluster.ada("srun -N2 hostname").split()) == 2
