"""EC2's instance metadata service (IMDSv2) in the test's own process, with tokens that expire."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACTION, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"


class MetadataService:
    """The service of one instance; `folder` has a file for each piece of metadata that is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
                if self.path != "/latest/api/token" or not 1 <= int(lifetime or 0) <= 21600:
                    self._say(400, "")
                    return
                service.tokens.add(token := uuid.uuid4().hex)
                self._say(200, token)

            def do_GET(self) -> None:
                path = self.path.removeprefix("/latest/meta-data/")
                service.asked.append(path)
                file = service.folder / path.replace("/", "_")
                if self.headers.get("X-aws-ec2-metadata-token") not in service.tokens:
                    self._say(401, "")
                elif not file.exists():
                    self._say(404, "")
                else:
                    self._say(200, file.read_text())

            def _say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def put(self, path: str, content: dict[str, str]) -> None:
        """Have a piece of metadata be there from now on."""
        file = self.folder / path.replace("/", "_")
        file.with_suffix(".new").write_text(json.dumps(content))
        file.with_suffix(".new").rename(file)


@contextmanager
def serving(folder: Path) -> Iterator[MetadataService]:
    """A service on this machine, ended afterwards."""
    service = MetadataService(folder)
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        service.server.server_close()
        thread.join()
