"""Calls of a cluster's API. `kubernetes` is imported by the first one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...errors import ProvisionError, SpecError, Unanswered
from . import kube_errors
from .api_access import access_to
from .cluster_place import ClusterPlace

T = TypeVar("T")

# Seconds to connect, and for each part of an answer.
TIMEOUT = (10.0, 30.0)


class KubeClients:
    """Clients of one cluster's API; thread-safe. Made by `ask`.

    Parameters
    ----------
    place : ClusterPlace
        The cluster.
    configuration : kubernetes.client.Configuration
        Address and credentials.
    """

    def __init__(self, place: ClusterPlace, configuration: Any) -> None:
        from kubernetes import client

        configuration.retries = 1
        self.place, self.configuration = place, configuration
        self.api = client.ApiClient(configuration)
        # Objects that callers derive from the configuration, and that are valid as long as it is.
        self.kept: dict[str, Any] = {}

    def call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request and return its JSON object; errors are not translated.

        Raises Unanswered if the answer is not a JSON object.
        """
        found = self.api.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            response_type="object",
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=TIMEOUT,
        )
        if not isinstance(found, dict):
            raise Unanswered(
                f"{self.place}: the answer is not that of a Kubernetes API: is a proxy or a login page in front of it?"
            )
        return found

    def stream(self, path: str, query: Mapping[str, str]) -> Any:
        """Send a request; return its urllib3 response, which is not read yet."""
        return self.api.call_api(
            path,
            "GET",
            query_params=list(query.items()),
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=TIMEOUT,
        )


_lock = threading.Lock()
_known: dict[tuple[ClusterPlace, int], KubeClients] = {}


def ask(place: ClusterPlace, doing: str, call: Callable[[KubeClients], T]) -> T:
    """Return the result of API calls, with their errors translated.

    Refused credentials are read again once, since a user may have logged in meanwhile.

    Parameters
    ----------
    place : ClusterPlace
        The cluster.
    doing : str
        Purpose of the calls, such as ``"list pods"``.
    call : callable
        Function that makes the calls with the clients.

    Returns
    -------
    object
        The function's result.
    """
    try:
        try:
            return call(_clients(place))
        except Exception as error:
            if kube_errors.status_of(error) != kube_errors.UNAUTHORIZED:
                raise
            access = access_to(place.kubeconfig, place.context)
            access.configuration(refused=access.credentials()[1])
            return call(_clients(place))
    except SpecError as error:
        raise ProvisionError(f"cannot {doing} in {place}: {error}") from error
    except Exception as error:
        if (told := kube_errors.translated(error, doing, place)) is None:
            raise
        raise told from error


def _clients(place: ClusterPlace) -> KubeClients:
    # A forked process needs connections of its own.
    key, configuration = (place, os.getpid()), access_to(place.kubeconfig, place.context).configuration()
    with _lock:
        found = _known.get(key)
        if found is None or found.configuration is not configuration:
            found = _known[key] = KubeClients(place, configuration)
        return found


__all__ = ["KubeClients", "ask"]
