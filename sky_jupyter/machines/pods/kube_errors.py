"""Errors of a cluster's API, translated into ours, with what to do about them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import NoCapacity, OrderSpent, ProvisionError, SkyError, Unanswered
from ...util.text import first_line

if TYPE_CHECKING:
    from .cluster_place import ClusterPlace

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID, BUSY = 401, 403, 404, 409, 422, 429
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request:? ?(?P<why>.*)', re.DOTALL)
_CANNOT = re.compile(r'[Uu]ser "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"')
_NAMESPACE = re.compile(r'namespaces? "(?P<name>[^"]+)" not found')
_TRAINER = "trainer.kubeflow.org"


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error or of its causes; 0 if there is none."""
    return next((int(one.status) for one in _chain(error) if hasattr(one, "status") and hasattr(one, "body")), 0)


def message_of(error: BaseException) -> str:
    """Return the API's message; empty if it sent none."""
    for one in _chain(error):
        if body := getattr(one, "body", None):
            try:
                return str(json.loads(body).get("message") or "")
            except (ValueError, AttributeError, TypeError):
                return first_line(Exception(body if isinstance(body, str) else bytes(body).decode(errors="replace")))
    return ""


def translated(error: Exception, doing: str, place: ClusterPlace) -> SkyError | None:
    """Return our error for a client library's error; None for faults of ours.

    Parameters
    ----------
    error : Exception
        The error of a call.
    doing : str
        The call's purpose, such as ``"list pods"``.
    place : ClusterPlace
        The cluster.

    Returns
    -------
    SkyError or None
        A ProvisionError in most cases: `NoCapacity` for a full quota, and `Unanswered` when the same call may succeed
        soon.
    """
    if isinstance(error, SkyError):
        return None
    if status := status_of(error):
        return _refused(status, message_of(error), doing, place)
    for one in _chain(error):
        kind = type(one).__name__
        if kind == "ConfigException":
            return ProvisionError(f"cannot {doing} in {place}: the configuration cannot be used: {first_line(one)}")
        if kind in ("SSLError", "SSLCertVerificationError") and "certificate" in str(one).lower():
            return ProvisionError(
                f"cannot {doing} in {place}: the API's certificate is not trusted: {_reason(one)}; its "
                "certificate-authority in the kubeconfig may be of an older cluster"
            )
    if any(
        isinstance(one, (OSError, TimeoutError)) or type(one).__module__.startswith("urllib3") for one in _chain(error)
    ):
        return Unanswered(f"cannot {doing} in {place}: its API cannot be reached: {_reason(error)}")
    if type(error) is RuntimeError or type(error) is Exception or type(error) is ValueError:
        # Errors of the Kubeflow SDK's own.
        return ProvisionError(f"cannot {doing} in {place}: {_reason(error)}")
    return None


def _refused(status: int, told: str, doing: str, place: ClusterPlace) -> SkyError:
    """Translate an answer with an error's status."""
    where = f"cannot {doing} in {place}"
    if status == UNAUTHORIZED:
        return ProvisionError(f"{where}: the credentials have expired or are not known there; {_login(place)}")
    if (found := _WEBHOOK.search(told)) is not None:
        return ProvisionError(f"{where}: the cluster refuses it ({found['name']}): {found['why'].strip()}")
    if "violates PodSecurity" in told:
        return ProvisionError(f"{where}: the namespace's PodSecurity level refuses such pods: {told}")
    if "exceeded quota" in told or "failed quota" in told:
        return NoCapacity(f"{where}: {told}", scope="market")
    if status == FORBIDDEN:
        what = (
            f": user {found['user']} may not {found['verb']} {found['resource']}"
            if (found := _CANNOT.search(told))
            else ""
        )
        return ProvisionError(f"{where}: this is not allowed{what}; a Role must allow it ({told})")
    if status == NOT_FOUND and (found := _NAMESPACE.search(told)):
        return ProvisionError(f"{where}: there is no namespace {found['name']!r}; --namespace (namespace=) says which")
    if status == NOT_FOUND and ("could not find the requested resource" in told or "404 page not found" in told):
        return ProvisionError(
            f"{where}: this cluster has no Kubeflow Trainer ({_TRAINER}/v1alpha1): its administrator installs that; "
            "--provider kubernetes (sky.Kubernetes) makes pods without it"
        )
    if status == CONFLICT:
        return OrderSpent(f"{where}: {told}")
    if status == BUSY or status >= 500:
        return Unanswered(f"{where}: the API is busy or failing: {told or 'it gives no reason'} ({status})")
    return ProvisionError(f"{where}: {told or 'no reason is given'} ({status})")


def _login(place: ClusterPlace) -> str:
    """Return how to renew the credentials, as far as the configuration says."""
    if not place.kubeconfig:
        return "the pod's service account must exist"
    command = _plugin(place)
    if command:
        return f"they come from `{command}`: log in there again"
    return f"renew those of context {place.context} in {', '.join(place.kubeconfig)}"


def _plugin(place: ClusterPlace) -> str:
    """Return the command that makes the context's credentials; empty without one."""
    import yaml

    user = None
    try:
        parts = [yaml.safe_load(Path(path).read_text(encoding="utf-8")) for path in place.kubeconfig]
        for part in parts:
            for one in part.get("contexts") or ():
                if user is None and one["name"] == place.context:
                    user = one["context"].get("user")
        for part in parts:
            for one in part.get("users") or ():
                if one["name"] == user and (plugin := one["user"].get("exec")):
                    # Without options: some contain a client secret.
                    words = itertools.takewhile(lambda word: not word.startswith("-"), plugin.get("args") or ())
                    return " ".join([plugin["command"], *itertools.islice(words, 2)])
    except Exception:
        return ""
    return ""


def _reason(error: BaseException) -> str:
    """Return the innermost words of an error; urllib3 wraps them."""
    inner = [one for one in _chain(error) if str(one)]
    text = first_line(inner[-1] if inner else error)
    return re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>: ", "", text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: Any = error
    seen: set[int] = set()
    while isinstance(one, BaseException) and id(one) not in seen:
        seen.add(id(one))
        yield one
        # urllib3 keeps the cause of its last attempt in `reason`.
        reason = getattr(one, "reason", None)
        one = reason if isinstance(reason, BaseException) else one.__cause__ or one.__context__


__all__ = ["CONFLICT", "FORBIDDEN", "NOT_FOUND", "UNAUTHORIZED", "message_of", "status_of", "translated"]
