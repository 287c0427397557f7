"""An API server over plain HTTPS: objects are the JSON that goes over the wire."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3

Json = dict[str, Any]

MERGE = "application/merge-patch+json"


class RestError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Rest:
    """An API server, as who has this token. Any thread may use it.

    Parameters
    ----------
    server : str
        ``https://ADDRESS:PORT``.
    authority : Path
        Its certificate authority.
    token : str
        A bearer token.
    """

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        context = ssl.create_default_context(cafile=str(authority))
        self._pool = urllib3.PoolManager(ssl_context=context, maxsize=20, retries=False)

    def get(self, path: str, *, timeout: float = 30.0) -> Any:
        """An object or a list; what is no JSON, as text."""
        return self._ask("GET", path, timeout=timeout)

    def post(self, path: str, body: Json) -> Json:
        return self._ask("POST", path, body)

    def patch(self, path: str, body: Json) -> Json:
        return self._ask("PATCH", path, body, {"Content-Type": MERGE})

    def delete(self, path: str, body: Json | None = None) -> Json:
        return self._ask("DELETE", path, body)

    def find(self, path: str) -> Json | None:
        """An object; None where there is none."""
        try:
            return self.get(path)
        except RestError as error:
            if error.status == 404:
                return None
            raise

    def ensure(self, path: str, body: Json) -> Json:
        """The object of this name in the collection at `path`; made from `body` where there is none."""
        place = f"{path}/{body['metadata']['name']}"
        try:
            return self.post(path, body)
        except RestError as error:
            if error.status != 409:
                raise
            return self.get(place)

    def remove(self, path: str) -> None:
        """Delete an object if it is there."""
        try:
            self.delete(path)
        except RestError as error:
            if error.status not in (404, 409):
                raise

    def watch(self, path: str, version: str) -> Iterator[Json]:
        """The events of a collection from this version on, until the server ends the answer."""
        query = f"{path}?watch=true&resourceVersion={quote(version)}&timeoutSeconds=300"
        answer = self._request("GET", query, None, {}, urllib3.Timeout(connect=10, read=330), stream=True)
        try:
            for line in _lines(answer):
                yield json.loads(line)
        finally:
            answer.close()
            answer.release_conn()

    def _ask(
        self,
        verb: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Any:
        answer = self._request(verb, path, body, headers or {}, urllib3.Timeout(total=timeout))
        kind = answer.headers.get("Content-Type", "")
        return json.loads(answer.data) if kind.startswith("application/json") else answer.data.decode()

    def _request(
        self,
        verb: str,
        path: str,
        body: Json | None,
        headers: dict[str, str],
        timeout: urllib3.Timeout,
        *,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(
            verb,
            self._server + path,
            body=data,
            headers={**self._headers, **headers},
            timeout=timeout,
            preload_content=not stream,
        )
        if answer.status >= 400:
            raise RestError(answer.status, f"{verb} {path}: {_reason(answer.data)}")
        return answer


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for part in answer.stream(None, decode_content=True):
        *whole, rest = (rest + part).split(b"\n")
        yield from filter(None, whole)


def _reason(data: bytes) -> str:
    try:
        return json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace")[:500]
