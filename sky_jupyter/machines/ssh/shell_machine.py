"""Base class of machines on which ``/bin/sh`` can be started with pipes.

A machine over SSH is one. Another distribution's kind of machine, such as a container behind an exec API, implements
`open_shell`, `status` and `open_stream`. The machine must be a POSIX system with ``/proc``.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Protocol

from ...errors import LinkLost, MachineError
from ..base import Done, Machine, Moved, ProcessId, Progress
from ..forwards import ByteStream, LocalForward
from ..process_handle import ProcessHandle
from . import scripts
from .command_errors import failure

# Linux reports times to user space in hundredths of a second on all common processors.
_TICKS = 100
_BEGIN_PATIENCE = 60.0
_SIGNAL_PATIENCE = 30.0
# Seconds for ending an abandoned script: its caller has waited already.
_END_PATIENCE = 5.0
_MAX_NOISE = 16 << 20
_READ = 1 << 16


class Pipes(Protocol):
    """Standard streams of a shell on a machine, made by `ShellMachine.open_shell`."""

    @property
    def closed(self) -> bool:
        """Whether it was closed or the connection broke."""

    def recv(self, size: int, /) -> bytes:
        """Return the next bytes of standard output; empty at the end."""

    def recv_stderr(self, size: int, /) -> bytes:
        """Return the next bytes of standard error; empty at the end."""

    def send_all(self, data: bytes, /) -> Any:
        """Write all bytes to standard input; raise OSError if nobody reads it."""

    def shutdown_write(self) -> None:
        """Close standard input."""

    def close(self) -> None:
        """Close all streams; the shell may keep running."""


class ShellCommand:
    """Command in its own session on another machine, made by `ShellMachine.exec`."""

    def __init__(self, machine: ShellMachine, pipes: Pipes, mark: str) -> None:
        self._machine, self._pipes, self._mark = machine, pipes, mark.encode()
        self._errors = b""
        self._status: int | None = None
        self._ended = threading.Event()
        self._rest = b""
        self._pid, self._ticks = 0, 0
        threading.Thread(target=self._listen, name="sky-ssh-command", daemon=True).start()

    @property
    def identity(self) -> ProcessId:
        """Process id, and start time in seconds since the machine's boot."""
        return self._pid, self._ticks / _TICKS

    def begin(self) -> None:
        """Read the process id; skip the output of the login's own files."""
        timer = threading.Timer(_BEGIN_PATIENCE, self._pipes.close)
        timer.daemon = True
        timer.start()
        try:
            for line in self._raw_lines(_MAX_NOISE):
                # Output without a line break may precede the mark.
                _, found, rest = line.partition(self._mark + b" ")
                if found:
                    self._pid, self._ticks = who(rest.decode("utf-8", "replace"))
                    return
        finally:
            timer.cancel()
        raise self._not_begun()

    def _not_begun(self) -> MachineError:
        self._ended.wait(_SIGNAL_PATIENCE)
        if not self._machine.up:
            return LinkLost(self._machine.name, "broken", "the connection broke as a command was started")
        told = self._errors.decode("utf-8", "replace").strip() or "it said nothing"
        return failure(self._machine.name, "a command could not be started", told)

    def lines(self) -> Iterator[str]:
        """Yield lines of standard output until the command or the connection ends."""
        for line in self._raw_lines():
            yield line.decode("utf-8", "replace")

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        self._signal("TERM")

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        self._signal("KILL")

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or minus the signal; see `base.Command.wait`."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"process {self._pid} on {self._machine.label} has not ended after {timeout} s")
        if self._status is None:
            raise LinkLost(
                self._machine.name,
                "closed",
                f"the connection ended before process {self._pid} did: how that ended is not known",
            )
        return self._status

    @property
    def ended(self) -> bool:
        """Whether it, or its connection, has ended."""
        return self._ended.is_set()

    def close(self) -> None:
        """Close its streams; a command that survives keeps running."""
        self._pipes.close()

    def _signal(self, name: str) -> None:
        if not self._ended.is_set():
            self._machine.run(scripts.signal(name, self._pid, self._ticks), timeout=_SIGNAL_PATIENCE)

    def _raw_lines(self, most: int | None = None) -> Iterator[bytes]:
        seen = 0
        while most is None or seen <= most:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                yield line
                continue
            with contextlib.suppress(OSError, EOFError):
                if data := self._pipes.recv(_READ):
                    self._rest += data
                    seen += len(data)
                    continue
            if self._rest:
                line, self._rest = self._rest, b""
                yield line
            return

    def _listen(self) -> None:
        """Read standard error: errors of the start, and the exit status."""
        with contextlib.suppress(OSError, EOFError):
            while data := self._pipes.recv_stderr(_READ):
                self._errors = (self._errors + data)[-_READ:]
                _, found, rest = self._errors.rpartition(self._mark + b" ")
                if found and rest.endswith(b"\n"):
                    status = int(rest.split()[0])
                    # A shell reports 128 plus the signal for a child that a signal ended.
                    self._status = status if status <= 128 else 128 - status
                    self._ended.set()
        if self._status is None:
            with contextlib.suppress(MachineError):
                status = self._machine.status(self._pipes)
                self._status = status if status < 0 else self._status
        self._ended.set()


