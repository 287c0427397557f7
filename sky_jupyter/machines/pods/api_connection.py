"""Connections to a cluster's API: short requests, WebSockets, refusals in words."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import GONE, LoginRefused, MachineError, SpecError, Unreachable
from ..ssh.tcp import tune
from ..ssh.types import shown
from .api_access import Credentials, access_to
from .pod_target import PodTarget
from .websocket import WebSocket, new_key

PATIENCE = 30.0
_DIAL = 15.0
_MOST_HEAD = 1 << 16
_MOST_BODY = 4 << 20
_READ = 1 << 16
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
Query = Sequence[tuple[str, str]]


class _Answer(NamedTuple):
    """Head of an answer, and the bytes that were read after it."""

    status: int
    headers: dict[str, str]
    rest: bytes


def open_websocket(target: PodTarget, action: str, query: Query, protocols: Sequence[str]) -> WebSocket:
    """Open a stream of a pod.

    Parameters
    ----------
    target : PodTarget
        The pod.
    action : str
        ``exec`` or ``portforward``.
    query : sequence of (str, str)
        The query.
    protocols : sequence of str
        Subprotocols, the best first.

    Returns
    -------
    WebSocket
        The stream.

    Raises
    ------
    MachineError
        When it is refused: `Unreachable` if that may be temporary, `LoginRefused` if rights are missing, reason
        ``"gone"`` if the pod does not exist any more.
    """
    key = base64.b64encode(new_key()).decode()
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": ", ".join(protocols),
    }
    path = f"{_path(target)}/{action}?{urllib.parse.urlencode(query)}"
    made, answer = _ask(target, path, headers)
    try:
        if answer.status != 101:
            raise _refusal(target, f"pods/{action}", answer.status, _body(made, answer))
        digest = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
        if not hmac.compare_digest(answer.headers.get("sec-websocket-accept", ""), digest):
            raise _no_stream(target, "its handshake is not that of a WebSocket")
        protocol = answer.headers.get("sec-websocket-protocol", "")
        if protocol not in protocols:
            raise _no_stream(target, f"it speaks {shown(protocol, 60) or 'no protocol'} of {', '.join(protocols)}")
    except OSError as error:
        made.close()
        raise _broken(target, error) from None
    except BaseException:
        made.close()
        raise
    return WebSocket(made, answer.rest, protocol)


def read_pod(target: PodTarget) -> dict[str, Any]:
    """Return the pod as the API describes it; raise MachineError as `open_websocket`."""
    made, answer = _ask(target, _path(target), {"Accept": "application/json", "Connection": "close"})
    with contextlib.closing(made):
        try:
            body = _body(made, answer)
        except OSError as error:
            raise _broken(target, error) from None
        if answer.status != 200:
            raise _refusal(target, "pods", answer.status, body)
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(body)
        if isinstance(found, dict):
            return found
    raise Unreachable(target.name, "protocol", f"the API answered for {target} with what is no pod")


def _path(target: PodTarget) -> str:
    return f"/api/v1/namespaces/{target.namespace}/pods/{target.pod}"


def _ask(target: PodTarget, path: str, headers: dict[str, str]) -> tuple[socket.socket, _Answer]:
    """Send a request; repeat it with new credentials if the first were refused."""
    access, generation = access_to(target.kubeconfig, target.context), -1
    for attempt in (0, 1):
        try:
            credentials, generation = access.credentials(generation if attempt else -1)
        except SpecError as error:
            raise Unreachable(target.name, "credentials", str(error)) from None
        try:
            made = _dialled(target, credentials)
        except ssl.SSLError as error:
            if attempt:
                raise _distrusted(target, credentials, error) from None
            continue
        try:
            answer = _asked(made, credentials, path, headers)
        except ssl.SSLError as error:
            # With TLS 1.3, a refusal of the client certificate is reported only here.
            made.close()
            if attempt:
                raise _distrusted(target, credentials, error) from None
            continue
        except OSError as error:
            made.close()
            raise _broken(target, error) from None
        except BaseException:
            made.close()
            raise
        if answer.status != 401 or attempt:
            return made, answer
        made.close()
    raise AssertionError


def _asked(made: socket.socket, credentials: Credentials, path: str, headers: dict[str, str]) -> _Answer:
    place = f"[{credentials.host}]" if ":" in credentials.host else credentials.host
    lines = [f"GET {credentials.prefix}{path} HTTP/1.1", f"Host: {place}:{credentials.port}", "User-Agent: sky-jupyter"]
    lines += [f"{name}: {value}" for name, value in {**headers, **credentials.headers}.items()]
    made.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    return _head(made)


def _head(made: socket.socket) -> _Answer:
    """Read the head of an answer; raise OSError if it is invalid."""
    data, until = b"", time.monotonic() + PATIENCE
    while b"\r\n\r\n" not in data:
        made.settimeout(max(until - time.monotonic(), 0.01))
        part = made.recv(_READ)
        if not part:
            raise OSError("the connection was closed before the answer")
        data += part
        if len(data) > _MOST_HEAD and b"\r\n\r\n" not in data:
            raise OSError("the answer has no end of its head")
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        raise OSError("the answer is not HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Answer(int(words[1]), headers, rest)


def _body(made: socket.socket, answer: _Answer) -> bytes:
    """Read the body of an answer, up to a limit."""
    size = answer.headers.get("content-length", "")
    wanted = int(size) if size.isdecimal() and len(size) < 12 else None
    chunked = "chunked" in answer.headers.get("transfer-encoding", "")
    data, until = bytearray(answer.rest), time.monotonic() + PATIENCE
    while wanted is None or len(data) < wanted:
        if chunked and data.endswith(b"0\r\n\r\n"):
            break
        if len(data) > _MOST_BODY:
            raise OSError("the answer is too long")
        made.settimeout(max(until - time.monotonic(), 0.01))
        if not (part := made.recv(_READ)):
            break
        data += part
    return _joined(bytes(data)) if chunked else bytes(data)


def _joined(data: bytes) -> bytes:
    """Return the data of chunks."""
    parts = []
    while data:
        line, _, data = data.partition(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            break
        if size <= 0:
            break
        parts.append(data[:size])
        data = data[size + 2 :]
    return b"".join(parts)


# Dialling


def _dialled(target: PodTarget, credentials: Credentials) -> socket.socket:
    """Connect to the API server; raise ssl.SSLError on TLS failure, else Unreachable."""
    place = (credentials.host, credentials.port)
    try:
        if credentials.proxy:
            made = _through(credentials.proxy, credentials)
        else:
            made = socket.create_connection(place, _DIAL)
    except socket.gaierror as error:
        raise Unreachable(
            target.name, "name", f"no host of the name {credentials.host!r} is known here ({error.strerror}); "
            "is the kubeconfig's server right, and the VPN on?",
        ) from None  # fmt: skip
    except OSError as error:
        reason = "timeout" if isinstance(error, TimeoutError) else "closed"
        raise Unreachable(
            target.name, reason, f"the cluster's API at {credentials.host}:{credentials.port} does not answer "
            f"({error.strerror or error}); is it up, and the VPN on?",
        ) from None  # fmt: skip
    try:
        tune(made)
        made.settimeout(PATIENCE)
        if credentials.tls is not None:
            made = credentials.tls.wrap_socket(made, server_hostname=credentials.server_name)
        return made
    except ssl.SSLError:
        made.close()
        raise
    except OSError as error:
        made.close()
        raise _broken(target, error) from None


def _through(proxy: str, credentials: Credentials) -> socket.socket:
    """Connect through an HTTP proxy."""
    url = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if url.scheme != "http" or not url.hostname:
        raise OSError("the proxy's URL does not begin with http://")
    made = socket.create_connection((url.hostname, url.port or 80), _DIAL)
    try:
        place = f"{credentials.host}:{credentials.port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if url.username is not None:
            pair = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
        made.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        status = _head(made).status
        if status != 200:
            raise OSError(f"the proxy {url.hostname} answered with {status}")
    except BaseException:
        made.close()
        raise
    return made


# Refusals


def _refusal(target: PodTarget, resource: str, status: int, body: bytes) -> MachineError:
    """Return the error for an answer that refuses a request."""
    said = _said(body) or f"HTTP {status}, without a reason"
    access = access_to(target.kubeconfig, target.context)
    if status == 401:
        cure = "log in to it again, as for kubectl" if target.kubeconfig else "is the service account still there?"
        text = f"the cluster does not accept the credentials of {access}: {said}; {cure}"
        return Unreachable(target.name, "credentials", text)
    if status == 403:
        verbs = "get" if resource == "pods" else "get and create"
        text = (
            f"{target}: {resource} is forbidden: {said}; ask the admin of namespace {target.namespace} for a Role with "
            f"{verbs} on {resource}"
        )
        return LoginRefused(target.name, "rights", text)
    if status in (404, 410) and _is_of(target, body):
        return gone(target, f"there is no such pod any more ({said})")
    if status == 400:
        return MachineError(target.name, "refused", f"{target} refused {resource}: {said}")
    return Unreachable(target.name, "api", f"the cluster's API could not open {resource} of {target}: {said}")


def gone(target: PodTarget, why: str) -> MachineError:
    """Return the error for a pod that has ended or was replaced."""
    return MachineError(target.name, GONE, f"{target} is gone: {why}")


def _is_of(target: PodTarget, body: bytes) -> bool:
    """Return True if an answer is the API's own, and about the pod.

    A kubelet that has just started, or a proxy in front of the API, may answer with the same status.
    """
    details = _status(body).get("details")
    return isinstance(details, dict) and details.get("kind") == "pods" and details.get("name") == target.pod


def _said(body: bytes) -> str:
    """Return the message of an answer: a Status of Kubernetes, or text."""
    message = _status(body).get("message")
    return shown(message if isinstance(message, str) else body[:2000].decode("utf-8", "replace"))


def _status(body: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(body)
        if isinstance(found, dict):
            return found
    return {}


def _no_stream(target: PodTarget, why: str) -> MachineError:
    return MachineError(
        target.name, "protocol", f"the cluster's API opens no stream to {target}: {why}; a proxy before it may not let "
        "WebSockets through",
    )  # fmt: skip


def _broken(target: PodTarget, error: OSError) -> Unreachable:
    told = "it took too long" if isinstance(error, TimeoutError) else error.strerror or str(error) or "no reason given"
    return Unreachable(target.name, "api", f"the connection to the cluster's API broke ({told})")


def _distrusted(target: PodTarget, credentials: Credentials, error: ssl.SSLError) -> Unreachable:
    place = f"{credentials.host}:{credentials.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        text = (
            f"the certificate of {place} is not trusted ({error.verify_message}); is the kubeconfig that of this API?"
        )
    else:
        text = f"no TLS connection to {place} ({shown(str(error))}); is our certificate still valid?"
    return Unreachable(target.name, "tls", text)


__all__ = ["PATIENCE", "gone", "open_websocket", "read_pod"]
