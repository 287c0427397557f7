"""What an EC2 instance reads of its own end, by a metadata service on the test's own address."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.node.runtime.interruption import Interruption
from sky_jupyter.providers.aws import spot_notice
from tests.providers.metadata_service import ACTION, REBALANCE, MetadataService, serving


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataService]:
    monkeypatch.setattr(spot_notice, "_token", [])
    # A proxy must not be asked.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(tmp_path) as made:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", made.url)
        yield made


def test_there_is_no_notice_unless_the_service_has_one(service: MetadataService) -> None:
    assert spot_notice.read() is None
    assert service.asked == [ACTION, REBALANCE]


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_a_notice_has_the_action_and_its_time(service: MetadataService, action: str) -> None:
    service.put(REBALANCE, {"noticeTime": "2026-11-23T12:00:00Z"})
    service.put(ACTION, {"action": action, "time": "2026-11-23T12:02:00Z"})
    assert spot_notice.read() == Interruption(action, 1795435320.0)


def test_a_recommendation_to_rebalance_is_a_risk_without_a_time(service: MetadataService) -> None:
    service.put(REBALANCE, {"noticeTime": "2026-11-23T12:00:00Z"})
    notice = spot_notice.read()
    assert notice is not None
    assert (notice.is_risk, notice.at) == (True, None)


def test_one_token_serves_many_questions_and_an_expired_one_is_renewed(service: MetadataService) -> None:
    spot_notice.read()
    spot_notice.read()
    assert len(service.tokens) == 1
    service.tokens.clear()
    service.put(ACTION, {"action": "terminate", "time": "2026-11-23T12:02:00Z"})
    assert spot_notice.read() is not None
    assert len(service.tokens) == 1


def test_what_cannot_be_read_is_an_error_and_not_the_absence_of_a_notice(service: MetadataService) -> None:
    service.put(ACTION, {"action": "terminate"})
    with pytest.raises(ValueError, match="does not match format"):
        spot_notice.read()
    service.server.shutdown()
    service.server.server_close()
    with pytest.raises(OSError, match="refused"):
        spot_notice.read()


def test_nodes_need_nothing_that_only_notebooks_have_to_read_it() -> None:
    code = "import sys, sky_jupyter.providers.aws.spot_notice; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"boto3", "botocore", "paramiko", "cryptography", "IPython"} & set(loaded)
