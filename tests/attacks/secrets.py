"""Look for secrets where others can read them: command lines, environments of processes, and files.

`Watcher` is a process of its own that reads all of /proc again and again, as another user of the machine would (and,
as root, those of hosts in namespaces too). `files_with` searches files. `Server` gives packages to who knows the
password, and looks at all processes and files each time it is asked: then the one who asks is just at work.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_LARGEST = 64 << 20
# A process that has been there for so many turns will hardly become another program.
_YOUNG = 400
_OLD_EACH = 50
_KINDS = {
    "node": b"sky_jupyter.node.host",
    "link": b"sky_jupyter.machines.link",
    "notebook": b"ipykernel_launcher",
    "watcher": b"tests.attacks.secrets",
}


@dataclass(frozen=True)
class Hit:
    """A secret that was seen.

    Parameters
    ----------
    secret : str
        Its name.
    where : str
        ``"argv"`` or ``"environ"``.
    kind : str
        What process had it: a name of `_KINDS`, ``"uv"``, or ``"other"``.
    command : str
        Its command line.
    """

    secret: str
    where: str
    kind: str
    command: str


class Watcher:
    """Reads command lines and environments of all processes each few hundredths of a second, from its begin to its end.

    Parameters
    ----------
    values : mapping of str to str
        The secrets by their names.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.secrets"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dict(values)) + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self) -> tuple[set[Hit], int]:
        """What it has seen, and how often it has looked."""
        said, _ = self._process.communicate()
        turns, rows = json.loads(said)
        return {Hit(*row) for row in rows}, turns

    def close(self) -> None:
        """End it, whatever it has seen."""
        self._process.kill()
        self._process.communicate()


def look(values: Mapping[str, bytes], pids: Iterable[str]) -> Iterator[Hit]:
    """Read these processes' command lines and environments once."""
    for pid in pids:
        argv, environ = _read(f"/proc/{pid}/cmdline"), _read(f"/proc/{pid}/environ")
        for name, value in values.items():
            for where, text in (("argv", argv), ("environ", environ)):
                if value in text:
                    command = argv.replace(b"\0", b" ").decode(errors="replace")
                    yield Hit(name, where, _kind(pid, argv), command[:2000])


def processes() -> list[str]:
    """The ids of all processes but this one and its parents, which know the secrets."""
    own, pid = set(), os.getpid()
    while pid > 1:
        own.add(str(pid))
        pid = int(_parent(str(pid)) or 0)
    return [name for name in os.listdir("/proc") if name.isdigit() and name not in own]


def _kind(pid: str, argv: bytes) -> str:
    """What a process is; what we do not know is as whoever has started it."""
    while pid not in ("", "0"):
        # One that has ended since has no command line any more.
        line = argv or _read(f"/proc/{pid}/cmdline")
        program = os.path.basename(line.partition(b"\0")[0])
        known = next((kind for kind, mark in _KINDS.items() if mark in line), "uv" if program[:2] == b"uv" else "")
        if known:
            return known
        argv, pid = b"", _parent(pid)
    return "other"


def _parent(pid: str) -> str:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[1].decode() if len(fields) > 1 else ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def _watch() -> None:
    values = {name: value.encode() for name, value in json.loads(sys.stdin.readline()).items()}
    print("ready", flush=True)
    seen: set[Hit] = set()
    ages: dict[str, int] = {}
    turns = 0
    # Without a pause it would take one of two cores from what it watches.
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        pids = processes()
        ages = {pid: ages.get(pid, 0) + 1 for pid in pids}
        turns += 1
        seen.update(look(values, [pid for pid in pids if ages[pid] < _YOUNG or turns % _OLD_EACH == 0]))
    print(json.dumps([turns, [[hit.secret, hit.where, hit.kind, hit.command] for hit in seen]]))


def files_with(values: Mapping[str, str], roots: Iterable[Path], known: Iterable[Path] = ()) -> set[tuple[str, str]]:
    """The files below some folders that hold a secret: its name, and the path.

    Parameters
    ----------
    known : iterable of Path
        Folders that are left out: the test's own.
    """
    left_out, found = {str(path) for path in known}, set()
    searched = {name: value.encode() for name, value in values.items()}
    for root in roots:
        for folder, inner, names in os.walk(root):
            inner[:] = [name for name in inner if os.path.join(folder, name) not in left_out]
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if os.path.isfile(path) and os.stat(path).st_size < _LARGEST:
                        data = Path(path).read_bytes()
                        found.update((secret, path) for secret, value in searched.items() if value in data)
    return found


def for_others(path: str, below: Path) -> bool:
    """Whether another user could read a file, as far as modes from a folder on say."""
    modes = [os.stat(part).st_mode for part in (path, *Path(path).parents) if Path(part).is_relative_to(below)]
    return bool(modes) and modes[0] & 0o044 != 0 and all(mode & 0o011 for mode in modes[1:])


class Server:
    """Gives files to who logs in, or shows a token; an index of them at ``/simple/``; a proxy to all that.

    Parameters
    ----------
    folder : Path
        Where the files are.
    allows : callable
        Told the headers ``Authorization`` and ``Proxy-Authorization``, decoded, and the query.
    on_request : callable
        Called before each answer.
    """

    def __init__(
        self,
        folder: Path,
        allows: Callable[[str, str, str], bool],
        on_request: Callable[[str], None] = lambda path: None,
        address: str = "127.0.0.1",
    ) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                outer.asked.append(url.path)
                on_request(url.path)
                if not allows(self.login("Authorization"), self.login("Proxy-Authorization"), url.query):
                    self.answer(401, b"")
                elif url.path.startswith("/simple/"):
                    name = url.path.strip("/").rpartition("/")[2]
                    wheels = sorted(path.name for path in folder.iterdir())
                    files = [file for file in wheels if _normal(file.partition("-")[0]) == name]
                    links = "".join(f'<a href="/{file}">{file}</a>' for file in files)
                    self.answer(200 if files else 404, links.encode())
                else:
                    path = folder / url.path.strip("/")
                    self.answer(200, path.read_bytes()) if path.is_file() else self.answer(404, b"")

            do_HEAD = do_GET

            def login(self, header: str) -> str:
                kind, _, code = self.headers.get(header, "").partition(" ")
                return base64.b64decode(code).decode() if kind == "Basic" else ""

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if "/simple/" in self.path else "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                if status == 401:
                    self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    _watch()