class ShellProcess(ProcessHandle):
    """Command that an earlier connection started, without its output.

    Parameters
    ----------
    machine : ShellMachine
        Its machine.
    pid : int
        Process id.
    started : float
        Start time, as in `ShellCommand.identity`.
    """

    def __init__(self, machine: ShellMachine, pid: int, started: float) -> None:
        super().__init__(pid, started)
        self._machine = machine
        self._ticks = round(started * _TICKS)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        script = scripts.alive(self.identity[0], self._ticks)
        return self._machine.run(script, timeout=_SIGNAL_PATIENCE).status == 0

    @property
    def place(self) -> str:
        """The machine, as an error message names it."""
        return f" on {self._machine.label}"

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        self._machine.run(scripts.signal("TERM", self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE)

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        self._machine.run(scripts.signal("KILL", self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE)


class ShellMachine(ABC):
    """Machine that runs shell scripts through pipes; implements `base.Machine`.

    A subclass sets ``name``, ``key`` and ``address``, and implements the three abstract methods.
    """

    is_this_machine = False
    name: Any
    key: str
    address: str

    @abstractmethod
    def open_shell(self, command: str) -> Pipes:
        """Start ``/bin/sh -c COMMAND``; raise MachineError if that fails."""

    def open_fed_shell(self, command: str) -> Pipes:
        """Start ``/bin/sh -c COMMAND``, whose input `Pipes.shutdown_write` ends.

        The input of `open_shell` may end only with its connection.
        """
        return self.open_shell(command)

    @abstractmethod
    def status(self, pipes: Any) -> int:
        """Wait for a shell; return its exit status, or minus the signal.

        Raise LinkLost if the connection ended first.
        """

    @abstractmethod
    def open_stream(self, host: str, port: int) -> ByteStream:
        """Connect from the machine to an address; raise MachineError if refused."""

    @property
    def label(self) -> str:
        """The name in messages, with the address if it differs."""
        return str(self.name)

    @property
    def up(self) -> bool:
        """True; a subclass that notices a lost connection overrides this."""
        return True

    def retry(self) -> None:
        """Do nothing: each command connects anew."""
        return

    def close(self) -> None:
        """Close the forwards; each command has a connection of its own."""
        for one in self._forwards:
            one.close()

    def facts(self) -> Mapping[str, Any]:
        """Return an empty mapping: its id is enough to connect again."""
        return {}

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script, and kill it if it is abandoned; see `base.Machine.run`."""
        return self._run(script, stdin, timeout, self._end)

    def _run(
        self,
        script: str,
        stdin: Iterable[bytes] | None,
        timeout: float | None,
        give_up: Callable[[bytes], None] = lambda said: None,
    ) -> Done:
        """Run a script; ``give_up`` gets the line that names it if it is abandoned."""
        over = threading.Event()
        mark = f"sky-{secrets.token_hex(8)}"
        parts: list[bytes] = []

        def end() -> None:
            # This is done before its pipes are closed: a script that writes into closed pipes may end before the
            # processes that it started. A thread does it, since an unreachable machine may take long to open another
            # shell.
            named = _after_mark(parts, mark)[0]
            ender = threading.Thread(target=give_up, args=(named,), name="sky-shell-end", daemon=True)
            ender.start()
            ender.join(_END_PATIENCE)
            pipes.close()

        with self.script(scripts.naming_itself(script, mark), stdin) as pipes, _timed(end, timeout, over) as failed:
            try:
                while data := pipes.recv(_READ):
                    parts.append(data)
                status = -1 if over.is_set() else self.status(pipes)
            except (OSError, EOFError, LinkLost) as error:
                status = -1
                failed.append(error)
            except BaseException:
                end()
                raise
        if over.is_set():
            raise TimeoutError(f"a script on {self.label} has not ended after {timeout:g} s")
        if failed:
            raise LinkLost(self.name, "broken", f"the connection broke while a script ran ({failed[0]})") from None
        return Done(status if status >= 0 else 128 - status, _after_mark(parts, mark)[1])

    def _end(self, named: bytes) -> None:
        """End a script and its processes, by the line that names it."""
        with contextlib.suppress(MachineError, OSError, ValueError):
            pid, ticks = who(named.decode("utf-8", "replace"))
            self._run(scripts.end(pid, ticks), None, _END_PATIENCE)

    @contextlib.contextmanager
    def script(self, script: str, stdin: Iterable[bytes] | None = None) -> Iterator[Pipes]:
        """Run a script and yield its pipes; a thread writes its input.

        An error of the input itself is raised at the end. Standard output may begin with that of the login's own files.
        """
        pipes = (self.open_shell if stdin is None else self.open_fed_shell)(scripts.LAUNCH)
        failed: list[Exception] = []
        source = "" if stdin is not None else " </dev/null"
        feeder = threading.Thread(
            target=_feed,
            args=(pipes, [scripts.line(f"{{ {script}; }}{source}")], stdin or (), failed),
            name="sky-shell-feed",
            daemon=True,
        )
        feeder.start()
        with contextlib.closing(pipes):
            try:
                yield pipes
            finally:
                if failed:
                    raise failed[0]

    def open_launcher(self, *, survive: bool) -> Any:
        """Return a channel in which a shell starts the command that it reads."""
        return self.open_shell(scripts.LAUNCH)

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> ShellCommand:
        """Start a command in a session of its own; see `base.Machine.exec`.

        A command that does not survive gets SIGTERM when the machine notices the lost connection, and SIGKILL after
        three seconds.
        """
        mark = f"sky-{secrets.token_hex(8)}"
        pipes = self.open_launcher(survive=survive)
        command = ShellCommand(self, pipes, mark)
        try:
            pipes.send_all(scripts.line(scripts.command(argv, env, cwd, log, mark, survive, make)))
            command.begin()
        except OSError:
            pipes.close()
            raise LinkLost(self.name, "broken", "the connection broke as a command was started") from None
        except BaseException:
            pipes.close()
            raise
        return command

    def process(self, identity: ProcessId) -> ShellProcess:
        """Return a command that was started here earlier, by its identity."""
        return ShellProcess(self, *identity)

    def put(self, files: Mapping[PurePath, bytes]) -> None:
        """Write several files with one command; see `base.Machine.put`."""
        self.put_parts([(path, len(data)) for path, data in files.items()], files.values())

    def put_parts(self, files: Sequence[tuple[PurePath, int]], data: Iterable[bytes]) -> None:
        """Write files of known sizes with one command, from concatenated bytes."""
        items = [(PurePosixPath(str(path)), size) for path, size in files]
        if not items:
            return
        script = scripts.put(items, f"sky-{secrets.token_hex(6)}")
        done = self.run(script, stdin=data)
        if done.status:
            what = str(items[0][0]) if len(items) == 1 else f"{len(items)} files"
            raise failure(self.name, f"{what} could not be written", done.out.decode("utf-8", "replace").strip())

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file or folder; see `base.Machine.upload`."""
        from . import file_transfer

        return file_transfer.upload(self, source, target, names=names, progress=progress)

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder; see `base.Machine.download`."""
        from . import file_transfer

        return file_transfer.download(self, source, target, progress=progress)

    def probe(self, host: str, port: int) -> None:
        """Raise MachineError if the machine refuses connections to an address."""
        self.open_stream(host, port).close()

    def forward(self, host: str, port: int, *, local_port: int = 0) -> LocalForward:
        """Open a local port to an address there; see `base.Machine.forward`."""
        if not local_port:
            self.probe(host, port)
        made = LocalForward(lambda: self.open_stream(host, port), local_port)
        self._forwards.append(made)
        return made

    @functools.cached_property
    def _forwards(self) -> list[LocalForward]:
        return []

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Raise MachineError: no connection leads back from the machine."""
        raise MachineError(self.name, "relay", "no port of it can lead to another machine through here")


def _after_mark(parts: Sequence[bytes], mark: str) -> tuple[bytes, bytes]:
    """Return the rest of our own line, and the output after it."""
    _, _, found = b"".join(parts).partition(mark.encode() + b" ")
    line, _, said = found.partition(b"\n")
    return line, said


def who(text: str) -> tuple[int, int]:
    """Return process id and start time in ticks from our first line.

    The start time is 0 if the system has no ``/proc``.
    """
    pid, _, stat = text.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return int(pid), int(fields[19]) if len(fields) > 19 else 0


@contextlib.contextmanager
def _timed(end: Any, timeout: float | None, over: threading.Event) -> Iterator[list[BaseException]]:
    """Call ``end`` after a timeout, and set the event ``over``."""
    failed: list[BaseException] = []

    def expire() -> None:
        over.set()
        end()

    timer = None if timeout is None else threading.Timer(timeout, expire)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield failed
    finally:
        if timer is not None:
            timer.cancel()


def _feed(pipes: Pipes, first: Sequence[bytes], data: Iterable[bytes], failed: list[Exception]) -> None:
    """Write a script and its input; close the pipes if the input cannot be read."""
    try:
        for part in first:
            pipes.send_all(part)
        parts = iter(data)
        while True:
            try:
                part = next(parts)
            except StopIteration:
                break
            except Exception as error:
                failed.append(error)
                pipes.close()
                return
            pipes.send_all(part)
        pipes.shutdown_write()
    except (OSError, EOFError):
        # The script ended before it had read all of its input: its reply can be read.
        return
