"""Process of the link: admits clients, ends in time, and cleans up."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...node.system import file_locks
from ...util import process_identity
from . import socket_folder
from .framing import Broken, Wire, prove
from .idle_timeout import IdleTimeout

_TICK = 0.5
_SIGN = 5.0
_MOST_CLIENTS = 512
_MOST_FILES = 16384
# Switch interval: threads that copy bytes may wait for others that encrypt.
_TURN = 0.001


def main(folder: Path) -> int:
    """Run the link of a folder until its idle timeout; return the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    faulthandler.enable()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _MOST_FILES) if most > 0 else _MOST_FILES, most))
    sys.setswitchinterval(_TURN)
    # paramiko's messages about keys and hosts are in our errors, not in a log.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").propagate = False
    key, config = socket_folder.read_key(folder), socket_folder.read_config(folder)
    idle_timeout = IdleTimeout(_owner(config.get("owner")), config.get("lease"))
    listener = socket_folder.listen(folder)
    file_locks.shield(folder)
    server = Server(listener, key, idle_timeout, stop, [Path(one) for one in config.get("folders", ())])
    server.start()
    ours = _which(folder)
    signed = 0.0
    while not (why := idle_timeout.over()) and not stop.wait(_TICK) and _which(folder) == ours:
        if idle_timeout.idle is None and time.monotonic() - signed >= _SIGN:
            signed = time.monotonic()
            socket_folder.sign(folder)
    still = _which(folder) == ours
    _note(f"ending: {why or ('it was asked to' if still else 'its folder is gone')}")
    server.close()
    if still:
        socket_folder.clear(folder)
        if config.get("made"):
            with contextlib.suppress(OSError):
                folder.rmdir()
        server.remove_folders(over=bool(why))
    return 0


class Server:
    """Server that admits clients, and answers each in its own thread."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        idle_timeout: IdleTimeout,
        stop: threading.Event,
        folders: Sequence[Path],
    ) -> None:
        # Folders of a pool that is being started; see `PoolWatchdog.watch`.
        self._folders = folders
        self._listener, self._key, self._idle_timeout, self._stop = listener, key, idle_timeout, stop
        self._watchdog: Any = None
        self._room = threading.Semaphore(_MOST_CLIENTS)
        self._ready = threading.Event()
        self._connections: Any = None
        self._failed = ""

    def start(self) -> None:
        """Listen, and import the SSH library meanwhile."""
        threading.Thread(target=self._accept, name="link-accept", daemon=True).start()
        threading.Thread(target=self._import, name="link-import", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        with contextlib.suppress(OSError):
            self._listener.close()
        if self._connections is not None:
            self._watchdog.close()
            self._connections.close()

    def remove_folders(self, *, over: bool) -> None:
        """Remove the pool's folders if it has ended, or if the idle timeout is ``over``."""
        self._ready.wait()
        if self._watchdog is not None:
            self._watchdog.remove_folders(over=over)

    def _import(self) -> None:
        try:
            from .connection_table import ConnectionTable
            from .pool_watchdog import PoolWatchdog

            self._watchdog, self._connections = PoolWatchdog(self._idle_timeout, self._folders), ConnectionTable()
        except ImportError as error:
            self._failed = f"SSH needs paramiko: pip install 'sky-jupyter[ssh]' ({error})"
        except Exception as error:  # of parts that do not fit: paramiko and cryptography raise several types
            self._failed = (
                f"paramiko could not be imported: {type(error).__name__}: {error}. Install it anew, with what it "
                "needs: pip install --force-reinstall 'sky-jupyter[ssh]'"
            )
        finally:
            self._ready.set()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                self._stop.wait(0.1)  # too many files are open; that passes
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="link-client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            wire = prove(connection, self._key, server=True)
        except Broken as error:
            _note(f"a client was refused: {error}")
            self._room.release()
            return
        self._idle_timeout.enter()
        try:
            self._answer(wire)
        finally:
            wire.close()
            self._idle_timeout.leave()
            self._room.release()

    def _answer(self, wire: Wire) -> None:
        self._ready.wait()
        if self._failed:
            with contextlib.suppress(Broken):
                self._excuse(wire)
            return
        from .request_handlers import RequestHandler

        RequestHandler(self._connections, self._idle_timeout, self._watchdog, self._stop.set, wire).serve()

    def _excuse(self, wire: Wire) -> None:
        """Answer every call with the import error, except the one that ends the link."""
        while True:
            if wire.receive().facts.get("call") == "end":
                wire.send({"done": True, "process": list(process_identity.this())})
                self._stop.set()
            else:
                wire.send({"error": {"kind": "SpecError", "message": self._failed}})


def _which(folder: Path) -> tuple[int, int] | None:
    """Return the identity of the folder's socket; the link ends if it changes."""
    try:
        facts = (folder / socket_folder.SOCKET).lstat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _owner(facts: Any) -> process_identity.ProcessIdentity | None:
    return process_identity.ProcessIdentity(int(facts[0]), float(facts[1])) if facts else None


def _note(text: str) -> None:
    """Write a line to the log."""
    with contextlib.suppress(OSError):
        os.write(2, f"link {os.getpid()}: {text}\n".encode())
