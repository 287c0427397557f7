"""Instances of the tests' AWS that are hosts: they are reached, and end, as EC2's."""

from __future__ import annotations

import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

boto3 = pytest.importorskip("boto3")
from tests.hosts.world import World, _keys, hosts  # noqa: E402
from tests.pool.remote import wait_until  # noqa: E402
from tests.providers import aws_world  # noqa: E402
from tests.providers.aws_hosts import HostedAws  # noqa: E402
from tests.providers.test_aws_world import launch  # noqa: E402

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hosts(0) as made:
        yield made


@pytest.fixture
def aws(world: World) -> Iterator[HostedAws]:
    with aws_world.hosts(world) as made:
        yield made


def user_data(key: str, host_key: tuple[str, str]) -> str:
    private = "".join(f"    {line}\n" for line in host_key[0].splitlines())
    lines = [f"ssh_authorized_keys: ['{key}']", "bootcmd: [['sh', '-c', 'echo booted >> /var/log/boots']]"]
    lines += [f"ssh_keys:\n  ed25519_private: |\n{private}  ed25519_public: {host_key[1]}"]
    return "#cloud-config\n" + "\n".join(lines) + "\n"


def test_instances_boot_with_their_user_data_and_end_with_their_hosts(aws: HostedAws, tmp_path: Path) -> None:
    (private, public), host_key = _keys(), _keys()
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(private)
    data = user_data(public, host_key)
    ids = launch(count=2, spot=True, UserData=data, InstanceInitiatedShutdownBehavior="terminate")
    ec2 = boto3.client("ec2")

    def addresses() -> list[str]:
        found = [one for each in ec2.describe_instances()["Reservations"] for one in each["Instances"]]
        return [one["PublicIpAddress"] for one in found if one["State"]["Name"] == "running"]

    wait_until(lambda: len(aws.instances(state="running")) == 2)
    known = tmp_path / "known_hosts"
    known.write_text("".join(f"{address} {host_key[1]}\n" for address in addresses()))
    options = ["-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}"]
    ssh = ["ssh", *options, "-o", "StrictHostKeyChecking=yes"]
    seen = "whoami; sudo -n whoami; cat /var/log/boots; echo $AWS_EC2_METADATA_SERVICE_ENDPOINT"
    for address in addresses():
        done = subprocess.run([*ssh, f"ubuntu@{address}", seen], capture_output=True, text=True)
        assert done.stdout.split() == ["ubuntu", "root", "booted", f"http://{address}:8169"], done.stderr

    notice = (
        "import os, urllib.request as u; b = os.environ['AWS_EC2_METADATA_SERVICE_ENDPOINT'] + '/latest/';"
        "t = u.urlopen(u.Request(b + 'api/token', method='PUT',"
        "headers={'X-aws-ec2-metadata-token-ttl-seconds': '60'})).read().decode();"
        "print(u.urlopen(u.Request(b + 'meta-data/spot/instance-action',"
        "headers={'X-aws-ec2-metadata-token': t})).read().decode())"
    )
    told = [*ssh, f"ubuntu@{aws.host(ids[0]).address}", f'python3 -c "{notice}"']
    assert urllib.error.HTTPError.__name__ in subprocess.run(told, capture_output=True, text=True).stderr
    aws.notice(ids[0])
    assert '"terminate"' in subprocess.run(told, capture_output=True, text=True).stdout

    aws.interrupt(ids[0])
    wait_until(lambda: not aws.host(ids[0]).pid)
    subprocess.run([*ssh, f"ubuntu@{addresses()[0]}", "sudo shutdown -P now"], capture_output=True)
    wait_until(lambda: not aws.alive())
    assert {one["id"]: one["reason"] for one in aws.instances()} == {
        ids[0]: "Server.SpotInstanceTermination",
        ids[1]: "Client.InstanceInitiatedShutdown",
    }
    assert not any(aws.left().values())


def test_a_stopped_instance_keeps_its_disk_and_runs_its_boot_commands_again(aws: HostedAws) -> None:
    (id,) = launch(UserData=user_data(_keys()[1], _keys()))
    ec2 = boto3.client("ec2")
    wait_until(lambda: aws.instances(id=id, state="running"))
    ec2.stop_instances(InstanceIds=[id])
    wait_until(lambda: not aws.host(id).pid)
    ec2.start_instances(InstanceIds=[id])
    wait_until(lambda: aws.instances(id=id, state="running"))
    assert aws.host(id).run("cat /var/log/boots").split() == ["booted", "booted"]
    ec2.terminate_instances(InstanceIds=[id])
    wait_until(lambda: not aws.host(id).pid)
    assert not any(aws.left().values())
