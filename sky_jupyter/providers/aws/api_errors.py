"""Errors of AWS's API, translated into ours: what happened, and what to do."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from ...errors import NoCapacity, OrderSpent, ProvisionError, SkyError, Unanswered
from ...util.text import first_line
from . import vcpu_quotas
from .clients import Clients, clients, forget

_CAPACITY = {
    "InsufficientInstanceCapacity": "no capacity",
    "InsufficientHostCapacity": "no capacity",
    "InsufficientCapacity": "no capacity",
    "UnfulfillableCapacity": "no capacity",
    "InsufficientFreeAddressesInSubnet": "the subnet has no free addresses",
    "InsufficientVolumeCapacity": "no capacity for the volume",
    "VolumeTypeNotAvailableInZone": "no volumes of this type",
    "Unsupported": "not supported",
    "ReservationCapacityExceeded": "the reservation is used up",
}
_QUOTA = ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded")
_AGAIN = (
    *("RequestLimitExceeded", "EC2ThrottledException", "Throttling", "ThrottlingException", "TooManyRequestsException"),
    *("InternalError", "InternalFailure", "ServerInternal", "ServiceUnavailable", "Unavailable", "RequestTimeout"),
    "InvalidInstanceID.NotFound",
)
_SPENT = ("IdempotentParameterMismatch", "IdempotentInstanceTerminated")
_DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_KEYS = (
    *("AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException"),
    *("InvalidAccessKeyId", "IncompleteSignature", "MissingAuthenticationToken"),
)
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed")
_UNVERIFIED = ("PendingVerification", "OptInRequired", "Blocked", "AccountDisabled")
_NO_VPC = ("VPCIdNotSpecified", "DefaultVpcDoesNotExist", "MissingInput.VpcId")
_NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
_ZONE = re.compile(r"\b[a-z]{2,}(?:-[a-z]+)+-\d(?:-[a-z]+-\d)?[a-z]\b")
_MOST_SKEW = 240.0


class NotAuthorized(ProvisionError):
    """Raised when an IAM action is not allowed.

    Attributes
    ----------
    action, resource : str
        As IAM names them; empty if AWS does not say.
    """

    action = resource = ""


@dataclass(frozen=True)
class _Call:
    """Call that failed; the arguments of `translated`."""

    doing: str
    region: str
    zone: str
    market: str
    profile: str | None
    kind: str
    vcpus: float | None

    @property
    def place(self) -> str:
        return self.zone or self.region


@contextlib.contextmanager
def translated(
    doing: str,
    region: str = "",
    zone: str = "",
    market: str = "",
    profile: str | None = None,
    *,
    kind: str = "",
    vcpus: float | None = None,
) -> Iterator[None]:
    """Translate botocore's errors in the block into ours, with those as their causes.

    Parameters
    ----------
    doing : str
        The call's purpose, as in "cannot list instances".
    region : str
        Region of the call.
    zone : str
        Zone of the machines that it creates.
    market : str
        Market of the machines that it creates.
    profile : str, optional
        Profile of the clients. After an error of its credentials, they are read again.
    kind : str
        Instance type of the machines that it creates.
    vcpus : float, optional
        vCPUs of all machines that it creates, for a message about quotas.

    Yields
    ------
    None
        To the calls in the block.

    Raises
    ------
    NoCapacity
        When another place or market may have machines.
    OrderSpent
        When a token cannot be used again.
    Unanswered
        When the same call may succeed soon.
    ProvisionError
        In all other cases.
    """
    call = _Call(doing, region, zone, market, profile, kind, vcpus)
    try:
        yield
    except SkyError:
        raise
    except Exception as error:
        from botocore.exceptions import BotoCoreError, ClientError

        if isinstance(error, ClientError):
            raise _refused(error, call) from error
        if isinstance(error, BotoCoreError):
            raise _failed(error, call) from error
        raise


def code_of(error: BaseException | None) -> str:
    """Return the AWS code of an error or of its cause; empty if there is none."""
    response = getattr(error, "response", None) or getattr(getattr(error, "__cause__", None), "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _refused(error: Any, call: _Call) -> ProvisionError:
    """Translate an answer with an error code."""
    code, told = code_of(error), str(error.response.get("Error", {}).get("Message", ""))
    if code in _CAPACITY:
        _, _, named = told.partition("choosing")
        what = f" for {call.kind}{f' ({call.market})' if call.market else ''}" if call.kind else ""
        return NoCapacity(f"{call.place}: {_CAPACITY[code]}{what}", better=tuple(_ZONE.findall(named)))
    if code in _QUOTA:
        said = vcpu_quotas.explain(call.kind, call.market, call.region, call.vcpus, told, call.profile)
        return NoCapacity(said, scope="market")
    if code == "SpotMaxPriceTooLow":
        return NoCapacity(f"{call.place}: the spot price is above the maximum: {told}", scope="market")
    if code == _NO_SPOT_ROLE:
        command = "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
        return NoCapacity(f"{call.region}: spot machines need a role, which is made once by: {command}", scope="market")
    if code in _SPENT:
        return OrderSpent(f"{call.place}: the order's token has been used already: {told}")
    if code in _DENIED:
        return _denied(told, call)
    if code in _EXPIRED or (code in _KEYS and "xpired" in told):
        return _expired(error, told, call)
    if code in _KEYS:
        return _bad_keys(code, told, call)
    if code in _UNVERIFIED:
        return ProvisionError(f"AWS throttles this account in {call.region}: {told} ({code}); another region may work")
    if code in _NO_VPC:
        return ProvisionError(
            f"{call.region} has no default VPC: make one, which costs nothing, by `aws ec2 create-default-vpc --region "
            f"{call.region}`, or name a subnet: sky.AWS(subnet='subnet-…')"
        )
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _stopped(f"{told} ({code})", call, passing=code in _AGAIN or status >= 500)


def _failed(error: Any, call: _Call) -> ProvisionError:
    """Translate botocore's own errors: credentials, configuration, connections."""
    from botocore import exceptions

    said = first_line(error)
    if isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError)):
        return _stopped(said, call, passing=True)
    forget(call.profile)
    if isinstance(error, exceptions.NoRegionError):
        return ProvisionError("no AWS region is set: give --region us-east-1, set AWS_REGION, or run `aws configure`")
    if isinstance(error, exceptions.MissingDependencyException):
        return _stopped(f"{said}; `aws login` needs pip install 'botocore[crt]'", call)
    if isinstance(
        error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound)
    ):
        ways = "`aws configure`, `aws sso login --profile NAME` or `aws login` makes some; --profile NAME says which"
        return _stopped(f"{said}. {ways}", call)
    if isinstance(error, exceptions.LoginError):
        return _stopped(f"{said} Run `{_login(call) or 'aws login'}`", call)
    if isinstance(error, (exceptions.SSOError, exceptions.TokenRetrievalError)):
        return _stopped(f"{said} Run `{_login(call) or 'aws sso login'}`", call)
    if isinstance(error, exceptions.CredentialRetrievalError) and (command := _login(call)):
        return _stopped(f"{said} Run `{command}`", call)
    return _stopped(said, call)


