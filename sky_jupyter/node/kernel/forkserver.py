"""Forkserver: imports the plugins' modules, and forks kernels after that.

The host starts one per machine. Agents connect to its unix socket, and ask it, in JSON objects of one line each, to
fork the kernel of a rank. As the kernels' parent it learns of their end first, and reports it at once to the agent that
asked. It has one thread, so that forking is safe; the imports start no backend.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...util.garbage import collections_paused
from ..system import processes

# Suffix of a file beside the socket that exists once all imports are done.
READY = ".ready"
# The kernel's module, and modules that IPython imports when a kernel starts.
KERNEL_MODULES = (
    "sky_jupyter.node.kernel.kernel",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
)
_MAX_LINE = 1 << 20
# Seconds that a process may need to end after an OOM kill: it may have much memory to return.
_OOM_WINDOW = 5.0
# All agents of a machine connect at once. If the queue is full, Linux refuses a connection, but asyncio takes the
# socket for connected.
_BACKLOG = 4096
# Poll interval while kernels have a deadline.
_LOOK = 0.05


def listen(path: Path) -> socket.socket:
    """Return the listening socket; agents may connect before the imports end."""
    ready_file(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(_BACKLOG)
    return listener


def preload(modules: Iterable[str]) -> dict[str, str]:
    """Import modules; return the errors by module, for the ranks to report."""
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            failed[module] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    return failed


def ready_file(path: str | Path) -> Path:
    """Return the file that exists once the forkserver at a socket has imported all.

    Its modification time is that of the last fork or end of a kernel.
    """
    return Path(f"{path}{READY}")


def serve(listener: socket.socket, orders: Callable[[], tuple[Iterable[str], float]]) -> None:
    """Import modules, then fork kernels on request until the host ends us.

    Parameters
    ----------
    listener : socket
        Socket to which agents connect.
    orders : callable
        Waits for the modules to import besides the kernel's own, and the seconds that kernels without an agent have for
        an orderly exit; returns both.
    """
    # Garbage collections would only visit modules, again and again.
    with collections_paused():
        preload(KERNEL_MODULES)
        modules, exit_timeout = orders()
        failed = preload(modules)
        # Imported modules are never freed. If they are frozen, a garbage collection in a fork does not copy their
        # pages.
        gc.freeze()
    ready_file(listener.getsockname()).touch(mode=0o600)
    _Server(listener, failed, exit_timeout).run()


class _Server:
    """Event loop of the forkserver: accepts requests, forks, reports ends."""

    def __init__(self, listener: socket.socket, failed: dict[str, str], exit_timeout: float) -> None:
        self.listener = listener
        self.ready = ready_file(listener.getsockname())
        self.failed = failed
        self.exit_timeout = exit_timeout
        # Our end of a pipe to each kernel: closing it makes the kernel exit in order.
        self.pipes: dict[int, int] = {}
        # Kernels without an agent, with their deadlines.
        self.leaving: dict[int, float] = {}
        self.buffers: dict[socket.socket, bytes] = {}
        self.asked_by: dict[int, socket.socket] = {}
        # Times and counts of OOM kills; the first entry is from before the window.
        self.oom_kills = collections.deque([(time.monotonic(), processes.oom_kills())])
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.selector.register(self.wake_read, selectors.EVENT_READ, self.on_child)
        self.selector.register(self.listener, selectors.EVENT_READ, self.on_connect)
        while True:
            for key, _ in self.selector.select(_LOOK if self.leaving else 1.0):
                key.data()
            self.on_child()
            self.kill_late()

    def on_connect(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            # No descriptor is left for it: it waits, and the listener stays readable.
            time.sleep(_LOOK)
            return
        self.buffers[connection] = b""
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.on_data(connection))

    def on_data(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.drop(connection)
            return
        *lines, rest = (self.buffers[connection] + data).split(b"\n")
        self.buffers[connection] = rest
        if len(rest) > _MAX_LINE:
            self.drop(connection)
            return
        for line in lines:
            self.on_request(connection, json.loads(line))

    def drop(self, connection: socket.socket) -> None:
        """Close a gone agent's connection and ask its kernels to exit."""
        self.selector.unregister(connection)
        self.buffers.pop(connection, None)
        for pid in [pid for pid, asker in self.asked_by.items() if asker is connection]:
            del self.asked_by[pid]
            self.leaving[pid] = time.monotonic() + self.exit_timeout
            self.finish(pid)
            processes.signal_group(pid, signal.SIGINT)
        connection.close()

    def finish(self, pid: int) -> None:
        """Ask a kernel to exit once idle; the caller handles one that does not."""
        if pid in self.pipes:
            os.close(self.pipes.pop(pid))

    def kill_late(self) -> None:
        """Kill kernels without an agent whose deadline has passed."""
        now = time.monotonic()
        for pid in [pid for pid, end in self.leaving.items() if end <= now]:
            del self.leaving[pid]
            processes.kill_group(pid)

    def on_request(self, connection: socket.socket, request: dict[str, Any]) -> None:
        if "finish" in request:
            self.finish(request["finish"])
            return
        parent = os.getpid()
        try:
            pid, end, ours = _fork()
        except OSError as error:
            # Other ranks work: they would all end with this process.
            self.tell(connection, {"id": request["id"], "failed": os.strerror(error.errno or 0)})
            return
        if pid == 0:
            os.close(ours)
            self.become_kernel(request, parent, end)
        os.close(end)
        self.pipes[pid] = ours
        self.asked_by[pid] = connection
        self.tell(connection, {"id": request["id"], "pid": pid, "preload_failed": self.failed})
        self.show_progress()

    def become_kernel(self, request: dict[str, Any], parent: int, end: int) -> None:
        """Turn the forked child into a rank's kernel; never return."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            processes.die_with_parent(parent)
            os.setsid()
            self.selector.close()
            for connection in self.buffers:
                connection.close()
            self.listener.close()
            os.close(self.wake_read)
            os.close(self.wake_write)
            for pipe in self.pipes.values():
                os.close(pipe)
            _redirect(request["log"])
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            # Imported modules stay frozen: a collection, or gc.get_objects(), would copy all their pages.
            from .kernel import run_kernel

            run_kernel(request["connection_file"], end)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.__stderr__.flush()  # type: ignore[union-attr]
            os._exit(status)

    def on_child(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_read, 512):
                pass
        short = self.memory_was_short()
        for pid, status, used in processes.collect():
            self.finish(pid)
            self.leaving.pop(pid, None)
            # Processes that it started and left behind end with it, however it ended.
            processes.kill_group(pid, ended=True)
            self.show_progress()
            connection = self.asked_by.pop(pid, None)
            if connection is not None:
                text = processes.exit_text(status, used, short=short)
                self.tell(connection, {"pid": pid, "ended": status, "text": text})

    def memory_was_short(self) -> bool:
        """Return True if the OOM killer was active recently.

        A process takes a while to end after it was killed.
        """
        now, kills = time.monotonic(), self.oom_kills
        kills.append((now, processes.oom_kills()))
        while len(kills) > 2 and kills[1][0] < now - _OOM_WINDOW:
            kills.popleft()
        return kills[-1][1] > kills[0][1]

    def show_progress(self) -> None:
        """Set the time of the ready file, for agents whose requests wait."""
        with contextlib.suppress(OSError):
            os.utime(self.ready)

    def tell(self, connection: socket.socket, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(message).encode() + b"\n")


def _fork() -> tuple[int, int, int]:
    """Fork; return the pid, and the child's and our end of a pipe."""
    end, ours = os.pipe()
    try:
        with warnings.catch_warnings():
            # Python warns of a BLAS library's threads; those libraries handle a fork themselves.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork(), end, ours
    except OSError:
        os.close(end)
        os.close(ours)
        raise


def _redirect(log: str) -> None:
    """Redirect standard input to /dev/null, and output to the rank's log."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)


def main() -> None:
    """Run ``python -m sky_jupyter.node.kernel.forkserver``; see `serve`.

    Arguments are SOCKET SECONDS MODULE..., where SOCKET is the number of an inherited descriptor.
    """
    serve(socket.socket(fileno=int(sys.argv[1])), lambda: (sys.argv[3:], float(sys.argv[2])))


if __name__ == "__main__":
    main()
