"""`sky.AWS` is a value that is valid once it exists, and imports nothing of AWS."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from sky_jupyter.errors import SpecError
from sky_jupyter.providers import AWS, provider_registry
from sky_jupyter.providers.aws import vcpu_quotas

FULL = AWS(
    profile="lab",
    region="us-east-1",
    regions=["us-east-1", "eu-west-1"],  # type: ignore[arg-type]
    instance_type="g5.xlarge",
    subnet="subnet-0123456789abcdef0",
    ami="ami-0123456789abcdef0",
    disk_gb=200,
    iam_instance_profile="nodes",
    reservation="cr-0123456789abcdef0",
    ssh_from="10.0.0.0/8",
    user="ec2-user",
    jump="me@bastion:2222",
)


@pytest.mark.parametrize("provider", [AWS(), FULL, AWS(regions="us-east-1, us-west-2")])  # type: ignore[arg-type]
def test_it_is_the_same_after_a_pickle_and_from_its_recipe(provider: AWS) -> None:
    again = pickle.loads(pickle.dumps(provider))
    recorded = provider_registry.restore("aws", json.dumps(provider.recipe()))
    for other in (again, recorded):
        assert (other, hash(other), str(other)) == (provider, hash(provider), str(provider))


def test_it_says_where_its_machines_are() -> None:
    assert [str(AWS()), str(AWS(region="us-east-1")), str(AWS(regions=("us-east-1", "us-west-2")))] == [
        "aws",
        "aws (us-east-1)",
        "aws (us-east-1, us-west-2)",
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"region": "Ireland"}, "region must be a region such as 'us-east-1'"),
        ({"region": "us-east-1a"}, "region must be a region"),
        ({"regions": ("us-east-1", 5)}, "regions must be names"),
        ({"region": "us-east-1", "regions": ("eu-west-1",)}, "not among regions eu-west-1"),
        ({"instance_type": "big"}, "instance type such as 'g5.xlarge'"),
        ({"subnet": "vpc-12345678"}, "subnet's id"),
        ({"ami": "ubuntu"}, "image's id"),
        ({"disk_gb": 0}, "disk_gb must be a whole number"),
        ({"disk_gb": True}, "disk_gb must be a whole number"),
        ({"iam_instance_profile": "a b"}, "name or ARN"),
        ({"reservation": "i-1"}, "capacity reservation's id"),
        ({"ssh_from": "10.0.0.1/8"}, "ssh_from must be a network"),
        ({"ssh_from": "home"}, "ssh_from must be a network"),
        ({"ssh_from": "2001:db8::/32"}, "ssh_from must be a network"),
        ({"user": "-o"}, "the user that the image lets in"),
        ({"jump": "-oProxyCommand=x"}, "host"),
        ({"profile": ""}, "profile must be"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told.replace(".", r"\.")):
        AWS(**fields)


def test_a_process_without_the_notebooks_profile_uses_it_for_its_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lab")
    recipe = json.dumps(AWS().recipe())
    assert provider_registry.restore("aws", recipe) == AWS()
    monkeypatch.delenv("AWS_PROFILE")
    assert provider_registry.restore("aws", recipe) == AWS(profile="lab")


def test_nothing_of_aws_is_imported_until_it_is_asked() -> None:
    code = (
        "import sys, sky_jupyter as sky; sky.AWS(region='us-east-1').recipe(); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('boto3', 'botocore')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['botocore'] = None; import sky_jupyter as sky\n"
        "try: sky.AWS(region='us-east-1').account()\n"
        "except sky.SpecError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'sky-jupyter[aws]'" in done.stdout


@pytest.mark.parametrize(
    ("kind", "market", "code"),
    [
        ("p4d.24xlarge", "on-demand", "L-417A185B"),
        ("p5.48xlarge", "spot", "L-7212CCBC"),
        ("g5g.xlarge", "on-demand", "L-DB2E81BA"),
        ("gr6.4xlarge", "spot", "L-3819A6DF"),
        ("trn1.32xlarge", "spot", "L-6B0D517C"),
        ("inf2.xlarge", "on-demand", "L-1945791B"),
        ("m7i.large", "on-demand", "L-1216C47A"),
        ("im4gn.large", "spot", "L-34B43A08"),
        ("t3.medium", "spot", "L-34B43A08"),
        ("hpc7a.96xlarge", "on-demand", ""),
        ("dl1.24xlarge", "on-demand", ""),
        ("x2idn.16xlarge", "spot", ""),
    ],
)
def test_an_instance_type_has_the_quota_of_its_family(kind: str, market: str, code: str) -> None:
    assert vcpu_quotas.code(kind, market) == code
