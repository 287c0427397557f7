"""EC2's spot interruption notice, read from the instance's metadata (IMDSv2).

A node's agent calls `read` every few seconds. For this, nodes need neither boto3 nor a role.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from datetime import datetime, timezone
from typing import Any

from ...node.runtime.interruption import RISK, Interruption

_SERVICE = "http://169.254.169.254"
_TIMEOUT = 2.0
_MOST_BYTES = 4096
_LIFETIME = "21600"
# Never through a proxy, whatever the environment says.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_token: list[str] = []


def read() -> Interruption | None:
    """Return this instance's notice, or None; raise OSError or ValueError on failure."""
    if (action := _get("spot/instance-action")) is not None:
        return Interruption(action.get("action", ""), _time_of(action.get("time", "")))
    return None if _get("events/recommendations/rebalance") is None else Interruption(RISK)


def _get(path: str) -> dict[str, Any] | None:
    """Return metadata, or None if missing; raise OSError or ValueError on failure."""
    try:
        return _asked(path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        if error.code != 401:
            raise
    # The token has expired.
    _token.clear()
    return _asked(path)


def _asked(path: str) -> dict[str, Any]:
    if not _token:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": _LIFETIME}
        _token.append(_read("api/token", "PUT", headers))
    found = json.loads(_read(f"meta-data/{path}", "GET", {"X-aws-ec2-metadata-token": _token[0]}))
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{path} is no notice")
    return found


def _read(path: str, method: str, headers: dict[str, str]) -> str:
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _SERVICE
    request = urllib.request.Request(f"{base.rstrip('/')}/latest/{path}", method=method, headers=headers)
    with _OPENER.open(request, timeout=_TIMEOUT) as answer:
        text: bytes = answer.read(_MOST_BYTES)
    return text.decode()


def _time_of(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