def _stopped(said: str, call: _Call, *, passing: bool = False) -> ProvisionError:
    text = f"AWS: cannot {call.doing}{f' in {call.place}' if call.place else ''}: {said}"
    return Unanswered(text) if passing else ProvisionError(text)


def _login(call: _Call) -> str:
    return Clients(call.profile).login()


def _denied(told: str, call: _Call) -> ProvisionError:
    """Name the IAM action that is missing, and who can allow it."""
    found = re.search(r"not authorized to perform: (\S+)(?: on resource: (\S+))?", told)
    action, resource = (found[1], found[2] or "") if found else _decoded(told, call)
    told = told.partition("Encoded authorization failure message")[0].strip()
    what = f"the IAM action {action}{f' on {resource}' if resource else ''}" if action else "this"
    if "service control policy" in told or "permissions boundary" in told:
        mend = "a policy of the organization forbids it: ask the account's administrator"
    else:
        mend = f"allow {action or 'it'} in a policy of this user or role"
    error = NotAuthorized(f"AWS: cannot {call.doing}: {what} is not allowed; {mend} ({told})")
    error.action, error.resource = action, resource
    return error


def _decoded(told: str, call: _Call) -> tuple[str, str]:
    """Return action and resource of an encoded message, if it may be decoded."""
    found = re.search(r"Encoded authorization failure message: (\S+)", told)
    with contextlib.suppress(Exception):
        if found:
            answer = clients(call.profile).sts(call.region).decode_authorization_message(EncodedMessage=found[1])
            context = json.loads(answer["DecodedMessage"])["context"]
            return str(context.get("action", "")), str(context.get("resource", ""))
    return "", ""


def _expired(error: Any, told: str, call: _Call) -> ProvisionError:
    """Name the log-in that has expired, or the clock that is wrong."""
    forget(call.profile)
    with contextlib.suppress(Exception):
        date = parsedate_to_datetime(error.response["ResponseMetadata"]["HTTPHeaders"]["date"])
        ahead = (datetime.now(timezone.utc) - date).total_seconds()
        if abs(ahead) > _MOST_SKEW:
            way = "ahead of" if ahead > 0 else "behind"
            return _stopped(f"this machine's clock is {abs(ahead) / 60:.0f} minutes {way} AWS's: set it ({told})", call)
    command = _login(call)
    mend = f"run `{command}`" if command else "the session token has expired: set new credentials (AWS_SESSION_TOKEN)"
    return _stopped(f"{told}; {mend}", call)


def _bad_keys(code: str, told: str, call: _Call) -> ProvisionError:
    """Return the error for unknown keys, or for a region that is not enabled."""
    if call.region:
        with contextlib.suppress(Exception):
            ec2 = clients(call.profile).ec2("us-east-1")
            found = ec2.describe_regions(RegionNames=[call.region], AllRegions=True)["Regions"]
            if found[0].get("OptInStatus") == "not-opted-in":
                command = f"aws account enable-region --region-name {call.region}"
                return NoCapacity(f"the region {call.region} is not enabled: {command}", scope="region")
    forget(call.profile)
    mend = f"run `{command}`" if (command := _login(call)) else "check the access key: `aws sts get-caller-identity`"
    return _stopped(f"AWS does not know these credentials: {told} ({code}); {mend}", call)


__all__ = ["NotAuthorized", "code_of", "translated"]
