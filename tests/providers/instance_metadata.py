"""An instance's metadata service (IMDSv2), run on a host at an address of its own: `serve ADDRESS PORT FOLDER`.

What it tells are files of the folder, whose names are the paths; it answers 404 for those that are not there.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_TOKEN, _ROOT = "a-token", "/latest/meta-data/"


class Handler(BaseHTTPRequestHandler):
    """Answers with files to who brings the token."""

    folder = Path()

    def do_PUT(self) -> None:
        known = self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer(200 if known else 400, _TOKEN)

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != _TOKEN:
            self._answer(401, "")
            return
        path = self.folder / self.path.removeprefix(_ROOT)
        there = self.path.startswith(_ROOT) and path.is_file()
        self._answer(200 if there else 404, path.read_text() if there else "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


if __name__ == "__main__":
    address, port, Handler.folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    ThreadingHTTPServer((address, port), Handler).serve_forever()
