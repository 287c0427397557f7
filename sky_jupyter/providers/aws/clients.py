"""Clients of AWS's API, by profile and region.

They are botocore's clients; boto3 adds nothing to them. The first client imports botocore, which takes seconds.
Credentials are found as in every AWS tool: profile, environment, SSO, role.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ...errors import ProvisionError, SpecError

# The region that every account may use.
FIRST_REGION = "us-east-1"
# AWS's price list is served in a few regions only.
_PRICING_REGION = FIRST_REGION
_CONNECT_TIMEOUT, _READ_TIMEOUT, _LAUNCH_TIMEOUT = 10.0, 30.0, 60.0
# A launch does not wait for prices.
_PRICING_TIMEOUT = 4.0
_ATTEMPTS = 4


class Clients:
    """Clients of one profile; thread-safe. Made by `clients`.

    Parameters
    ----------
    profile : str, optional
        Profile of the AWS configuration; the environment's by default.
    """

    def __init__(self, profile: str | None) -> None:
        self.profile = profile
        # Only one thread at a time may create botocore's sessions and clients.
        self._lock = threading.Lock()
        self._session: Any = None
        self._made: dict[tuple[str, str, bool], Any] = {}

    def ec2(self, region: str) -> Any:
        """Return the EC2 client of a region; it retries failed calls."""
        return self._client("ec2", region)

    def launcher(self, region: str) -> Any:
        """Return the EC2 client for `run_instances`, which sends each call once.

        EC2 reports missing capacity as HTTP 500, which other clients retry.
        """
        return self._client("ec2", region, once=True)

    def ssm(self, region: str) -> Any:
        """Return the SSM client of a region."""
        return self._client("ssm", region)

    def sts(self, region: str = "") -> Any:
        """Return the STS client of a region, or of the default one."""
        return self._client("sts", region or self.default_region() or FIRST_REGION)

    def quotas(self, region: str) -> Any:
        """Return the client of Service Quotas of a region."""
        return self._client("service-quotas", region)

    def pricing(self) -> Any:
        """Return the price list's client, with a short timeout and without retries."""
        return self._client("pricing", _PRICING_REGION, once=True, limit=_PRICING_TIMEOUT)

    def region(self) -> str:
        """Return the profile's or environment's region; raise ProvisionError without one."""
        if found := self.default_region():
            return found
        raise ProvisionError(
            "no AWS region is set: give --region us-east-1 (sky.AWS(region='us-east-1')), set AWS_REGION, or run "
            "`aws configure`"
        )

    def login(self) -> str:
        """Return the command that renews the profile's credentials; empty if none does."""
        named = self.profile or os.environ.get("AWS_PROFILE")
        suffix = f" --profile {named}" if named else ""
        try:
            with self._lock:
                config = self._open().get_scoped_config()
        except Exception:
            return ""
        if "sso_session" in config or "sso_start_url" in config:
            return f"aws sso login{suffix}"
        return f"aws login{suffix}" if "login_session" in config else ""

    def default_region(self) -> str | None:
        """Return the default region of the profile or environment, if there is one."""
        with self._lock:
            # Other SDKs read AWS_REGION; botocore reads only AWS_DEFAULT_REGION.
            return os.environ.get("AWS_REGION") or self._open().get_config_variable("region")

    def _open(self) -> Any:
        if self._session is None:
            try:
                import botocore.session
            except ImportError as error:
                raise SpecError(f"AWS needs boto3: pip install 'sky-jupyter[aws]' ({error})") from None
            self._session = botocore.session.Session(profile=self.profile)
        return self._session

    def _client(self, service: str, region: str, *, once: bool = False, limit: float = _LAUNCH_TIMEOUT) -> Any:
        with self._lock:
            key = (service, region, once)
            if key not in self._made:
                session = self._open()
                from botocore.config import Config

                config = Config(
                    connect_timeout=min(limit, _CONNECT_TIMEOUT),
                    read_timeout=limit if once else _READ_TIMEOUT,
                    retries={"mode": "standard", "total_max_attempts": 1 if once else _ATTEMPTS},
                    user_agent_extra="sky-jupyter",
                )
                self._made[key] = session.create_client(service, region_name=region, config=config)
            return self._made[key]


_lock = threading.Lock()
_known: dict[str | None, tuple[int, Clients]] = {}


def clients(profile: str | None) -> Clients:
    """Return the clients of a profile.

    They are shared in the process until the environment's AWS variables change, or `forget` is called.
    """
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    # A forked process needs connections of its own.
    now = hash((os.getpid(), *variables))
    with _lock:
        known, found = _known.get(profile, (0, None))
        if found is None or known != now:
            found = Clients(profile)
            _known[profile] = now, found
        return found


def forget(profile: str | None) -> None:
    """Drop a profile's cached clients, as a session never notices a new log-in."""
    with _lock:
        _known.pop(profile, None)


__all__ = ["FIRST_REGION", "Clients", "clients", "forget"]
