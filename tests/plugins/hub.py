"""A stand-in for Hugging Face's Hub on loopback: one repository, told to those who bring the token."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
}


@dataclass
class Hub:
    """What it serves, and what it was asked."""

    token: str
    name: str = "org/tiny"
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serving(token: str) -> Iterator[Hub]:
    """Serve it inside."""
    hub = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(path)
            if hub.name.partition("/")[0] not in path and "absent" not in path:
                # What the client asks of itself.
                self.answer(404, b"{}")
            elif self.headers.get("Authorization") != f"Bearer {hub.token}":
                hub.refused.append(path)
                self.answer(401, b"{}", X_Error_Code="GatedRepo", X_Error_Message="no token")
            elif path.startswith(f"/api/models/{hub.name}/tree/"):
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in FILES.items()
                ]
                self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
            elif path.startswith(f"/api/models/{hub.name}"):
                siblings = [{"rfilename": name} for name in FILES]
                body = json.dumps({"id": hub.name, "sha": COMMIT, "siblings": siblings, "private": True})
                self.answer(200, body.encode(), Content_Type="application/json")
            elif path.startswith(f"/{hub.name}/resolve/") and (name := path.rpartition("/")[2]) in FILES:
                etag = hashlib.sha256(FILES[name]).hexdigest()
                self.answer(200, FILES[name], ETag=f'"{etag}"', X_Repo_Commit=COMMIT)
            else:
                self.answer(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="there is none")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
